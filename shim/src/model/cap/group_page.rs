//! Finds or creates the page of a group. It is named by a directory `group.NAME` with one empty file in
//! it, whose name gives the segment of shared memory.
//!
//! A directory and an empty file take no room: they can be created when the file system is full, or
//! under a file size limit of 0. They cannot be truncated.

use crate::runtime::clock::real_mono_ns;
use crate::runtime::errno;
use crate::runtime::private_table::{NoTask, Opened, Table};
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
    pub page: Page,
    /// The path of the file that names it, and the device on which that is.
    path: CString,
    device: u64,
}

/// A page that this process has attached.
#[derive(Clone, Copy)]
pub struct Page {
    pub words: GroupPage<'static>,
    /// When it was made: of two pages of one name the older one holds.
    pub made: u64,
    segment: i32,
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

/// Why a group cannot be joined where the system makes no task, which opens the files.
pub fn no_task(NoTask { errno }: NoTask) -> String {
    format!(
        "the system makes no thread to open the files of a group with (errno {errno}); raise \
         RLIMIT_NPROC or pids.max, or allow clone (seccomp)"
    )
}

/// The same where it gives no System V shared memory.
pub fn no_shared_memory(wrong: Wrong) -> String {
    let errno = if let Wrong::Errno(errno) = wrong { errno } else { 0 };
    format!(
        "a group needs System V shared memory (shmget, shmat): errno {errno}; raise \
         kernel.shmmni or kernel.shmall, or allow these calls (seccomp)"
    )
}

/// How often it is tried again where the directory was removed meanwhile.
const TRIES: u32 = 5;

/// Attaches the group's page, and creates it if there is none. It is never detached. `mine`: the page that this process
/// is in, which is the group's if it is the older one. `Err`: why not, and what would be right.
pub fn open(
    table: &Table,
    directory: &str,
    name: &str,
    mine: Option<Page>,
) -> Result<Held, String> {
    let path = format!("{directory}/group.{name}");
    let refuse = |what| format!("the directory {directory} {what}");
    let mut tries = 0;
    loop {
        let opened = secure_dir::directory(table, directory.as_bytes()).map_err(refuse)?;
        if !lock(&opened) {
            return Err(format!(
                "{directory} is locked by another process, which may be stopped; resume or end it"
            ));
        }
        tries += 1;
        match open_in(table, &opened, &path, name, mine) {
            Err(Failure::File(Wrong::Errno(libc::ENOENT))) if tries < TRIES => {}
            Err(Failure::File(what)) => return Err(format!("the file {path} {what}")),
            Err(Failure::Page(what)) => return Err(format!("{path} is {what}")),
            Err(Failure::Memory(wrong)) => return Err(no_shared_memory(wrong)),
            Ok(held) => return Ok(held),
        }
    }
}

enum Failure {
    /// Of the group's directory or a file in it.
    File(Wrong),
    /// What the page is instead.
    Page(&'static str),
    /// Of shared memory.
    Memory(Wrong),
}

impl From<Wrong> for Failure {
    fn from(what: Wrong) -> Failure {
        Failure::File(what)
    }
}

const NOT_A_GROUP: Failure =
    Failure::Page("not a group page of this version; remove it if no process uses it");
const OTHER_NAMESPACE: Failure = Failure::Page(
    "a group of another container, whose processes are not visible here; use another name, or \
     remove it if no process uses it",
);
const OTHER_VERSION: Failure = Failure::Page(
    "a group of another version of this library, and its processes run; use another name, or start \
     all processes of the group with one version",
);

/// In the directory of all groups, which is locked.
fn open_in(
    table: &Table,
    directory: &Opened,
    path: &str,
    name: &str,
    mine: Option<Page>,
) -> Result<Held, Failure> {
    let file = secure_dir::c_string(format!("group.{name}").as_bytes())?;
    let place = secure_dir::directory_in(table, directory, &file)?;
    let files = secure_dir::names(&place)?;
    let there = named(&files, mine)?.or_else(|| nameless(name, mine));
    // The older one; where two are one that is there.
    let page = match there.into_iter().chain(mine).min_by_key(|page| page.made) {
        Some(page) => page,
        None => make(name)?,
    };
    let file = announce(table, &place, &files, page)?;
    let path = secure_dir::c_string(format!("{path}/{file}").as_bytes())?;
    let device = device_of(&path).ok_or_else(secure_dir::errno)?;
    Ok(Held { page, path, device })
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

/// The name of the file in the group's directory.
struct Entry {
    ipc_namespace: u64,
    segment: i32,
    made: u64,
}

impl Entry {
    fn parse(name: &CStr) -> Option<Entry> {
        let mut fields = name.to_str().ok()?.split('.');
        let ipc_namespace = fields.next()?.parse().ok()?;
        let segment = fields.next()?.parse().ok().filter(|id| *id >= 0)?;
        let made = fields.next()?.parse().ok()?;
        fields.next().is_none().then_some(Entry { ipc_namespace, segment, made })
    }

    fn name(&self) -> String {
        format!("{}.{}.{}", self.ipc_namespace, self.segment, self.made)
    }
}

/// Makes the file that names the page, unless it is there, and removes others. Returns its name.
fn announce(table: &Table, place: &Opened, files: &[CString], page: Page) -> Result<String, Wrong> {
    let mut there = None;
    for file in files {
        let entry = Entry::parse(file);
        match entry.filter(|entry| (entry.segment, entry.made) == (page.segment, page.made)) {
            Some(entry) => there = Some(entry.name()),
            None => secure_dir::remove(place, file)?,
        }
    }
    if let Some(there) = there {
        return Ok(there);
    }
    let ipc_namespace = Namespaces::of_this_process().ipc;
    let name = Entry { ipc_namespace, segment: page.segment, made: page.made }.name();
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    let file = secure_dir::c_string(name.as_bytes())?;
    secure_dir::open(table, place, &file, flags).map(|_| name)
}

/// The page that the directory names. `None`: nobody has it any more.
fn named(files: &[CString], mine: Option<Page>) -> Result<Option<Page>, Failure> {
    for file in files {
        let entry = Entry::parse(file).ok_or(NOT_A_GROUP)?;
        let (theirs, own) = (entry.ipc_namespace, Namespaces::of_this_process().ipc);
        if theirs != 0 && own != 0 && theirs != own {
            return Err(OTHER_NAMESPACE);
        }
        if mine.is_some_and(|mine| mine.made == entry.made) {
            return Ok(mine);
        }
        let found = attach(&entry)?;
        if found.is_some() {
            return Ok(found);
        }
        // It may live where this process has no part of.
        if own == 0 && theirs != 0 {
            return Err(OTHER_NAMESPACE);
        }
    }
    Ok(None)
}

/// `None`: no process has the segment attached, so the kernel has freed it.
fn attach(entry: &Entry) -> Result<Option<Page>, Failure> {
    let &Entry { segment, made, .. } = entry;
    let memory = match Memory::attach(segment) {
        Ok(memory) => Some(memory),
        // The id is unused, or another segment's by now.
        Err(Wrong::Errno(libc::EINVAL | libc::EIDRM | libc::EACCES)) => return Ok(None),
        Err(Wrong::OtherSize) => None,
        Err(wrong @ Wrong::Errno(_)) => return Err(Failure::Memory(wrong)),
        Err(what) => return Err(what.into()),
    };
    if let Some(memory) = memory {
        let is_it = |page: &GroupPage| page.made(made) == made;
        if GroupPage::look(memory.words).is_some_and(|page| is_it(&page)) {
            let words = checked(memory)?;
            return Ok(Some(Page { words, made, segment }));
        }
        memory.detach();
    }
    // This group's page in the layout of another version: its processes live, and a second page would be a second budget.
    let first = segment::first_words(segment);
    match first.is_some_and(|words| group::is_of_other_version(words, made)) {
        true => Err(OTHER_VERSION),
        false => Ok(None),
    }
}

/// The oldest page of this name that somebody has attached, but for this process's: its directory was removed while
/// its members live.
fn nameless(name: &str, mine: Option<Page>) -> Option<Page> {
    let mut oldest: Option<Page> = None;
    Memory::each_attached(|segment| {
        if mine.is_some_and(|mine| mine.segment == segment) {
            return;
        }
        let Ok(memory) = Memory::attach(segment) else { return };
        let is_it = |page: &GroupPage| page.is_group_of(name, Member::namespace());
        match GroupPage::look(memory.words).filter(is_it) {
            Some(words) if oldest.is_none_or(|oldest| words.made(1) < oldest.made) => {
                oldest = Some(Page { words, made: words.made(1), segment });
            }
            _ => memory.detach(),
        }
    });
    oldest
}

fn make(name: &str) -> Result<Page, Failure> {
    let memory = Memory::create().map_err(Failure::Memory)?;
    let segment = memory.id;
    let words = checked(memory)?;
    words.is_named(name);
    Ok(Page { words, made: words.made(real_mono_ns()), segment })
}

/// The page in this memory, if it is a group page of this version and pid namespace.
fn checked(memory: Memory) -> Result<GroupPage<'static>, Failure> {
    GroupPage::open(memory.words, Member::namespace()).map_err(|why| {
        // Otherwise a group whose members have all exited would exist as long as this process.
        memory.detach();
        match why {
            Unusable::NotAGroup => NOT_A_GROUP,
            Unusable::OtherNamespace => OTHER_NAMESPACE,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::private_table;
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
            Entry::parse(&CString::new(name).unwrap()).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// In a task.
    fn open(place: &Scratch, what: &str) -> Result<GroupPage<'static>, String> {
        let open = |table: &_| super::open(table, &place.0, &name(what), None);
        private_table::run(open).unwrap().map(|held| held.page.words)
    }

    #[test]
    fn all_find_the_same_page_and_a_dead_one_is_made_anew() {
        let place = Scratch::new("same");
        let me = Member { pid: 1, segment: 2, made: 3 };
        let open = |what| open(&place, what);
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
        assert!(open("a").is_err_and(|why| why.contains("of another container")));
    }

    #[test]
    fn who_finds_it_locked_waits_and_gives_up() {
        let place = Scratch::new("locked");
        assert!(open(&place, "a").is_ok());
        private_table::run(|table| {
            let directory = secure_dir::directory(table, place.0.as_bytes()).unwrap();
            assert!(lock(&directory));
            assert!(open(&place, "a").is_err_and(|why| why.contains("is locked")));
        })
        .unwrap();
        assert!(open(&place, "a").is_ok());
    }
}
