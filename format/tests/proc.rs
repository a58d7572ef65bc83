//! Processes as /proc shows them: real ones.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vramtrace_format::proc::{self, Life, Stat};

/// A Python that runs this and says "ready".
fn python(program: &str) -> Child {
    let mut child = Command::new("python3")
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

fn wait_until(what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !what() {
        assert!(Instant::now() < end, "it did not come to pass");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_process_is_alive_while_any_of_its_threads_is() {
    // System call 60 ends the calling thread alone: here the main one.
    let mut child = python(
        "import ctypes, sys, threading\n\
         threading.Thread(target=sys.stdin.read).start()\n\
         print('ready', flush=True)\n\
         ctypes.CDLL(None).syscall(60, 0)",
    );
    let pid = child.id();
    wait_until(|| Stat::of(pid).is_some_and(|stat| stat.state == b'Z'));
    let stat = Stat::of(pid).unwrap();
    assert!(stat.is_alive() && proc::is_alive(pid, stat.start_ticks), "{stat:?}");
    assert!(!proc::is_alive(pid, stat.start_ticks + 2), "its pid, and another start");
    // Its last thread ends; it is a zombie until somebody waits for it.
    drop(child.stdin.take());
    wait_until(|| !Stat::of(pid).unwrap().is_alive());
    assert_eq!(Stat::of(pid).unwrap().state, b'Z');
    assert!(!proc::is_alive(pid, stat.start_ticks));
    assert_eq!(Life::of_holder(pid, Some(false), || true), Life::Dead, "a zombie holds nothing");
    child.wait().unwrap();
    assert_eq!(Stat::of(pid), None);
}

#[test]
fn a_name_of_any_bytes_is_read() {
    let mut child = python(
        "import sys\n\
         open('/proc/self/comm', 'wb').write(b') Z \\xff (')\n\
         print('ready', flush=True)\n\
         sys.stdin.read()",
    );
    let stat = Stat::of(child.id()).unwrap();
    assert_eq!(stat.name, b") Z \xFF (");
    assert_eq!(stat.parent, std::process::id());
    assert!(stat.is_alive() && stat.start_ticks > 0);
    drop(child.stdin.take());
    child.wait().unwrap();
}
