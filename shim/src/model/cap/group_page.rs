//! Finds or creates the page of a group. It is named by a directory `group.NAME` with one empty file in
//! it, whose name gives the segment of shared memory.
//!
//! A directory and an empty file take no room: they can be created when the file system is full, or
//! under a file size limit of 0. They cannot be truncated.

use super::group::Why;
use crate::runtime::clock::real_mono_ns;
use crate::runtime::errno;
use crate::runtime::private_table::{self, NoTask, Opened, Table};
use crate::runtime::secure_dir::{self, Wrong};
use crate::runtime::segment::{self, Segment};
use crate::runtime::system;
use std::ffi::{CStr, CString};
use std::time::{Duration, Instant};
use vramtrace_format::group::{self, GROUP_WORDS, GroupPage, Unusable};
use vramtrace_format::member::{Member, Namespaces};

type Memory = Segment<GROUP_WORDS>;

/// How long to wait for the lock. Its holder makes a few system calls only, so one that holds it for
/// this long is stopped.
const PATIENCE: Duration = Duration::from_secs(2);

/// The page of a group, attached for good.
pub struct Held {
    pub page: GroupPage<'static>,
    /// When it was made: of two pages of one name the older one holds.
    pub made: u64,
    segment: i32,
    pub directory: String,
    /// The path of the file that names it, and the device on which that is.
    path: CString,
    device: u64,
}

impl Held {
    /// Whether the file that names the page is gone. False where that cannot be told: in another root directory, or for
    /// another user.
    pub fn has_lost_its_name(&self) -> bool {
        device_of(&self.path).is_none()
            && errno::get() == libc::ENOENT
            && device_of(c"/dev/shm") == Some(self.device)
    }
}

/// The device on which this file is. `None`: errno says why.
fn device_of(path: &CStr) -> Option<u64> {
    system::stat_of_name(libc::AT_FDCWD, path).map(|stat| stat.st_dev)
}

/// How often it is tried again where the directory was removed meanwhile.
const TRIES: u32 = 5;

/// Attaches the group's page, and creates it if there is none. It is never detached. `mine`: the page that this process
/// is in, which is the group's if it is the older one.
pub fn open(directory: &str, name: &str, mine: Option<&Held>) -> Result<Held, Why> {
    let mut tries = 0;
    loop {
        let opened = private_table::run(|table| open_in(table, directory, name, mine))
            .unwrap_or_else(|NoTask { errno }| Err(Why::NoTask { errno }));
        tries += 1;
        match opened {
            Err(Why::File { what: Wrong::Errno(libc::ENOENT), .. }) if tries < TRIES => {}
            opened => return opened,
        }
    }
}

fn open_in(table: &Table, directory: &str, name: &str, mine: Option<&Held>) -> Result<Held, Why> {
    let refuse = |what| Why::Directory { path: directory.into(), what };
    let opened = secure_dir::directory(table, directory.as_bytes()).map_err(refuse)?;
    let path = format!("{directory}/group.{name}");
    if !lock(&opened) {
        return Err(Why::Busy { path: directory.into() });
    }
    let listed = secure_dir::c_string(format!("group.{name}").as_bytes()).and_then(|file| {
        let place = secure_dir::directory_in(table, &opened, &file)?;
        secure_dir::names(&place).map(|files| (place, files))
    });
    let (place, files) = listed.map_err(|what| Why::File { path: path.clone(), what })?;
    let group = Place { directory: place, files, table, path, name };
    let found = group.page_of(mine)?;
    let path = group.announce(&found).map_err(|what| group.wrong(what))?;
    let device = device_of(&path).ok_or_else(|| group.wrong(secure_dir::errno()))?;
    let Found { page, made, segment } = found;
    Ok(Held { page, made, segment, directory: directory.into(), path, device })
}

/// Locks the directory of group pages against other processes until it is closed: one process at a time
/// finds or creates a group, or two could create one each. False: another process still held the lock
/// after [`PATIENCE`].
fn lock(directory: &Opened) -> bool {
    let started = Instant::now();
    loop {
        // SAFETY: an open descriptor.
        if unsafe { libc::flock(directory.number(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return true;
        }
        if started.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The group's directory, under the lock.
struct Place<'t> {
    directory: Opened<'t>,
    files: Vec<CString>,
    table: &'t Table,
    path: String,
    name: &'t str,
}

/// A page that this process has attached.
#[derive(Clone, Copy)]
struct Found {
    page: GroupPage<'static>,
    made: u64,
    segment: i32,
}

/// The name of the file in it.
struct Entry {
    ipc_namespace: u64,
    segment: i32,
    made: u64,
}

impl Entry {
    fn parse(name: &str) -> Option<Entry> {
        let mut fields = name.split('.');
        let ipc_namespace = fields.next()?.parse().ok()?;
        let segment = fields.next()?.parse().ok().filter(|id| *id >= 0)?;
        let made = fields.next()?.parse().ok()?;
        fields.next().is_none().then_some(Entry { ipc_namespace, segment, made })
    }

    fn name(&self) -> String {
        format!("{}.{}.{}", self.ipc_namespace, self.segment, self.made)
    }
}

impl Place<'_> {
    /// The page that has the name, or that of this process if it is older. If neither is there, one that has lost its name;
    /// else a new one.
    fn page_of(&self, mine: Option<&Held>) -> Result<Found, Why> {
        let mine =
            mine.map(|held| Found { page: held.page, made: held.made, segment: held.segment });
        match (self.find(mine)?, mine) {
            (Some(found), Some(mine)) if mine.made < found.made => Ok(mine),
            (Some(found), _) => Ok(found),
            (None, mine) => match (self.nameless(mine), mine) {
                (Some(found), Some(mine)) if mine.made < found.made => Ok(mine),
                (Some(found), _) => Ok(found),
                (None, Some(mine)) => Ok(mine),
                (None, None) => self.make(),
            },
        }
    }

    /// The oldest page of this name that somebody has attached, but for this process's: its directory was removed while
    /// its members live.
    fn nameless(&self, mine: Option<Found>) -> Option<Found> {
        let mut oldest: Option<Found> = None;
        Memory::each_attached(|segment| {
            if mine.is_some_and(|mine| mine.segment == segment) {
                return;
            }
            let Ok(memory) = Memory::attach(segment) else { return };
            let is_it = |page: &GroupPage| page.is_group_of(self.name, Member::namespace());
            match GroupPage::look(memory.words).filter(is_it) {
                Some(page) if oldest.is_none_or(|oldest| page.made(1) < oldest.made) => {
                    oldest = Some(Found { page, made: page.made(1), segment });
                }
                _ => memory.detach(),
            }
        });
        oldest
    }

    /// Makes the file that names the page, unless it is there, and removes others. Returns its path.
    fn announce(&self, found: &Found) -> Result<CString, Wrong> {
        let mut there = None;
        for file in &self.files {
            let entry = file.to_str().ok().and_then(Entry::parse);
            match entry.filter(|entry| (entry.segment, entry.made) == (found.segment, found.made)) {
                Some(entry) => there = Some(entry.name()),
                None => secure_dir::remove(&self.directory, file)?,
            }
        }
        let name = there.map_or_else(|| self.add(found), Ok)?;
        secure_dir::c_string(format!("{}/{name}", self.path).as_bytes())
    }

    fn add(&self, found: &Found) -> Result<String, Wrong> {
        let ipc_namespace = Namespaces::of_this_process().ipc;
        let name = Entry { ipc_namespace, segment: found.segment, made: found.made }.name();
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
        let file = secure_dir::c_string(name.as_bytes())?;
        secure_dir::open(self.table, &self.directory, &file, flags).map(|_| name)
    }

    /// The page that the directory names. `None`: nobody has it any more.
    fn find(&self, mine: Option<Found>) -> Result<Option<Found>, Why> {
        for file in &self.files {
            let entry = file.to_str().ok().and_then(Entry::parse).ok_or_else(|| self.no_group())?;
            let (theirs, own) = (entry.ipc_namespace, Namespaces::of_this_process().ipc);
            if theirs != 0 && own != 0 && theirs != own {
                return Err(self.other_namespace());
            }
            if let Some(mine) = mine.filter(|mine| mine.made == entry.made) {
                return Ok(Some(mine));
            }
            let Entry { made, segment, .. } = entry;
            match self.attach(&entry)? {
                Some(page) => return Ok(Some(Found { page, made, segment })),
                // It may live where this process has no part of.
                None if own == 0 && theirs != 0 => return Err(self.other_namespace()),
                None => {}
            }
        }
        Ok(None)
    }

    /// `None`: no process has the segment attached, so the kernel has freed it.
    fn attach(&self, entry: &Entry) -> Result<Option<GroupPage<'static>>, Why> {
        let memory = match Memory::attach(entry.segment) {
            Ok(memory) => memory,
            // The id is unused, or another segment's by now.
            Err(Wrong::Errno(libc::EINVAL | libc::EIDRM | libc::EACCES)) => return Ok(None),
            Err(Wrong::OtherSize) => return self.other_version(entry).map(|()| None),
            Err(Wrong::Errno(errno)) => return Err(Why::NoSharedMemory { errno }),
            Err(what) => return Err(self.wrong(what)),
        };
        let page = GroupPage::look(memory.words);
        if page.is_none_or(|page| page.made(entry.made) != entry.made) {
            memory.detach();
            return self.other_version(entry).map(|()| None);
        }
        self.checked_page(memory).map(Some)
    }

    /// Fails if the segment is this group's page in the layout of another version: its processes live,
    /// and a second page would be a second budget.
    fn other_version(&self, entry: &Entry) -> Result<(), Why> {
        match segment::first_words(entry.segment) {
            Some(words) if group::is_of_other_version(words, entry.made) => {
                Err(Why::OtherVersion { path: self.path.clone() })
            }
            _ => Ok(()),
        }
    }

    fn make(&self) -> Result<Found, Why> {
        let memory = Memory::create().map_err(|wrong| {
            let Wrong::Errno(errno) = wrong else { return self.wrong(wrong) };
            Why::NoSharedMemory { errno }
        })?;
        let segment = memory.id;
        let page = self.checked_page(memory)?;
        page.is_named(self.name);
        let made = page.made(real_mono_ns());
        Ok(Found { page, made, segment })
    }

    /// The page in this memory, if it is a group page of this version and pid namespace.
    fn checked_page(&self, memory: Memory) -> Result<GroupPage<'static>, Why> {
        let namespace = Member::namespace();
        GroupPage::open(memory.words, namespace).map_err(|why| {
            // Otherwise a group whose members have all exited would exist as long as this process.
            memory.detach();
            match why {
                Unusable::NotAGroup => self.no_group(),
                Unusable::OtherNamespace => self.other_namespace(),
            }
        })
    }

    fn wrong(&self, what: Wrong) -> Why {
        Why::File { path: self.path.clone(), what }
    }

    fn no_group(&self) -> Why {
        Why::NotAGroup { path: self.path.clone() }
    }

    fn other_namespace(&self) -> Why {
        Why::OtherNamespace { path: self.path.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use vramtrace_format::proc::Life;

    /// A name that no other test process uses: a page is found by it.
    fn name(what: &str) -> String {
        format!("page-{what}-{}", std::process::id())
    }

    struct Scratch(String);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = format!("/dev/shm/vramtrace-test-{}-page-{name}", std::process::id());
            let _ = fs::remove_dir_all(&path);
            Scratch(path)
        }

        /// A file of this name in the group's directory, in place of the one that is there.
        fn put(&self, entry: &Entry) {
            let group = format!("{}/group.{}", self.0, name("a"));
            fs::read_dir(&group)
                .unwrap()
                .for_each(|file| fs::remove_file(file.unwrap().path()).unwrap());
            fs::write(format!("{group}/{}", entry.name()), "").unwrap();
        }

        fn entry(&self) -> Entry {
            let mut files = fs::read_dir(format!("{}/group.{}", self.0, name("a"))).unwrap();
            let name = files.next().unwrap().unwrap().file_name().into_string().unwrap();
            assert!(files.next().is_none());
            Entry::parse(&name).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn all_find_the_same_page_and_a_dead_one_is_made_anew() {
        let place = Scratch::new("same");
        let me = Member { pid: 1, segment: 2, made: 3 };
        let open = |what| open(&place.0, &name(what), None).map(|held| held.page);
        let first = open("a").ok().unwrap();
        let slot = first.join(me, |_| Life::Alive).unwrap();
        let device = first.device(&[1; 16], 0, 100).unwrap();
        first.set_member_limit(slot, device, Some(70));
        let entry = place.entry();
        assert_eq!(open("a").ok().unwrap().limit(device), Some(70));
        assert_eq!(open("b").ok().unwrap().members().count(), 0, "another group");
        // The id is another group's by now, or nobody's: the page is found by the name that it has.
        for wrong in [Entry { made: entry.made + 1, ..entry }, Entry { segment: i32::MAX, ..entry }]
        {
            place.put(&wrong);
            assert_eq!(open("a").ok().unwrap().limit(device), Some(70));
            assert_eq!(place.entry().name(), entry.name());
        }
        let other = Entry { ipc_namespace: 1, ..entry };
        place.put(&other);
        assert!(matches!(open("a"), Err(Why::OtherNamespace { .. })));
    }

    #[test]
    fn who_finds_it_locked_waits_and_gives_up() {
        let place = Scratch::new("locked");
        drop(open(&place.0, &name("a"), None));
        private_table::run(|table| {
            let directory = secure_dir::directory(table, place.0.as_bytes()).unwrap();
            assert!(lock(&directory));
            assert!(matches!(open(&place.0, &name("a"), None), Err(Why::Busy { .. })));
        })
        .unwrap();
        assert!(open(&place.0, &name("a"), None).is_ok());
    }
}
