//! Finds or creates the page of a group. It is named by a directory `group.NAME` with one empty file in
//! it, whose name gives the segment of shared memory.
//!
//! A directory and an empty file take no room: they can be created when the file system is full, or
//! under a file size limit of 0. They cannot be truncated, and earlier versions, whose page is a file
//! of this name, refuse a directory.

use super::group::Why;
use crate::runtime::clock::real_mono_ns;
use crate::runtime::private_table::{self, NoTask, Opened, Table};
use crate::runtime::secure_dir::{self, Wrong};
use crate::runtime::segment::{self, Segment};
use crate::runtime::system;
use std::ffi::CStr;
use std::time::{Duration, Instant};
use vramtrace_format::group::{self, GROUP_WORDS, GroupPage, Unusable};
use vramtrace_format::member::{Member, Namespaces};

type Memory = Segment<GROUP_WORDS>;

/// How long to wait for the lock. Its holder makes a few system calls only, so one that holds it for
/// this long is stopped.
const PATIENCE: Duration = Duration::from_secs(2);

/// Attaches the group's page, and creates it if there is none. It is never detached.
pub fn open(directory: &str, name: &str) -> Result<GroupPage<'static>, Why> {
    private_table::run(|table| open_in(table, directory, name))
        .unwrap_or_else(|NoTask { errno }| Err(Why::NoTask { errno }))
}

fn open_in(table: &Table, directory: &str, name: &str) -> Result<GroupPage<'static>, Why> {
    let refuse = |what| Why::Directory { path: directory.into(), what };
    let opened = secure_dir::directory(table, directory.as_bytes()).map_err(refuse)?;
    let path = format!("{directory}/group.{name}");
    if !lock(&opened) {
        return Err(Why::Busy { path: directory.into() });
    }
    let name = secure_dir::c_string(format!("group.{name}").as_bytes());
    let name = name.map_err(|what| Why::File { path: path.clone(), what })?;
    let group = Place { directory: open_place(table, &opened, &name, &path)?, table, path };
    match group.find()? {
        Some(page) => Ok(page),
        None => group.make(),
    }
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

fn open_place<'t>(
    table: &'t Table,
    directory: &Opened,
    name: &CStr,
    path: &str,
) -> Result<Opened<'t>, Why> {
    let opened = match secure_dir::directory_in(table, directory, name) {
        Err(Wrong::Errno(libc::ENOTDIR)) => {
            remove_earlier(table, directory, name, path)?;
            secure_dir::directory_in(table, directory, name)
        }
        other => other,
    };
    opened.map_err(|what| Why::File { path: path.into(), what })
}

/// Removes the page of an earlier version, which was a file, if all of its members have exited.
fn remove_earlier(table: &Table, directory: &Opened, name: &CStr, path: &str) -> Result<(), Why> {
    let wrong = |what| Why::File { path: path.into(), what };
    let file = secure_dir::open(table, directory, name, libc::O_RDONLY).map_err(wrong)?;
    let stat = secure_dir::checked_stat(&file).map_err(wrong)?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG || stat.st_nlink != 1 {
        return Err(wrong(Wrong::NotPlain));
    }
    let read = |at, words: &mut [u64]| {
        // SAFETY: room for as many bytes.
        unsafe { system::pread(file.number(), words.as_mut_ptr().cast(), words.len() * 8, at) > 0 }
    };
    match earlier::living_member(read) {
        Ok(None) => {
            let _ = secure_dir::remove(directory, name);
            Ok(())
        }
        Ok(Some(pid)) => Err(Why::EarlierVersion { path: path.into(), pid }),
        Err(earlier::Unknown::NotAGroup) => Err(Why::NotAGroup { path: path.into() }),
        Err(earlier::Unknown::OtherNamespace) => Err(Why::OtherNamespace { path: path.into() }),
    }
}

/// The layout of a group's file in earlier versions.
mod earlier {
    use super::Member;

    pub enum Unknown {
        NotAGroup,
        OtherNamespace,
    }

    const MAGIC: u64 = u64::from_le_bytes(*b"vtgroup1");
    const MEMBERS_AT: i64 = 256;
    const MEMBERS: i64 = 256;

    /// The pid of a live member, if there is one. `read` reads words at a byte offset.
    #[allow(clippy::disallowed_methods)] // in a task
    pub fn living_member(read: impl Fn(i64, &mut [u64]) -> bool) -> Result<Option<u32>, Unknown> {
        let mut head = [0; 2];
        if !read(0, &mut head) || head[0] != MAGIC {
            return Err(Unknown::NotAGroup);
        }
        if head[1] != Member::namespace() {
            return Err(Unknown::OtherNamespace);
        }
        let member = |slot| {
            let mut words = [0; 2];
            let there = read((MEMBERS_AT + 2 * slot) * 8, &mut words) && words[0] != 0;
            there.then(|| Member::from_words(words[0] & !(1 << 63), words[1]))
        };
        let living = (0..MEMBERS).filter_map(member).find(Member::is_alive);
        Ok(living.map(|member| member.pid))
    }
}

/// The group's directory, under the lock.
struct Place<'t> {
    directory: Opened<'t>,
    table: &'t Table,
    path: String,
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
    /// The page of the group's live members. Removes the remains of a group that has ended.
    fn find(&self) -> Result<Option<GroupPage<'static>>, Why> {
        for file in secure_dir::names(&self.directory).map_err(|what| self.wrong(what))? {
            let entry = file.to_str().ok().and_then(Entry::parse).ok_or_else(|| self.no_group())?;
            if entry.ipc_namespace != Namespaces::of_this_process().ipc {
                return Err(self.other_namespace());
            }
            match self.attach(&entry)? {
                Some(page) => return Ok(Some(page)),
                None => self.remove(&file)?,
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

    fn make(&self) -> Result<GroupPage<'static>, Why> {
        let memory = Memory::create().map_err(|wrong| {
            let Wrong::Errno(errno) = wrong else { return self.wrong(wrong) };
            Why::NoSharedMemory { errno }
        })?;
        let segment = memory.id;
        let page = self.checked_page(memory)?;
        let made = page.made(real_mono_ns());
        let ipc_namespace = Namespaces::of_this_process().ipc;
        self.add(&Entry { ipc_namespace, segment, made }.name())?;
        Ok(page)
    }

    /// The page in this memory, if it is a group page of this version and pid namespace.
    fn checked_page(&self, memory: Memory) -> Result<GroupPage<'static>, Why> {
        GroupPage::open(memory.words, Member::namespace()).map_err(|why| {
            // Otherwise a group whose members have all exited would exist as long as this process.
            memory.detach();
            match why {
                Unusable::NotAGroup => self.no_group(),
                Unusable::OtherNamespace => self.other_namespace(),
            }
        })
    }

    fn add(&self, name: &str) -> Result<(), Why> {
        let name = secure_dir::c_string(name.as_bytes()).map_err(|what| self.wrong(what))?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
        let made = secure_dir::open(self.table, &self.directory, &name, flags);
        made.map(drop).map_err(|what| self.wrong(what))
    }

    fn remove(&self, file: &CStr) -> Result<(), Why> {
        secure_dir::remove(&self.directory, file).map_err(|what| self.wrong(what))
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
    use std::os::unix::fs::PermissionsExt;

    struct Scratch(String);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = format!("/dev/shm/vramtrace-test-{}-page-{name}", std::process::id());
            let _ = fs::remove_dir_all(&path);
            Scratch(path)
        }

        /// A file of this name in the group's directory, in place of the one that is there.
        fn put(&self, entry: &Entry) {
            let group = format!("{}/group.a", self.0);
            fs::read_dir(&group)
                .unwrap()
                .for_each(|file| fs::remove_file(file.unwrap().path()).unwrap());
            fs::write(format!("{group}/{}", entry.name()), "").unwrap();
        }

        fn entry(&self) -> Entry {
            let mut files = fs::read_dir(format!("{}/group.a", self.0)).unwrap();
            let name = files.next().unwrap().unwrap().file_name().into_string().unwrap();
            assert!(files.next().is_none());
            Entry::parse(&name).unwrap()
        }

        fn earlier(&self, words: &[u64]) {
            let file = format!("{}/group.a", self.0);
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            bytes.resize(73728, 0);
            fs::write(&file, bytes).unwrap();
            fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
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
        let me = Member::of_this_process().unwrap();
        let first = open(&place.0, "a").ok().unwrap();
        let slot = first.join(me, |_| true).unwrap();
        let device = first.device(&[1; 16], 0, 100).unwrap();
        first.set_member_limit(slot, device, Some(70));
        let entry = place.entry();
        assert_eq!(open(&place.0, "a").ok().unwrap().limit(device), Some(70));
        assert_eq!(open(&place.0, "b").ok().unwrap().members().count(), 0, "another group");
        // The id is another group's by now.
        place.put(&Entry { made: entry.made + 1, ..entry });
        assert_eq!(open(&place.0, "a").ok().unwrap().members().count(), 0);
        place.put(&Entry { segment: i32::MAX, ..entry });
        assert_eq!(open(&place.0, "a").ok().unwrap().members().count(), 0);
        let other = Entry { ipc_namespace: 1, ..entry };
        place.put(&other);
        assert!(matches!(open(&place.0, "a"), Err(Why::OtherNamespace { .. })));
    }

    #[test]
    fn the_file_of_an_earlier_version_goes_when_its_members_are_dead() {
        let place = Scratch::new("earlier");
        drop(open(&place.0, "a"));
        let me = Member::of_this_process().unwrap();
        let magic = u64::from_le_bytes(*b"vtgroup1");
        let mut words = vec![0; 512];
        for (member, namespace) in [(me, 0), (me, 1), (Member { start_ticks: 1, ..me }, 0)] {
            let _ = fs::remove_dir_all(format!("{}/group.a", place.0));
            (words[0], words[1]) = (magic, Member::namespace() + namespace);
            (words[256 + 2 * 9], words[256 + 2 * 9 + 1]) = (member.to_word(), member.image);
            place.earlier(&words);
            match (open(&place.0, "a"), member == me, namespace) {
                (Err(Why::EarlierVersion { pid, .. }), true, 0) => assert_eq!(pid, me.pid),
                (Err(Why::OtherNamespace { .. }), _, 1) => {}
                (Ok(_), false, 0) => {}
                (other, ..) => panic!("{:?}", other.err()),
            }
            let _ = fs::remove_file(format!("{}/group.a", place.0));
        }
    }

    #[test]
    fn who_finds_it_locked_waits_and_gives_up() {
        let place = Scratch::new("locked");
        drop(open(&place.0, "a"));
        private_table::run(|table| {
            let directory = secure_dir::directory(table, place.0.as_bytes()).unwrap();
            assert!(lock(&directory));
            assert!(matches!(open(&place.0, "a"), Err(Why::Busy { .. })));
        })
        .unwrap();
        assert!(open(&place.0, "a").is_ok());
    }
}
