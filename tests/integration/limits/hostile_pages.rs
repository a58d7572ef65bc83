//! `ps` and `top` with a directory of pages in which something went wrong, on purpose or not: they end, print
//! few lines, and no figure that means nothing.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use testkit::{SharedMemory, SharedSegment};
use vramtrace_format::live::{LIVE_WORDS, LiveState};
use vramtrace_format::member::Namespaces;
use vramtrace_format::proc::Stat;
use vramtrace_format::{LiveDevice, LivePage, LiveProcess};

/// A page of this process, with these devices.
fn page(me: &Stat, devices: &[LiveDevice]) -> Vec<u64> {
    let words: Vec<_> = (0..LIVE_WORDS).map(|_| std::sync::atomic::AtomicU64::new(0)).collect();
    let words: Box<[_; LIVE_WORDS]> = words.into_boxed_slice().try_into().unwrap();
    let process =
        LiveProcess { pid: me.pid, start_ticks: me.start_ticks, ..LiveProcess::default() };
    let page = LivePage::begin(&words, &process);
    page.set_state(LiveState::Recording);
    page.update(1, devices);
    words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
}

fn absurd() -> LiveDevice {
    LiveDevice {
        live: u64::MAX,
        counted: u64::MAX - 1,
        cap: Some(u64::MAX - 1),
        allocations: u64::MAX,
        refused_by_cap: u64::MAX,
        refused_by_driver: u64::MAX,
        warned: u64::MAX,
        ..LiveDevice::default()
    }
}

fn write(file: &Path, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    fs::write(file, bytes).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

fn directory(memory: &SharedMemory) -> std::path::PathBuf {
    let directory = memory.0.join("vramtrace");
    fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
    directory
}

/// Has one row of this process; what was printed on stderr. Other tests have pages too.
#[track_caller]
fn is_seen(memory: &SharedMemory, command: &str, pid: u32) -> (String, String) {
    let (status, out, err) = memory.command(&["timeout", "60"], &[command]);
    assert_eq!(status, 0, "{command}: {err}");
    let rows = out.lines().filter(|line| line.split_whitespace().next() == Some(&pid.to_string()));
    assert_eq!(rows.count(), 1, "{out}");
    (out, err)
}

/// Looks while a file grows and is cut all the time.
pub fn while_it_changes(file: &Path, look: impl Fn() + std::panic::RefUnwindSafe) {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs::File::options().write(true).open(file).unwrap();
            while !ends.load(Ordering::Relaxed) {
                std::thread::yield_now();
                for length in [0, 100, 8192, 16384, 1 << 40] {
                    file.set_len(length).unwrap();
                }
            }
        });
        let looks = std::panic::catch_unwind(|| (0..10).for_each(|_| look()));
        ends.store(true, Ordering::Relaxed);
        assert!(looks.is_ok());
    });
}

#[test]
fn many_pages_that_are_none_are_a_few_lines() {
    let (memory, me) = (SharedMemory::new(), Stat::of_this_process().unwrap());
    let directory = directory(&memory);
    let at = |name: &str| directory.join(name);
    let device = absurd();
    let here = Namespaces::of_this_process();
    let place = format!("{}.{}.{}.-", me.start_ticks, here.pid, here.ipc);
    write(&at(&format!("{}.{place}", me.pid)), &page(&me, &[device, device]));
    // Other names of the same process: cut, a FIFO, links, open to others, without end.
    for n in 0..1000 {
        let file = at(&format!("{:0>1$}.{place}", me.pid, 12 + n / 20));
        match n % 20 {
            0 => write(&file, &[7; 3]),
            1 => {
                let name = CString::new(file.as_os_str().as_bytes()).unwrap();
                // SAFETY: a C string.
                unsafe { libc::mkfifo(name.as_ptr(), 0o600) };
            }
            2 => drop(symlink("/dev/zero", &file)),
            3 => drop(fs::hard_link(at("0.0"), &file)),
            _ => {}
        }
    }
    // Of processes that are gone, and of none.
    for n in 0..20_000 {
        fs::write(at(&format!("4194304.{n}.{}.{}.-", here.pid, here.ipc)), "").unwrap();
        fs::write(at(&format!("no page {n}\u{1b}[2J")), "").unwrap();
    }
    for command in ["ps", "top"] {
        let (out, err) = is_seen(&memory, command, me.pid);
        assert!(!out.contains('\u{1b}') && !err.contains("[2J"), "{err}");
        assert!(err.lines().count() <= 12, "{command}: {} lines", err.lines().count());
    }
}

#[test]
fn a_page_that_changes_all_the_time_and_a_segment_of_any_length_are_read_once() {
    let (memory, me) = (SharedMemory::new(), Stat::of_this_process().unwrap());
    let directory = directory(&memory);
    let mut words = page(&me, &[absurd()]);
    // An update that never ends.
    words[6] = 7;
    // 8 MiB of memory behind the page.
    words.resize(1 << 20, 0);
    let segment = SharedSegment::new(&words);
    let here = Namespaces::of_this_process();
    let name = format!("{}.{}.{}.{}.{}", me.pid, me.start_ticks, here.pid, here.ipc, segment.id);
    write(&directory.join(name), &words[..LIVE_WORDS]);
    let file = directory.join(format!("{}.{}.{}.{}.-", me.pid, me.start_ticks, here.pid, here.ipc));
    write(&file, &words[..LIVE_WORDS]);
    while_it_changes(&file, || drop(is_seen(&memory, "ps", me.pid)));
}
