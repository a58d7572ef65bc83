//! Calls come on threads with small stacks too: what a hook takes of them is bounded.

mod support;

use support::{Scratch, command, shim};

#[test]
fn hooks_take_little_stack() {
    let dir = Scratch::new();
    let soname = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
    dir.compile("blocking", "libcuda.so.1", &soname);
    let program = dir.compile("stack", "stack", &["-pthread", "-L.", "-l:libcuda.so.1"]);
    let used = |preload: bool| -> Vec<usize> {
        let mut command = command(&program, &dir.0);
        if preload {
            command.env("LD_PRELOAD", shim());
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().map(|bytes| bytes.parse().unwrap()).collect()
    };
    let (bare, ours) = (used(false), used(true));
    // The state of the process is made at the first call. Unoptimised code keeps every copy.
    let first = if cfg!(debug_assertions) { 192 << 10 } else { 64 << 10 };
    let later = if cfg!(debug_assertions) { 32 << 10 } else { 16 << 10 };
    assert!(ours[0] - bare[0].min(ours[0]) <= first, "first call: {ours:?} and {bare:?} bare");
    assert!(ours[1] - bare[1].min(ours[1]) <= later, "later: {ours:?} and {bare:?} bare");
}
