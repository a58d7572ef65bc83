//! Signals come anywhere: in the program's malloc, in our hooks, in a handler that is in one.

mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};
use support::{Scratch, command, shim};

#[test]
fn a_signal_handler_that_allocates_never_deadlocks() {
    let dir = Scratch::new();
    let soname = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
    dir.compile("blocking", "libcuda.so.1", &soname);
    let program = dir.compile("signals", "signals", &["-pthread", "-L.", "-l:libcuda.so.1"]);
    let full = std::env::var_os("VRAMTRACE_TEST_FULL").is_some();
    let seconds = if full { 60.0 } else { 4.0 };
    let mut child = command(&program, &dir.0)
        .arg(seconds.to_string())
        .env("LD_PRELOAD", shim())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let limit = Instant::now() + Duration::from_secs_f64(seconds + 60.0);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > limit {
            child.kill().unwrap();
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let handled: u32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    assert!(handled > 1000, "{handled} signals: the test proves nothing");
    assert!(dir.files().iter().any(|name| name.ends_with(".vtrace")));
}
