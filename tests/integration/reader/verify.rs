//! `vramtrace verify` from outside: exit status and output.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use testkit::trace_builder::{MS, TraceBuilder, training};
use testkit::{Scratch, repository};
use vramtrace_format::{Kind, Space};

#[test]
fn violations_are_listed_and_what_cannot_be_checked_is_said() {
    let scratch = Scratch::new();
    let mut t = TraceBuilder::new();
    t.alloc(MS, Kind::Device, 0x200_0000, 3 << 20);
    t.free(2 * MS, Space::Device, 0x220_0000);
    t.free(3 * MS, Space::Device, 0x240_0000);
    t.write(&scratch.0.join("broken.trace"));
    let mut t = TraceBuilder::new();
    t.alloc(MS, Kind::Device, 0x200_0000, 3 << 20);
    t.lose();
    t.free(2 * MS, Space::Device, 0x220_0000);
    t.write(&scratch.0.join("bounded.vtrace"));
    let whole = training().bytes();
    // Between two windows nothing tells that a file was cut.
    for (name, bytes) in [
        ("sound.vtrace", &whole[..]),
        ("cut.trace", &whole[..100_000]),
        ("short.trace", &whole[..4096]),
        ("text", b"no trace"),
    ] {
        std::fs::write(scratch.0.join(name), bytes).unwrap();
    }
    scratch.prints(
        "verify",
        &[
            "verify sound.vtrace",
            "verify broken.trace --top 1",
            "verify broken.trace --json",
            "verify bounded.vtrace",
            "verify cut.trace",
            "verify cut.trace --json | traces.0.violations.0.rule",
            "verify short.trace",
            "verify text",
            "verify missing.vtrace",
            "verify --top x",
        ],
    );
}

/// What every other test relies on: it fails where a trace that it leaves, in whatever directory, does not
/// hold or cannot be read, unless it says so.
#[test]
fn a_test_fails_by_the_traces_that_it_leaves() {
    let mut contradicting = TraceBuilder::new();
    contradicting.free(2 * MS, Space::Device, 0x220_0000);
    let fails = |write: &dyn Fn(&Path), say: fn(&Scratch)| {
        let scratch = Scratch::new();
        let directory = scratch.0.clone();
        let deep = directory.join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        write(&deep.join("any.vtrace"));
        say(&scratch);
        let ended = std::panic::catch_unwind(AssertUnwindSafe(|| drop(scratch)));
        let _ = std::fs::remove_dir_all(&directory);
        ended.is_err()
    };
    let sound = |path: &Path| training().write(path);
    let contradicting = |path: &Path| contradicting.write(path);
    let damaged = |path: &Path| std::fs::write(path, "no trace").unwrap();
    assert!(!fails(&sound, |_| ()));
    assert!(fails(&contradicting, |_| ()) && fails(&contradicting, Scratch::damaged_traces));
    assert!(!fails(&contradicting, Scratch::contradicts));
    assert!(fails(&damaged, |_| ()) && fails(&damaged, Scratch::contradicts));
    assert!(!fails(&damaged, Scratch::damaged_traces));
}

/// Packed traces in a directory and below it.
fn packed(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries
        .flat_map(|path| if path.is_dir() { packed(&path) } else { vec![path] })
        .filter(|path| path.to_string_lossy().ends_with(".vtrace.gz"))
        .collect();
    found.sort();
    found
}

/// The program of one of them gives figures that are not so.
#[test]
fn traces_of_earlier_versions_hold() {
    let scratch = Scratch::new();
    let all =
        [packed(&repository().join("tests/data/golden")), packed(&repository().join("assets"))];
    assert!(all.iter().all(|found| !found.is_empty()));
    for path in all.concat() {
        std::fs::copy(&path, scratch.0.join("trace.gz")).unwrap();
        let contradicts = path.ends_with("golden/pytorch.vtrace.gz");
        let output = scratch.run("verify trace.gz");
        assert_eq!(output.status.code(), Some(i32::from(contradicts)), "{}", path.display());
    }
}
