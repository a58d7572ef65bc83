//! `vramtrace import` from outside: what others recorded becomes a trace, or a clear error.

use prost::Message;
use serde_json::json;
use testkit::trace_builder::{SECOND, TraceBuilder};
use testkit::{MIB, Scratch, flat, repository, unpacked};
use vramtrace_format::{Alloc, Event, Kind, StackId};
use vramtrace_reader::pprof::{Function, Label, Line, Location, Profile, Sample, ValueType};

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
        t.code(2, "einsum", "D:\\v\\Lib\\site-packages\\torch\\functional.py", 373);
        t.stack(1, &[], &[2, 1], &[]);
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
    assert!(
        report.contains("2.05 GiB  100.0 %") && report.contains(" train.py:10 shard"),
        "{report}"
    );
    let diff = scratch.text("diff ranks/r0.pickle ranks/r1.pickle");
    assert!(diff.contains("+33.3 %") && !diff.contains("new") && !diff.contains("\\"), "{diff}");
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
        ("truncated", real[..300].to_vec(), "ends in the middle"),
        ("global", calls, "opcode 0x63 makes more than plain data"),
        ("stack_global", new_style, "opcode 0x93 makes more than plain data"),
        ("huge", b"\x80\x04X\xff\xff\xff\xffabc.".to_vec(), "ends in the middle"),
        ("huge8", huge8, "ends in the middle"),
        ("deep", deep, "no memory snapshot"),
        ("other", b"\x80\x04]\x94.".to_vec(), "neither segments nor device_traces"),
        ("text", b"PNG".to_vec(), "text of no known form, which is not read: give a"),
        ("json", b"{\"a\":1}".to_vec(), "JSON of no known form, which is not read: give a"),
        ("gzip", b"\x1f\x8b\x08\0\0\0\0\0".to_vec(), "not whole gzip"),
    ] {
        scratch.write(name, bytes);
        for why in [part, name] {
            scratch.fails(2, &format!("import {name} -o out.vtrace"), why);
        }
        assert!(!scratch.0.join("out.vtrace").exists(), "{name}");
    }
    scratch.fails(2, "json", "a PyTorch memory snapshot");
    scratch.fails(2, "import no-such-file -o out.vtrace", "no-such-file");
    let nowhere = import("tests/data/resvar_s5.csv.gz", "-o /nowhere/x");
    scratch.fails(2, &nowhere, "its directory must exist");
}

/// 2 GiB in blocks, 0.5 GiB freed and waiting, 1.5 GiB free beside them; 4 GiB in segments of another pool that hold nothing.
#[test]
fn segments_without_blocks_are_pytorchs() {
    let [held, waits, free] = ["active_allocated", "active_pending_free", "inactive"];
    let segment = |n: u64, blocks: &[(u64, &str)]| {
        let block =
            |(mib, state): &(u64, &str)| json!({"size": mib * MIB, "state": state, "frames": []});
        json!({"device": 0, "address": (n + 1) << 32, "total_size": 2048 * MIB, "frames": [],
            "segment_pool_id": [0, n / 2], "blocks": blocks.iter().map(block).collect::<Vec<_>>()})
    };
    let snapshot = json!({"segments": [
        segment(0, &[(1024, held), (512, waits), (512, free)]),
        segment(1, &[(500, held), (524, held), (1024, free)]),
        segment(2, &[(2048, free)]),
        segment(3, &[(2048, free)]),
    ]});
    let scratch = Scratch::new();
    scratch.write("s.json", snapshot.to_string());
    let said =
        ["report", "frag", ""].map(|view| scratch.text(format!("{view} s.json").trim())).concat();
    for part in [
        "= allocated 2.00 GiB + free in cache 6.00 GiB",
        "3 blocks in 4 segments",
        "free          6.00 GiB",
        "releasable  4.00 GiB",
        "the file is of one moment; peak 8.00 GiB",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("other allocations"), "{said}");
    scratch.fails(2, "whatif s.json", "the file is of one moment");
}

/// 4 GiB are held, and 6 GiB cannot serve 3 GiB, for which the card has no room.
#[test]
fn free_memory_that_serves_nobody_else_is_named() {
    let scratch = Scratch::new();
    let at = 1u64 << 40;
    for (state, stream, pool, what) in [
        ("active_pending_free", 0, 0, "the same request may pass when repeated"),
        ("inactive", 0, 1, "6.00 GiB of it in private pools"),
        ("inactive", 7, 0, "6.00 GiB of it for another stream"),
    ] {
        let segment = |address, gib: u64, stream, pool, state| {
            json!({"device": 0, "address": address, "total_size": gib << 30, "stream": stream,
                "segment_pool_id": [0, pool], "blocks": [{"size": gib << 30, "state": state}]})
        };
        let oom =
            json!({"action": "oom", "size": 3u64 << 30, "device_free": 300 * MIB, "time_us": 5});
        let segments =
            [segment(at, 4, 0, 0, "active_allocated"), segment(2 * at, 6, stream, pool, state)];
        let snapshot = json!({"segments": segments, "device_traces": [[oom]]});
        scratch.write("oom.json", snapshot.to_string());
        let said = [scratch.text("oom.json"), scratch.text("oom oom.json")].concat();
        assert!(scratch.text(".").contains("out of memory on GPU 0"), "a folder of it");
        let said = flat(&said);
        assert_eq!(said.matches(what).count(), 2, "{what}: {said}");
        assert_eq!(said.contains("2.71 GiB more"), state == "inactive", "{said}");
        assert_eq!(said.contains("torch.cuda.synchronize()"), state != "inactive", "{said}");
    }
}

/// A CSV, and torch.profiler's events: what is of the host, or another event, is not memory of the card.
#[test]
fn requests_without_segments_have_a_peak_and_no_reserve() {
    let scratch = Scratch::new();
    let mut rows = "action,addr,size,stream\n".to_string();
    let other = json!({"name": "aten::mm", "args": {"Addr": "none", "Bytes": [1]}});
    let mut events = vec![other];
    for (second, addr, bytes, on) in [
        (3, 1, -512 * (MIB as i64), 1),
        (0, 1u64, 512 << 20, 1),
        (1, 2, 512 << 20, 1),
        (2, 3, 512 << 20, 1),
        (2, 9, 512 << 20, 0),
    ] {
        events.push(json!({"name": "[memory]", "ts": 1.5e15 + 1e6 * f64::from(second), "args": {
            "Addr": addr << 32, "Bytes": bytes, "Device Id": 0, "Device Type": on}}));
        if second < 3 && on == 1 {
            rows += &format!("alloc,{},{bytes},0\n", addr << 32);
        }
    }
    rows += &format!("free_requested,{0},1,0\nfree_completed,{0},1,0\noom,0,9,0\n", 1u64 << 32);
    scratch.write("log.csv", rows);
    scratch.write("timeline.json", json!({"traceEvents": events}).to_string());
    for file in ["log.csv", "timeline.json"] {
        let report = scratch.text(&format!("report {file}"));
        for part in ["peak             1.50 GiB", "live at the end  1.00 GiB", "not known"] {
            assert!(report.contains(part), "{file}: {part}: {report}");
        }
        scratch.fails(2, &format!("frag {file}"), "no segments: what was reserved is not known");
        assert!(scratch.text(&format!("whatif {file}")).contains("(in force)"), "{file}");
    }
    let oom = scratch.text("oom log.csv");
    assert!(oom.contains("not known: asked 9 B") && !oom.contains("no room"), "{oom}");
    // The first event is a free: what it leaves was there before.
    let late =
        json!({"Addr": 7, "Bytes": -(MIB as i64), "Device Id": 0, "Total Allocated": 3 * MIB});
    let refused = json!({"Bytes": 9 * MIB, "Device Id": 0});
    let refused = json!({"name": "[OutOfMemory]", "ts": 1000.0, "args": refused});
    let late = json!({"traceEvents": [{"name": "[memory]", "args": late}, refused]});
    scratch.write("late.json", late.to_string());
    assert!(scratch.text("report late.json").contains("4.00 MiB"));
    assert!(scratch.text("late.json").contains("asked 9.00 MiB"));
    scratch.write("none.json", r#"{"traceEvents": [{"name": "aten::mm"}]}"#);
    scratch.fails(2, "none.json", "profile_memory=True");
}

#[test]
fn a_directory_is_read_without_what_is_no_recording() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.0.join("d")).unwrap();
    std::fs::write(scratch.0.join("d/b.pickle"), b"\x80\x04N.").unwrap();
    scratch.fails(2, "d", "d/b.pickle: has neither");
    scratch.write("d/a.csv", "action,addr,size,stream\nalloc,1048576,512,0\n");
    assert!(scratch.text("d").contains("peak"));
}

#[test]
fn what_rmm_refused_has_the_words_of_rmm() {
    let scratch = Scratch::new();
    for (gap, why) in [
        (512, "a fragmented pool is likely: 4.00 GiB in use, over 5.50 GiB"),
        (1, "not known: 4.00 GiB in use"),
    ] {
        let mut rows = "Thread,Time,Action,Pointer,Size,Stream\n".to_string();
        for n in 0..4 {
            let (at, size) = ((1 << 40) + n * (1024 + gap) * MIB, 1024 * MIB + 256);
            rows += &format!("1,10:00:0{n}.0,allocate,{at:#x},{size},0x0\n");
        }
        rows += "1,10:00:04.0,allocate,0x200,256,0x0\n1,10:00:04.1,free,0x200,256,0x0\n";
        rows += &format!("1,10:00:05.0,allocate failure,(nil),{},0x0\n", 1500 * MIB);
        scratch.write("rmm.dev1.csv", rows);
        let oom = scratch.text("oom rmm.dev1.csv");
        assert!(oom.contains("cuda:1 at 5.000 s: RMM asked for 1.46 GiB"), "{oom}");
        assert!(oom.contains(why) && !oom.contains("orch") && !oom.contains("no room"), "{oom}");
    }
}

/// It keeps one piece a second, and frees another: the lines are not known, so all are one.
#[test]
fn what_a_log_of_rmm_keeps_is_a_leak() {
    let scratch = Scratch::new();
    let mut rows = "Thread,Time,Action,Pointer,Size,Stream\n".to_string();
    for n in 0..60u64 {
        for (action, at) in [("allocate", n + 2), ("allocate", 1), ("free", 1)] {
            rows += &format!("1,10:00:{n:02}.0,{action},{:#x},{MIB},0x0\n", at << 32);
        }
    }
    scratch.write("rmm.csv", rows);
    assert!(scratch.text("rmm.csv").contains("memory leaks on GPU 0: 47.00 MiB"));
}

/// As JAX names the columns, the devices and the kinds.
#[test]
fn a_profile_of_pprof_names_who_holds_what() {
    let texts = "|allocations|count|space|bytes|device|kind|keep|/w/train.py|buffer|executable|TPU_1(process=0,(1,1,0,0))|TFRT_CPU_0";
    let sample = |place, count, mib: i64, kind, device| Sample {
        location_id: vec![place],
        value: vec![count, mib << 20],
        label: vec![Label { key: 6, str: kind }, Label { key: 5, str: device }],
    };
    let place = |id, line| {
        let line = vec![Line { function_id: 1, line }];
        Location { id, line, ..Location::default() }
    };
    let profile = Profile {
        sample_type: vec![ValueType { r#type: 1, unit: 2 }, ValueType { r#type: 3, unit: 4 }],
        sample: vec![
            sample(1, 300, 1024, 9, 11),
            sample(2, i64::MAX, 96, 10, 11),
            sample(1, 7, 4096, 9, 12),
            sample(1, 1, -5, 9, 11),
        ],
        location: vec![place(1, 55), place(2, 31)],
        function: vec![Function { id: 1, name: 7, filename: 8 }],
        string_table: texts.split('|').map(String::from).collect(),
        ..Profile::default()
    };
    let scratch = Scratch::new();
    scratch.write("memory.prof", profile.encode_to_vec());
    let said = scratch.text("memory.prof") + &scratch.text("holders memory.prof");
    for part in [
        "the file is of one moment; peak 1.09 GiB recorded on GPU 1",
        "1.00 GiB  91.4 %",
        "300  ",
        "train.py:55",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let report = scratch.text("report memory.prof") + &scratch.text("leaks memory.prof");
    assert!(report.contains("imported from a pprof profile, without times"), "{report}");
    assert!(report.contains("were not judged"), "{report}");
}

#[test]
fn a_snapshot_that_was_cut_off_is_read_up_to_there() {
    let scratch = Scratch::new();
    let real = unpacked(SNAPSHOT);
    for part in [3, 10, 19] {
        scratch.write("cut.pickle", &real[..real.len() * part / 20]);
        scratch.fails(0, "import cut.pickle -o out.vtrace --force", "ends in the middle: what");
    }
    // Of gzip too; and the only list of entries, which has no mark.
    let packed = std::fs::read(SNAPSHOT).unwrap();
    scratch.write("cut.pickle.gz", &packed[..packed.len() / 2]);
    let said = scratch.text("cut.pickle.gz");
    assert!(!said.contains("one moment"), "{said}");
    // torch.save wraps the pickle in an archive, whose first file it is.
    let name = b"snapshot/data.pkl";
    let mut saved =
        [&b"PK\x03\x04"[..], &[0; 22], &[name.len() as u8, 0, 3, 0], name, b"FB\0"].concat();
    saved.extend(&real);
    saved.extend(b"PK\x01\x02");
    scratch.write("saved.pt", saved);
    scratch.fails(0, "import saved.pt -o saved.vtrace", "154 blocks in 11 segments of 1 device");
}
