//! A call that is left by unwinding (a cancelled thread, an exception) is left as without us, and
//! what follows is still recorded.

mod support;

use support::{Scratch, command, shim, text};

fn same_as_bare(mode: &str) -> String {
    let dir = Scratch::new();
    dir.compile("blocking", "libcuda.so.1", &BLOCKING);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/unwinding.cc");
    let program = dir.0.join("unwinding");
    let built = std::process::Command::new("c++")
        .args(["-O1", "-pthread", "-o"])
        .arg(&program)
        .args([source, "-L.", "-l:libcuda.so.1"])
        .current_dir(&dir.0)
        .output()
        .expect("c++ is needed for these tests");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let run = |setup: &[(&str, &std::ffi::OsStr)]| {
        let mut command = command(&program, &dir.0);
        let output = command.arg(mode).envs(setup.iter().copied()).output().unwrap();
        text(&output)
    };
    let bare = run(&[]);
    assert!(bare.ends_with("exit status: 0\n"), "{bare}");
    let shim = shim();
    // With a trace, and with a cap that is kept.
    assert_eq!(run(&[("LD_PRELOAD", shim.as_os_str())]), bare, "{mode}");
    assert_eq!(dir.files().iter().filter(|file| file.ends_with(".vtrace")).count(), 1);
    bare
}

/// The exceptions' tables are C's too, as in the real driver.
const BLOCKING: [&str; 4] = ["-shared", "-fPIC", "-fexceptions", "-Wl,-soname,libcuda.so.1"];

#[test]
fn a_thread_that_waits_in_an_allocation_is_cancelled() {
    assert!(same_as_bare("alloc").contains("cancelled 1\nunwound 1\n"));
}

#[test]
fn a_thread_that_waits_for_a_stream_is_cancelled() {
    assert!(same_as_bare("sync").contains("cancelled 1\nunwound 1\n"));
}

#[test]
fn a_thread_ends_itself_inside_the_driver() {
    assert!(same_as_bare("exit").contains("cancelled 0\nunwound 1\n"));
}

#[test]
fn an_exception_comes_out_of_the_driver() {
    assert!(same_as_bare("throw").starts_with("caught 42\n"));
}

#[test]
fn a_pending_cancellation_does_not_strike_inside_us() {
    assert!(
        same_as_bare("pending").starts_with("cancelled 1\nunwound 1\ninit 0 alloc 0 beyond 0\n")
    );
}
