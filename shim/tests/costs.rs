//! What a program that never touches CUDA pays: at its start, and at a look-up.
//!
//! Smallest of many, bare and preloaded in turn; the limits hold on a busy machine and for a
//! debug build. `--nocapture` prints the figures.

mod support;

use std::path::Path;
use std::time::{Duration, Instant};
use support::{Scratch, command, shim};

#[test]
fn a_start_costs_less_than_a_millisecond() {
    let dir = Scratch::new();
    let once = |preload: bool| {
        let mut command = command("/bin/true", &dir.0);
        if preload {
            command.env("LD_PRELOAD", shim());
        }
        let start = Instant::now();
        assert!(command.status().unwrap().success());
        start.elapsed()
    };
    let (mut bare, mut ours) = (Duration::MAX, Duration::MAX);
    for _ in 0..200 {
        bare = bare.min(once(false));
        ours = ours.min(once(true));
    }
    println!("start: bare {bare:?}, preloaded {ours:?}");
    assert!(ours < bare + Duration::from_millis(1), "bare {bare:?}, preloaded {ours:?}");
}

#[test]
fn a_look_up_costs_little_more() {
    let dir = Scratch::new();
    let program = dir.compile("looks", "looks", &["-ldl"]);
    let once = |library: Option<&Path>| -> f64 {
        let mut command = command(&program, &dir.0);
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
        }
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    };
    let (mut bare, mut ours) = (f64::MAX, f64::MAX);
    for _ in 0..5 {
        bare = bare.min(once(None));
        ours = ours.min(once(Some(&shim())));
    }
    println!("look-up: bare {bare} ns, preloaded {ours} ns");
    assert!(ours < bare + 500.0, "bare {bare} ns, preloaded {ours} ns");
}
