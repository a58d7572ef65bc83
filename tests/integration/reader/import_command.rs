//! `vramtrace import` from outside: what others recorded becomes a trace, or a clear error.

use testkit::trace_builder::{SECOND, TraceBuilder};
use testkit::{Scratch, repository, unpacked};
use vramtrace_format::physical::MIB;
use vramtrace_format::{Alloc, Event, Kind, StackId};

const SNAPSHOT: &str = "tests/data/torch_snapshot_2.11.pickle.gz";

/// `vramtrace import` of a file of this repository, with more words.
fn import(file: &str, more: &str) -> String {
    format!("import {} {more}", repository().join(file).display())
}

#[test]
fn a_snapshot_is_a_trace_like_any_other() {
    let scratch = Scratch::new();
    let line = import(SNAPSHOT, "-o t.vtrace");
    scratch.fails(0, &line, "154 blocks in 11 segments of 1 device");
    // Nothing is replaced without --force.
    let before = std::fs::read(scratch.0.join("t.vtrace")).unwrap();
    scratch.fails(2, &line, "exists: give another name, or --force");
    assert_eq!(std::fs::read(scratch.0.join("t.vtrace")).unwrap(), before);
    scratch.text(&format!("{line} --force"));
    // golden.rs has its documents.
    let holders = scratch.text("holders t.vtrace");
    assert!(holders.contains("snapshot.py:6"), "{holders}");
}

#[test]
fn a_trace_of_a_csv_has_no_stacks_and_says_why() {
    let scratch = Scratch::new();
    scratch.text(&import("tests/data/resvar_s5.csv.gz", "-o t.vtrace"));
    scratch.fails(2, "holders t.vtrace", "CSV of requests, which has none");
    let report = scratch.text("report t.vtrace") + &scratch.text("leaks t.vtrace");
    assert!(report.contains("imported from a CSV of requests, without times"), "{report}");
    assert!(report.contains("were not judged: the recording has no times"), "{report}");
}

/// Of two cards, and of Windows. Segments have the stacks of their first blocks; no byte counts as both.
#[test]
fn a_directory_of_snapshots_is_a_run_of_ranks() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.0.join("ranks")).unwrap();
    for rank in 0..2u8 {
        let mut t = TraceBuilder::new();
        t.code(1, "shard", "D:\\w\\train.py", 10);
        t.stack(1, &[], &[1], &[]);
        for n in 0..3 {
            let key = (1 << 40) + n * (1 << 30);
            for kind in [Kind::Device, Kind::Block] {
                let alloc = t.allocation(kind, rank, key, (300 + 100 * u64::from(rank)) * MIB);
                t.event(n * SECOND, Event::Alloc(Alloc { stack: StackId(1), ..alloc }));
            }
        }
        t.write(&scratch.0.join("t.vtrace"));
        scratch.text(&format!(
            "export t.vtrace --format torch-snapshot --force -o ranks/r{rank}.pickle"
        ));
    }
    let report = scratch.text("report ranks");
    // 3 x 300 MiB and 3 x 400 MiB.
    assert!(report.contains("2.05 GiB  100.0 %") && report.contains("10 shard"), "{report}");
    let diff = scratch.text("diff ranks/r0.pickle ranks/r1.pickle");
    assert!(diff.contains("+33.3 %") && !diff.contains("new"), "{diff}");
}

#[test]
fn hostile_and_wrong_files_end_in_a_clear_error() {
    let scratch = Scratch::new();
    let real = unpacked(SNAPSHOT);
    // cos\nsystem\n(S'touch owned'\ntR.
    let calls = b"\x80\x02cos\nsystem\n(X\x0b\0\0\0touch ownedtR.".to_vec();
    let new_style = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0btouch owned\x85R.".to_vec();
    let deep = [&b"\x80\x02"[..], &[b']'; 2_000_000], &[b'a'; 1_999_999], b"."].concat();
    let huge8 = b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc.".to_vec();
    for (name, bytes, part) in [
        ("truncated", real[..real.len() / 2].to_vec(), "ends in the middle"),
        ("global", calls, "opcode 0x63 makes more than plain data"),
        ("stack_global", new_style, "opcode 0x93 makes more than plain data"),
        ("huge", b"\x80\x04X\xff\xff\xff\xffabc.".to_vec(), "ends in the middle"),
        ("huge8", huge8, "ends in the middle"),
        ("deep", deep, "no memory snapshot"),
        ("other", b"\x80\x04]\x94.".to_vec(), "neither segments nor device_traces"),
        (
            "text",
            b"PNG".to_vec(),
            "text of no known form, which is not read: give a vramtrace trace",
        ),
        ("gzip", b"\x1f\x8b\x08\0\0\0\0\0".to_vec(), "not whole gzip"),
    ] {
        scratch.write(name, bytes);
        for why in [part, name] {
            scratch.fails(2, &format!("import {name} -o out.vtrace"), why);
        }
        assert!(!scratch.0.join("out.vtrace").exists(), "{name}");
    }
    scratch.fails(2, "import no-such-file -o out.vtrace", "no-such-file");
    let nowhere = import("tests/data/resvar_s5.csv.gz", "-o /nowhere/x");
    scratch.fails(2, &nowhere, "its directory must exist");
}

#[test]
fn an_rmm_log_becomes_a_trace() {
    let scratch = Scratch::new();
    let rows = "Thread,Time,Action,Pointer,Size,Stream\n\
        1,10:00:00.000000,allocate,0x7f0000000000,8388608,0x1\n\
        1,10:00:01.000000,allocate,0x7f0000800000,4194304,0x2\n\
        1,10:00:02.500000,free,0x7f0000000000,8388608,0x1\n";
    scratch.write("rmm.dev1.txt", rows);
    scratch.text("import rmm.dev1.txt -o rmm.vtrace");
    let shown = scratch.text("report rmm.vtrace");
    assert!(shown.contains("GPU 1") && shown.contains("traced for 2.5 s"), "{shown}");
}
