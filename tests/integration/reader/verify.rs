//! `vramtrace verify` from outside: exit status and output.

use std::io::Read;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use testkit::trace_builder::{MS, TraceBuilder, training};
use testkit::{Scratch, repository, vramtrace};
use vramtrace_format::{Kind, Space};

fn verify(args: &[&str], scratch: &Scratch) -> (i32, String, String) {
    let run = vramtrace().arg("verify").args(args).current_dir(&scratch.0).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (run.status.code().unwrap(), text(&run.stdout), text(&run.stderr))
}

#[test]
fn one_line_for_a_trace_that_holds() {
    let scratch = Scratch::new();
    training().write(&scratch.0.join("sound.vtrace"));
    let (status, out, err) = verify(&["sound.vtrace"], &scratch);
    assert_eq!((status, err.as_str()), (0, ""));
    assert!(out.starts_with("sound.vtrace: holds: 11 events"), "{out}");
    assert_eq!(out.lines().count(), 1);
}

#[test]
fn violations_are_listed_with_time_address_expectation_and_finding() {
    let scratch = Scratch::new();
    let mut t = TraceBuilder::new();
    t.alloc(MS, Kind::Device, 0x200_0000, 3 << 20);
    t.free(2 * MS, Space::Device, 0x220_0000);
    t.free(3 * MS, Space::Device, 0x240_0000);
    t.write(&scratch.0.join("broken.trace"));
    let (status, out, _) = verify(&["broken.trace", "--top", "1"], &scratch);
    assert_eq!(status, 1);
    assert_eq!(
        out,
        "broken.trace: 2 violations\n    \
         0.002000000 s, Device 0x2200000: a free: expected live memory, found none\n    \
         and 1 more; --top 2 lists them\n"
    );
    let (status, out, _) = verify(&["broken.trace", "--json"], &scratch);
    assert_eq!(status, 1);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["schema"], "vramtrace.verify/1");
    let violation = &report["traces"][0]["violations"][1];
    assert_eq!(violation["rule"], "free_without_allocation");
    assert_eq!(violation["time_ns"], 3_000_000);
    assert_eq!(violation["address"], 0x240_0000);
    assert_eq!(violation["space"], "device");
}

#[test]
fn what_cannot_be_checked_is_said_and_is_no_violation() {
    let scratch = Scratch::new();
    let mut t = TraceBuilder::new();
    t.alloc(MS, Kind::Device, 0x200_0000, 3 << 20);
    t.lose();
    t.free(2 * MS, Space::Device, 0x220_0000);
    t.write(&scratch.0.join("bounded.vtrace"));
    let (status, out, _) = verify(&["bounded.vtrace"], &scratch);
    assert_eq!(status, 0);
    assert!(out.contains("\n    not checked: events are missing"), "{out}");
}

#[test]
fn a_file_that_was_cut_does_not_hold() {
    let scratch = Scratch::new();
    let whole = training().bytes();
    let write = |name: &str, bytes: &[u8]| std::fs::write(scratch.0.join(name), bytes).unwrap();
    write("cut.trace", &whole[..100_000]);
    let (status, out, _) = verify(&["cut.trace"], &scratch);
    let said = "cut.trace: 1 violation\n    the file was cut: expected 266,240 bytes, found 100,000 bytes\n";
    assert!(status == 1 && out.starts_with(said), "{status}: {out}");
    let (status, out, _) = verify(&["cut.trace", "--json"], &scratch);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &report["traces"][0]["violations"][0]["rule"]), (1, &"cut".into()));
    // Between two windows nothing tells.
    write("short.trace", &whole[..4096]);
    let (status, out, _) = verify(&["short.trace"], &scratch);
    assert!(status == 0 && out.contains("not checked: the file has no events"), "{out}");
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

#[test]
fn bad_input() {
    let scratch = Scratch::new();
    std::fs::write(scratch.0.join("text"), "no trace").unwrap();
    for args in [&["text"][..], &["missing.vtrace"], &["--top", "x"]] {
        let (status, out, err) = verify(args, &scratch);
        assert_eq!((status, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(args[args.len() - 1]), "{err}");
    }
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
        let mut bytes = Vec::new();
        let file = std::fs::File::open(&path).unwrap();
        flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
        std::fs::write(scratch.0.join("trace"), bytes).unwrap();
        let contradicts = path.ends_with("golden/pytorch.vtrace.gz");
        let (status, out, _) = verify(&["trace"], &scratch);
        assert_eq!(status, i32::from(contradicts), "{}: {out}", path.display());
    }
}
