//! `vramtrace leaks`: verdicts for programs with known answers, and for traces.

use serde_json::json;
use testkit::trace_builder::{GPT2, MS, SECOND, TORCH, TraceBuilder, listed};
use testkit::{InteractiveProgram, MIB, Scratch, Setup, has};
use vramtrace_format::{DeviceId, Event, Kind, Purpose, Space};

/// A training loop of 300 steps of 10 ms: stack 1 keeps 1 MiB of each, stack 2 is the step's own.
fn leaking() -> TraceBuilder {
    let mut t = TraceBuilder::new();
    t.module("/opt/libc10_cuda.so", 0x2000_0000);
    t.module("/opt/libmine.so", 0x6000_0000);
    t.code(1, "Module._call_impl", TORCH, 1501);
    t.code(2, "GPT2Attention._attn", GPT2, 212);
    t.code(3, "train", "/home/me/train.py", 41);
    t.code(4, "step", "/home/me/train.py", 77);
    t.stack(1, &[0x6000_0010], &[3, 4], &[(0, 1)]);
    t.stack(2, &[0x6000_0020], &[2, 4], &[(0, 1)]);
    // PyTorch's own segments.
    t.stack(3, &[0x2000_0010], &[1, 2, 4], &[(0, 1)]);
    t.context(SECOND, 0);
    t.alloc_by(SECOND, Kind::Device, 900 << 30, 64 * MIB, 2);
    for step in 0..300 {
        let now = SECOND + step * 10 * MS;
        t.alloc_by(now, Kind::Device, 500 << 30, 100 * MIB, 2);
        t.alloc_by(now + MS, Kind::Device, (step + 1) << 30, MIB + 1, 1);
        t.free(now + 5 * MS, Space::Device, 500 << 30);
    }
    t.event(4 * SECOND, Event::Ended);
    t
}

#[test]
fn what_is_held_without_a_leak_has_its_line_and_caller() {
    let scratch = Scratch::new();
    scratch.text("demo --out .");
    let shown = scratch.text("leaks recorded.vtrace");
    let line =
        "(6 stacks; the most by pytorch_utils.py:119 Conv1D.forward, called from train.py:23 step)";
    assert!(shown.contains(line), "{shown}");
}

/// It is full when 24 GiB less the 664 MiB in use are taken, at 200 MiB a second.
#[test]
fn a_leak_is_named_with_its_evidence() {
    let scratch = Scratch::with(&leaking());
    scratch.prints(
        "leaks/growing",
        &[
            "leaks t.vtrace",
            "leaks t.vtrace --json | schema leaks.0.verdict leaks.0.level leaks.0.device",
            "leaks t.vtrace --json | leaks.0.bytes leaks.0.count leaks.0.rate_bytes_per_s",
            "leaks t.vtrace --json | leaks.0.exhausted_in_s leaks.0.confidence leaks.0.evidence",
            "leaks t.vtrace --json | leaks.0 processes.0.kept.0.why",
        ],
    );
    // Frames are those of other commands.
    let (leak, holders) =
        (&scratch.json("leaks t.vtrace")["leaks"][0], scratch.json("holders t.vtrace"));
    let mut holders = holders["holders"].as_array().unwrap().iter();
    assert!(holders.any(|holder| holder["frames"] == leak["frames"]), "{leak:#}");
}

#[test]
fn small_ones_and_known_ones_are_left_out() {
    let scratch = Scratch::with(&leaking());
    for (name, rules) in [
        ("known-0", "# known\n\nfunction: train\n"),
        ("known-1", "# known\n\nfile: */me/train.py\n"),
        ("known-2", "# known\n\nlibrary: libmine*\n"),
        ("no-such", "function: no_such\n"),
        ("old", "file: train.py\n# old\nlibrary: gone*\n"),
        ("bad", "# fine\nlibmine\n"),
    ] {
        scratch.write(name, rules);
    }
    scratch.prints(
        "leaks/suppressed",
        &[
            "leaks t.vtrace --min 601MiB --json | leaks",
            "leaks t.vtrace --min 629145601 --json | leaks",
            "leaks t.vtrace --suppressions known-0 --json | leaks processes.0.suppressed",
            "leaks t.vtrace --suppressions known-1 --json | leaks processes.0.suppressed",
            "leaks t.vtrace --suppressions known-2 --json | leaks processes.0.suppressed",
            "leaks t.vtrace --suppressions known-2",
            "leaks t.vtrace --suppressions no-such",
            "leaks t.vtrace --suppressions old --json | leaks unused_suppressions",
            "leaks t.vtrace --suppressions bad",
            "leaks t.vtrace --suppressions none",
            "leaks t.vtrace --min 5apples",
            "leaks t.vtrace --rank 3",
        ],
    );
}

#[test]
fn pools_imports_and_host_memory_are_no_leaks() {
    let mut t = leaking();
    for step in 0..300 {
        let now = 4 * SECOND + step * 10 * MS;
        t.alloc_by(now, Kind::Device, (1200 + step) << 31, 20 * MIB, 3);
        t.alloc_by(now, Kind::Imported, (1600 + step) << 31, 20 * MIB, 2);
        t.alloc_by(now, Kind::HostPinned, step + 1, 20 * MIB, 2);
        t.alloc_by(now, Kind::Device, 500 << 30, 100 * MIB, 2);
        t.free(now + MS, Space::Device, 500 << 30);
    }
    Scratch::with(&t).prints(
        "leaks/pool",
        &["leaks t.vtrace", "leaks t.vtrace --json | leaks processes.0.pooled"],
    );
}

#[test]
fn blocks_are_judged_and_the_segments_below_them_are_not() {
    let mut t = TraceBuilder::new();
    t.module("/opt/libc10_cuda.so", 0x2000_0000);
    t.code(1, "train", "/home/me/train.py", 41);
    t.code(2, "step", "/home/me/train.py", 77);
    t.stack(1, &[0x2000_0010], &[1], &[(0, 1)]);
    t.stack(2, &[0x2000_0020], &[2], &[(0, 1)]);
    let segment = |number: u64| (number + 1) << 30;
    for step in 0..300u64 {
        let now = SECOND + step * 10 * MS;
        // Segments come again and again: fragmentation, and room for what is kept.
        if step % 10 == 0 {
            t.alloc_by(now, Kind::Device, segment(step / 10), 20 * MIB, 2);
        }
        let place = segment(step / 10) + step % 10 * 512;
        t.alloc_by(now + MS, Kind::Block, segment(step / 10) + MIB, 16 * MIB, 2);
        // losses.append(loss)
        t.alloc_by(now + 2 * MS, Kind::Block, place, 512, 1);
        t.free(now + 5 * MS, Space::Block, segment(step / 10) + MIB);
    }
    t.event(4 * SECOND, Event::Ended);
    Scratch::with(&t).prints(
        "leaks/blocks",
        &[
            "leaks t.vtrace",
            "leaks t.vtrace --json | leaks.*.level leaks.*.verdict leaks.*.bytes leaks.*.count",
            "leaks t.vtrace --json | processes.0.pooled.*.bytes processes.0.pooled.*.free",
        ],
    );
}

#[test]
fn a_lost_beginning_counts_as_there_from_the_first() {
    let mut t = TraceBuilder::new();
    t.lose();
    t.event(5 * SECOND, Event::StateBegin { id: 1, what: Purpose::Checkpoint, cache_ooms: 0 });
    for number in 0..200u64 {
        let alloc = t.allocation(Kind::Device, 0, (number + 1) << 30, 2 * MIB);
        let time_ns = number * MS;
        t.event(5 * SECOND + number, listed(time_ns, Event::Alloc(alloc)));
    }
    t.event(5 * SECOND + 300, Event::StateEnd { id: 1, cut: false });
    for step in 0..300 {
        t.alloc(5 * SECOND + step * 10 * MS, Kind::Device, 500 << 30, 4 * MIB);
        t.free(5 * SECOND + step * 10 * MS + MS, Space::Device, 500 << 30);
    }
    Scratch::with(&t).prints(
        "leaks/lost-beginning",
        &[
            "leaks t.vtrace",
            "leaks t.vtrace --json | leaks processes.0.beginning_lost processes.0.from_s",
            "leaks t.vtrace --json | processes.0.kept.*.bytes",
        ],
    );
}

/// A wrapper by which twelve parts of a program make something once each, and each step what it frees.
#[test]
fn singletons_of_a_line_that_steps_use_too_are_no_leak() {
    let mut t = TraceBuilder::new();
    t.code(1, "allocate", "/home/me/wrapper.py", 7);
    for path in 0..13 {
        t.code(100 + path, &format!("part{path}"), "/home/me/b.py", path as i32);
        t.stack(path + 1, &[], &[1, 100 + path], &[]);
    }
    let end = SECOND + 3_000 * MS;
    for step in 0..300u64 {
        let now = SECOND + step * 10 * MS;
        if step % 24 == 0 && step < 288 {
            t.alloc_by(now, Kind::Device, (step + 1) << 30, 8 * MIB, step as u32 / 24 + 1);
        }
        t.alloc_by(now, Kind::Device, (500 + step) << 30, 4 * MIB, 13);
        // Near the end there is always something of a step.
        if step != 280 && step != 299 {
            t.free(now + 5 * MS, Space::Device, (500 + step) << 30);
        }
    }
    t.free(end, Space::Device, 780 << 30);
    t.free(end, Space::Device, 799 << 30);
    t.event(end, Event::Ended);
    assert_eq!(Scratch::with(&t).json("leaks t.vtrace")["leaks"], serde_json::json!([]));
}

/// A leaking program that waits at its end, and is examined then.
#[test]
fn a_process_that_runs_is_reported_too() {
    let library = testkit::torch_stand_ins::libraries().join("libc10_cuda.so");
    let driver = Setup::simulated().cap("2GiB").arg("waits");
    for (setup, level) in [(driver.clone(), "driver"), (driver.arg(library.display()), "tensor")] {
        let program = InteractiveProgram::start_as("leaks", setup.env("VRAMTRACE_TEST_CLOCK", "0"));
        let (all, shown) = (program.scratch.json("leaks"), program.scratch.text("leaks"));
        let leak = &all["leaks"][0];
        has(leak, json!({ "verdict": "growing", "level": level }));
        assert_eq!((leak["bytes"].as_u64(), leak["count"].as_u64()), (Some(600 * MIB), Some(300)));
        assert_eq!(all["processes"][0]["running"], true);
        assert!(shown.contains("it is still running") && shown.contains("full in"), "{shown}");
        // Up to the cap: less the weights and the context, more what is free in the cache.
        let left = leak["exhausted_in_s"].as_f64().unwrap();
        let bytes = left * leak["rate_bytes_per_s"].as_f64().unwrap() / MIB as f64;
        assert!((700.0..1448.0).contains(&bytes), "{bytes} MiB left");
    }
}

#[test]
fn until_when_it_fits_is_arithmetic() {
    let device = DeviceId(0);
    let limits = |bytes: u64, group, only_warns| {
        vec![Event::Cap { device, bytes: Some(bytes), group, soft: None, only_warns }]
    };
    // Of 24 GiB, 664 MiB are used at the end: 600 by the leak, at 200 MiB a second.
    for (events, limit) in [
        (vec![], 24 << 10),
        (limits(2 << 30, None, false), 2 << 10),
        (limits(2 << 30, None, true), 24 << 10),
        (limits(2 << 30, Some(900 * MIB), false), 900),
        (limits(100 * MIB, None, false), 0),
    ] {
        let mut t = leaking();
        events.iter().for_each(|event| t.event(SECOND, *event));
        let all = Scratch::with(&t).json("leaks t.vtrace");
        let left = all["leaks"][0]["exhausted_in_s"].as_f64().unwrap();
        let wanted = (f64::from(limit) - 664.0).max(0.0) / 200.0;
        assert!((left - wanted).abs() <= 0.01 * wanted, "{limit}: {left} instead of {wanted}");
    }
}

#[test]
fn what_has_no_trend_has_neither_rate_nor_end() {
    let mut t = TraceBuilder::new();
    (1..8).chain([20]).for_each(|stack| t.stack(stack, &[0x1000 + u64::from(stack)], &[], &[]));
    for number in 0..8u64 {
        t.alloc_by(SECOND, Kind::Device, (number + 1) << 30, 8 * MIB, number as u32);
    }
    for step in 0..100 {
        t.alloc_by(SECOND + step * MS, Kind::Device, 500 << 30, MIB, 20);
        t.free(SECOND + step * MS + MS / 2, Space::Device, 500 << 30);
    }
    (1..8u64).for_each(|number| t.free(SECOND + 100 * MS, Space::Device, (number + 1) << 30));
    t.event(SECOND + 101 * MS, Event::Ended);
    let of_leak = "leaks.0.verdict leaks.0.bytes leaks.0.rate_bytes_per_s leaks.0.exhausted_in_s";
    Scratch::with(&t).prints("leaks/never-freed", &[&format!("leaks t.vtrace --json | {of_leak}")]);
}
