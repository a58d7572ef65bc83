//! The live page.

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicU64;
use vramtrace_format::LivePage;
use vramtrace_format::live::{LIVE_WORDS, LiveState};

/// A directory in memory: live pages lie on no other.
fn shared() -> Option<Scratch> {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        eprintln!("SKIP live pages: there is no /dev/shm");
        return None;
    }
    Some(Scratch::below(memory, "live"))
}

fn open(path: &Path) -> LivePage<'static> {
    let bytes = std::fs::read(path).unwrap();
    let words: Vec<AtomicU64> = bytes
        .chunks_exact(8)
        .map(|word| AtomicU64::new(u64::from_le_bytes(word.try_into().unwrap())))
        .collect();
    let words: Box<[AtomicU64; LIVE_WORDS]> = words.try_into().unwrap();
    LivePage::open(Box::leak(words)).unwrap()
}

fn in_runtime(runtime: &Path) -> impl FnOnce(&mut Recorder) {
    let runtime = runtime.to_path_buf();
    move |recorder| recorder.runtime_directory = Some(runtime)
}

#[test]
fn a_page_from_the_first_use_to_the_end() {
    let (Some(runtime), traces) = (shared(), Scratch::new("live")) else { return };
    let directory = runtime.path().join("vramtrace");
    let recorder = recorder(traces.path(), "unlimited", in_runtime(runtime.path()));
    recorder.start();
    assert_eq!(std::fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    let pid = std::process::id();
    let start = identity::start_ticks("self").unwrap();
    let file = directory.join(format!("{pid}.{start}"));
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

    recorder.end(&fake);
    assert!(!file.exists());
    // Late threads may still come.
    fake.free(recorder, 1 << 24);
}

#[test]
fn pages_of_the_dead_go_and_strangers_stay() {
    let (Some(runtime), traces) = (shared(), Scratch::new("stale")) else { return };
    let directory = runtime.path().join("vramtrace");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    let parent = unsafe { libc::getppid() };
    let alive = format!("{parent}.{}", identity::start_ticks(&parent.to_string()).unwrap());
    for name in ["4194305.77", &format!("{parent}.1"), &alive, "notes", "1.x"] {
        std::fs::write(directory.join(name), "").unwrap();
    }
    let recorder = recorder(traces.path(), "unlimited", in_runtime(runtime.path()));
    recorder.start();
    recorder.end(&Fake::default());
    let mut names: Vec<String> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut expected = vec!["1.x".to_string(), alive, "notes".to_string()];
    expected.sort();
    assert_eq!(names, expected);
}

#[test]
fn a_directory_of_others_is_not_used() {
    let (Some(runtime), traces) = (shared(), Scratch::new("others")) else { return };
    let directory = runtime.path().join("vramtrace");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    let open_to_all = recorder(traces.path(), "off", in_runtime(runtime.path()));
    open_to_all.start();
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    open_to_all.end(&Fake::default());

    std::fs::remove_dir(&directory).unwrap();
    let elsewhere = runtime.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &directory).unwrap();
    let linked = recorder(traces.path(), "unlimited", in_runtime(runtime.path()));
    linked.start();
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
    linked.end(&Fake::default());
}
