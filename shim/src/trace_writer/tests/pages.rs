//! The live page.

use super::*;
use crate::runtime::segment::Segment;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicU64;
use vramtrace_format::LivePage;
use vramtrace_format::live::{LIVE_WORDS, LiveState};
use vramtrace_format::member::Namespaces;
use vramtrace_format::name::PageName;
use vramtrace_format::proc::Stat;

/// A directory in memory: live pages lie on no other.
fn shared() -> Option<Scratch> {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        testkit::skip("live pages: there is no /dev/shm");
        return None;
    }
    Some(Scratch::below(memory, "live"))
}

/// The page that lies in the segment which its file names.
fn open(file: &Path) -> LivePage<'static> {
    let name = PageName::parse(file.file_name().unwrap().to_str().unwrap()).unwrap();
    let segment = name.segment(Namespaces::of_this_process()).unwrap();
    LivePage::open(Segment::attach(segment).ok().unwrap().words).unwrap()
}

/// The page as it was copied into its file.
fn copied(file: &Path) -> LivePage<'static> {
    let bytes = std::fs::read(file).unwrap();
    let words: Vec<AtomicU64> = bytes
        .chunks_exact(8)
        .take(LIVE_WORDS)
        .map(|word| AtomicU64::new(u64::from_le_bytes(word.try_into().unwrap())))
        .collect();
    let words: Box<[AtomicU64; LIVE_WORDS]> = words.try_into().unwrap();
    LivePage::open(Box::leak(words)).unwrap()
}

/// The file of this process's page.
fn own_file(directory: &Path) -> PathBuf {
    let start = Stat::of_this_process().unwrap().start_ticks;
    let prefix = format!("{}.{start}.", std::process::id());
    let mut names = names(directory).into_iter().filter(|name| name.starts_with(&prefix));
    let file = names.next().unwrap();
    assert_eq!(names.next(), None);
    directory.join(file)
}

fn in_runtime(runtime: &Path) -> Config {
    let mut config = Config::from(std::iter::empty());
    config.runtime_directory = Some(runtime.into());
    config
}

#[test]
fn a_page_from_the_first_use_to_the_end() {
    let (Some(runtime), traces) = (shared(), Scratch::new("live")) else { return };
    let directory = runtime.path().join("vramtrace");
    let recorder = recorder(traces.path(), "unlimited", |_| ());
    recorder.start(&in_runtime(runtime.path()));
    assert_eq!(std::fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    let pid = std::process::id();
    let start = Stat::of_this_process().unwrap().start_ticks;
    let file = own_file(&directory);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let page = open(&file);
    let process = page.process();
    assert_eq!((process.pid, process.start_ticks, process.trace.as_str()), (pid, start, ""));
    assert_eq!(page.state(), Some(LiveState::Loaded));

    let fake = Fake::default();
    fake.allocate(recorder, 1 << 21, 3 << 20, site(recorder, 0));
    fake.allocate(recorder, 1 << 24, 1 << 21, site(recorder, 0));
    // The figures follow at the next call that comes a millisecond later.
    std::thread::sleep(std::time::Duration::from_millis(2));
    fake.free(recorder, 1 << 21);
    let page = open(&file);
    assert_eq!(page.state(), Some(LiveState::Recording));
    let trace = traces.path().join("trace.vtrace");
    assert_eq!(page.process().trace, trace.to_str().unwrap());
    let (_, devices) = page.devices();
    assert_eq!((devices[0].live, devices[0].peak), (2 << 20, 6 << 20));
    // For a program with few calls the copy is exact too, even if the file was overwritten.
    assert_eq!(copied(&file).devices(), page.devices());
    std::fs::write(&file, [0xFF; 20_000]).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    let again = |fake: &Fake| {
        std::thread::sleep(std::time::Duration::from_millis(2));
        fake.allocate(recorder, 1 << 30, 1 << 20, site(recorder, 0));
        fake.free(recorder, 1 << 30);
        assert_eq!(copied(&own_file(&directory)).devices(), page.devices());
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    };
    again(&fake);
    std::fs::remove_file(&file).unwrap();
    again(&fake);

    recorder.end(&fake);
    assert!(!file.exists());
    // Late threads may still come.
    fake.free(recorder, 1 << 24);
}

/// A program that makes blocks for a long time calls no driver: what its last call changed is shown after a block.
#[test]
fn a_block_brings_to_the_page_what_calls_before_it_changed() {
    let (Some(runtime), traces) = (shared(), Scratch::new("behind")) else { return };
    let recorder = recorder(traces.path(), "unlimited", |_| ());
    recorder.start(&in_runtime(runtime.path()));
    let page = open(&own_file(&runtime.path().join("vramtrace")));
    let (fake, site) = (Fake::default(), site(recorder, 0));
    let shown = || page.devices().1.first().map_or(0, |device| device.live);
    let mut live = 0;
    // The page follows the first calls at once, later ones after a millisecond.
    while shown() == live {
        live += 2 << 20;
        assert!(live < 1 << 40);
        fake.allocate(recorder, live, 2 << 20, site);
    }
    std::thread::sleep(std::time::Duration::from_millis(2));
    recorder.record_free(recorder.now_ns(), 0x200, Space::Block, SiteId(0));
    assert!(recorder.is_due_after_block());
    recorder.maintain(&fake, false);
    assert_eq!(shown(), live);
    recorder.end(&fake);
}

#[test]
fn pages_of_the_dead_go_and_strangers_stay() {
    let (Some(runtime), traces) = (shared(), Scratch::new("stale")) else { return };
    let directory = runtime.path().join("vramtrace");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    let here = Namespaces::of_this_process();
    let parent = std::os::unix::process::parent_id();
    let start = Stat::of(parent).unwrap().start_ticks;
    let name = |pid, start_ticks, namespaces, id| {
        PageName { pid, start_ticks, namespaces, id }.to_string()
    };
    let (dead, elsewhere) = (4194305, Namespaces { pid: 1, ..here });
    let segment = Segment::<LIVE_WORDS>::create().ok().unwrap().id;
    let stay = [
        name(parent, start, here, Some(segment)),
        // Whether they live cannot be known from here.
        name(dead, 77, elsewhere, None),
        name(dead, 77, elsewhere, Some(segment)),
        name(dead, 77, Namespaces { pid: 1, ipc: 1 }, Some(i32::MAX)),
        format!("{dead}.77"),
        "notes".into(),
        "1.x".into(),
    ];
    let go = [
        name(dead, 77, here, None),
        // Another's segment, of the same id.
        name(dead, 77, here, Some(segment)),
        // Nobody has the segment.
        name(parent, start, here, Some(i32::MAX)),
        name(parent, 1, here, None),
        // Nobody has the segment.
        name(dead, 77, elsewhere, Some(i32::MAX)),
        // What this process was before an exec.
        name(std::process::id(), Stat::of_this_process().unwrap().start_ticks, here, Some(segment)),
    ];
    for name in stay.iter().chain(&go) {
        std::fs::write(directory.join(name), "").unwrap();
    }
    let recorder = recorder(traces.path(), "unlimited", |_| ());
    recorder.start(&in_runtime(runtime.path()));
    recorder.end(&Fake::default());
    let mut expected = stay.to_vec();
    expected.sort();
    assert_eq!(names(&directory), expected);
}

#[test]
fn a_directory_of_others_is_not_used() {
    let (Some(runtime), traces) = (shared(), Scratch::new("others")) else { return };
    let directory = runtime.path().join("vramtrace");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    let open_to_all = recorder(traces.path(), "off", |_| ());
    open_to_all.start(&in_runtime(runtime.path()));
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    open_to_all.end(&Fake::default());

    std::fs::remove_dir(&directory).unwrap();
    let elsewhere = runtime.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &directory).unwrap();
    let linked = recorder(traces.path(), "unlimited", |_| ());
    linked.start(&in_runtime(runtime.path()));
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
    linked.end(&Fake::default());
}

/// Whether somebody holds a lock on a file.
fn is_locked(file: &Path) -> bool {
    let file = std::fs::File::open(file).unwrap();
    // SAFETY: a structure for which zeros are a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    // SAFETY: a structure of our own.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) }, 0);
    lock.l_type != libc::F_UNLCK as i16
}

#[test]
fn the_file_is_locked_for_as_long_as_the_process_lives_and_not_by_its_children() {
    let (Some(runtime), traces) = (shared(), Scratch::new("locked")) else { return };
    let directory = runtime.path().join("vramtrace");
    let recorder = recorder(traces.path(), "unlimited", |_| ());
    recorder.start(&in_runtime(runtime.path()));
    let file = own_file(&directory);
    assert!(is_locked(&file) && copied(&file).is_locked() && open(&file).is_locked());
    let fake = Fake::default();
    let copy_again = |address| {
        std::thread::sleep(std::time::Duration::from_millis(2));
        fake.allocate(recorder, address, 1 << 20, site(recorder, 0));
    };
    // A file that is made again is locked again.
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap();
    let place = directory.to_str().unwrap();
    let mapped = || maps().lines().filter(|line| line.contains(place)).count();
    for address in [1 << 24, 1 << 25] {
        std::fs::remove_file(&file).unwrap();
        copy_again(address);
        assert!(is_locked(&file) && copied(&file).is_locked());
        assert_eq!(mapped(), 1, "the one before is not kept");
    }
    let in_child = testkit::in_child(|| mapped() == 0);
    assert_eq!(in_child, Ok(true), "a child would keep the lock");
    let owner = copied(&file).owner();
    let test = std::env::current_exe().unwrap();
    assert_eq!(Some(&*owner.executable), test.file_name().unwrap().to_str());
    recorder.end(&fake);
}

#[test]
fn files_of_ended_processes_in_other_namespaces_go_by_their_lock() {
    let (Some(runtime), traces) = (shared(), Scratch::new("unlocked")) else { return };
    let given = runtime.path().join(vramtrace_format::memory::name(testkit::user()));
    std::fs::create_dir(&given).unwrap();
    std::fs::set_permissions(&given, std::fs::Permissions::from_mode(0o700)).unwrap();
    let name = |pid| {
        let namespaces = Namespaces { pid: 1, ipc: 1 };
        given.join(PageName { pid, start_ticks: 77, namespaces, id: Some(1) }.to_string())
    };
    let write = |file: &Path, locked: bool| {
        let words: Vec<AtomicU64> = (0..LIVE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let words: Box<[AtomicU64; LIVE_WORDS]> = words.try_into().unwrap();
        LivePage::begin(&words, &vramtrace_format::LiveProcess::default()).set_locked(locked);
        let word = |word: &AtomicU64| word.load(std::sync::atomic::Ordering::Relaxed).to_ne_bytes();
        std::fs::write(file, words.iter().flat_map(word).collect::<Vec<u8>>()).unwrap();
    };
    let (living, unknown, ended, empty) = (name(7), name(8), name(9), name(10));
    write(&living, true);
    write(&unknown, false);
    write(&ended, true);
    std::fs::write(&empty, "").unwrap();
    let lock = std::fs::File::options().write(true).open(&living).unwrap();
    // SAFETY: a structure for which zeros are a value.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = libc::F_WRLCK as i16;
    // SAFETY: a structure of our own.
    assert_eq!(unsafe { libc::fcntl(lock.as_raw_fd(), libc::F_OFD_SETLK, &whole) }, 0);
    let recorder = recorder(traces.path(), "unlimited", |_| ());
    let mut config = Config::from(std::iter::empty());
    config.live_directory = Some(runtime.path().into());
    recorder.start(&config);
    let own = own_file(&given);
    recorder.end(&Fake::default());
    assert!(!own.exists());
    let left = [living, unknown, ended, empty].map(|file| file.exists());
    assert_eq!(left, [true, true, false, true]);
}
