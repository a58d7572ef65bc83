//! `vramtrace leaks`: verdicts for programs with known answers, and for traces.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::process::{Output, Stdio};

use serde_json::Value;
use testkit::trace_builder::{GPT2, MS, SECOND, TORCH, TraceBuilder};
use testkit::{Program, Scratch, Setup, vramtrace};
use vramtrace_format::physical::MIB;
use vramtrace_format::{DeviceId, Event, Kind, Space};

fn run(scratch: &Scratch, args: &[&str]) -> Output {
    vramtrace().args(args).current_dir(&scratch.0).env("NO_COLOR", "1").output().unwrap()
}

#[track_caller]
fn text(scratch: &Scratch, args: &[&str]) -> String {
    let output = run(scratch, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn json(scratch: &Scratch, args: &[&str]) -> Value {
    let all: Value = serde_json::from_str(&text(scratch, args)).unwrap();
    assert_eq!(all["schema"], "vramtrace.leaks/1");
    all
}

fn written(builder: &TraceBuilder) -> Scratch {
    let scratch = Scratch::new();
    builder.write(&scratch.0.join("t.vtrace"));
    scratch
}

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
    let demo = ["demo", "--out", "."];
    assert!(vramtrace().current_dir(&scratch.0).args(demo).output().unwrap().status.success());
    let shown = text(&scratch, &["leaks", "recorded.vtrace"]);
    let line =
        "(6 stacks; the most by pytorch_utils.py:119 Conv1D.forward, called from train.py:23 step)";
    assert!(shown.contains(line), "{shown}");
}

#[test]
fn a_leak_is_named_with_its_evidence() {
    let scratch = written(&leaking());
    let shown = text(&scratch, &["leaks", "t.vtrace"]);
    for wanted in [
        "pid 4711: 1 leak",
        "GROWING  GPU 0: 600.00 MiB in 300 allocations, +200.0",
        "train.py:41 train  (libmine.so)",
        "full after another 119.",
        "what it never gave back rose by 476.00 MiB from 1.604 s to 3.886 s: at 89 of 90 moments",
        "▁",
        "300 allocations, 0 freed",
        "held, and no leak:",
        "64.00 MiB  steady since warm-up (1 stack; the most by modeling_gpt2.py:212",
    ] {
        assert!(shown.contains(wanted), "{wanted:?} is not there:\n{shown}");
    }
    let all = json(&scratch, &["leaks", "t.vtrace", "--json"]);
    let leaks = all["leaks"].as_array().unwrap();
    assert_eq!(leaks.len(), 1);
    let leak = &leaks[0];
    assert_eq!(leak["verdict"], "growing");
    assert_eq!((leak["level"].as_str(), leak["device"].as_u64()), (Some("driver"), Some(0)));
    assert_eq!((leak["bytes"].as_u64(), leak["count"].as_u64()), (Some(600 * MIB), Some(300)));
    let rate = leak["rate_bytes_per_s"].as_f64().unwrap() / MIB as f64;
    assert!((190.0..210.0).contains(&rate), "{rate}");
    // 24 GiB less what is used.
    let left = leak["exhausted_in_s"].as_f64().unwrap();
    assert!((left - (24.0 * 1024.0 - 664.0) / rate).abs() < 1.0, "{left}");
    assert!(leak["confidence"].as_f64().unwrap() > 0.9);
    assert_eq!(leak["frames"][1]["function"], "train");
    assert!(!leak["evidence"].as_array().unwrap().is_empty());
    assert_eq!(all["processes"][0]["kept"][0]["why"], "steady");
}

#[test]
fn small_ones_and_known_ones_are_left_out() {
    let scratch = written(&leaking());
    let none = |args: &[&str]| {
        let all = json(&scratch, &[&["leaks", "t.vtrace", "--json"], args].concat());
        assert_eq!(all["leaks"].as_array().unwrap().len(), 0, "{args:?}");
        all
    };
    none(&["--min", "601MiB"]);
    none(&["--min", "629145601"]);
    for rule in ["function: train", "file: */me/train.py", "library: libmine*"] {
        let rules = format!("# known\n\n{rule}\n");
        std::fs::write(scratch.0.join("known"), rules).unwrap();
        let all = none(&["--suppressions", "known"]);
        let suppressed = &all["processes"][0]["suppressed"][0];
        assert_eq!(
            (suppressed["line"].as_u64(), suppressed["leaks"].as_u64()),
            (Some(3), Some(1)),
            "{rule}"
        );
    }
    let shown = text(&scratch, &["leaks", "t.vtrace", "--suppressions", "known"]);
    assert!(shown.contains("no leak\n") && shown.contains("suppressed by line 3"), "{shown}");
    std::fs::write(scratch.0.join("known"), "function: no_such\n").unwrap();
    let shown = text(&scratch, &["leaks", "t.vtrace", "--suppressions", "known"]);
    let warning = "line 1 of the suppressions matches no leak: function: no_such\n";
    assert!(shown.contains("1 leak") && shown.ends_with(warning), "{shown}");
    std::fs::write(scratch.0.join("known"), "file: train.py\n# old\nlibrary: gone*\n").unwrap();
    let all = none(&["--suppressions", "known"]);
    let old = serde_json::json!([{"line": 3, "rule": "library: gone*"}]);
    assert_eq!(all["unused_suppressions"], old);
}

#[test]
fn bad_input_is_reported_with_its_place() {
    let scratch = written(&leaking());
    std::fs::write(scratch.0.join("bad"), "# fine\nlibmine\n").unwrap();
    for (args, wanted) in [
        (&["--suppressions", "bad"][..], "bad: line 2: `libmine` has no colon"),
        (&["--suppressions", "none"], "--suppressions none: No such file"),
        (&["--min", "5 apples"], "5 apples"),
        (&["--rank", "3"], "--rank 3: no such process"),
    ] {
        let output = run(&scratch, &[&["leaks", "t.vtrace"], args].concat());
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && printed.contains(wanted), "{args:?}: {printed}");
    }
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
    let scratch = written(&t);
    let all = json(&scratch, &["leaks", "t.vtrace", "--json"]);
    assert_eq!(all["leaks"].as_array().unwrap().len(), 0, "{all:#}");
    let pool = &all["processes"][0]["pooled"][0];
    assert_eq!((&pool["library"], &pool["bytes"]), (&"PyTorch".into(), &(6000 * MIB).into()));
    assert!(pool["rate_bytes_per_s"].as_f64().unwrap() > 0.0);
    let shown = text(&scratch, &["leaks", "t.vtrace"]);
    assert!(shown.contains("kept by PyTorch in its pool, which GROWS by"), "{shown}");
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
    let scratch = written(&t);
    let all = json(&scratch, &["leaks", "t.vtrace", "--json"]);
    let leaks = all["leaks"].as_array().unwrap();
    assert_eq!(leaks.len(), 1, "{all:#}");
    assert_eq!((&leaks[0]["level"], &leaks[0]["verdict"]), (&"tensor".into(), &"growing".into()));
    assert_eq!((&leaks[0]["bytes"], &leaks[0]["count"]), (&153_600.into(), &300.into()));
    assert_eq!(leaks[0]["frames"][leaks[0]["lead"].as_u64().unwrap() as usize]["line"], 41);
    let pooled = &all["processes"][0]["pooled"];
    assert_eq!(pooled[0]["bytes"], 600 * MIB - 153_600, "{pooled:#}");
    assert_eq!((&pooled[0]["free"], pooled.as_array().unwrap().len()), (&true.into(), 1));
    let shown = text(&scratch, &["leaks", "t.vtrace"]);
    assert!(shown.contains("GPU 0: 150.00 KiB in 300 blocks"), "{shown}");
}

#[test]
fn a_lost_beginning_counts_as_there_from_the_first() {
    let mut t = TraceBuilder::new();
    t.lose();
    t.event(5 * SECOND, Event::CheckpointBegin { id: 1 });
    for number in 0..200u64 {
        let alloc = t.allocation(Kind::Device, 0, (number + 1) << 30, 2 * MIB);
        let time_ns = number * MS;
        t.event(5 * SECOND + number, Event::CheckpointAlloc { id: 1, time_ns, alloc });
    }
    t.event(5 * SECOND + 300, Event::CheckpointEnd { id: 1 });
    for step in 0..300 {
        t.alloc(5 * SECOND + step * 10 * MS, Kind::Device, 500 << 30, 4 * MIB);
        t.free(5 * SECOND + step * 10 * MS + MS, Space::Device, 500 << 30);
    }
    let scratch = written(&t);
    let all = json(&scratch, &["leaks", "t.vtrace", "--json"]);
    assert_eq!(all["leaks"].as_array().unwrap().len(), 0, "{all:#}");
    let process = &all["processes"][0];
    assert_eq!((&process["beginning_lost"], &process["from_s"]), (&true.into(), &5.0.into()));
    assert_eq!(process["kept"][0]["bytes"], 400 * MIB);
    let shown = text(&scratch, &["leaks", "t.vtrace"]);
    assert!(shown.contains("the file's history begins at 5.000 s"), "{shown}");
    assert!(shown.contains("this trace has no stacks"), "{shown}");
}

#[test]
fn many_stacks_of_one_line_leak_together() {
    let mut t = TraceBuilder::new();
    t.code(1, "leak", "/home/me/a.py", 7);
    for path in 0..200 {
        t.code(100 + path, &format!("path{path}"), "/home/me/b.py", path as i32);
        t.stack(path + 1, &[], &[1, 100 + path], &[]);
    }
    for step in 0..200 {
        let now = SECOND + step * 10 * MS;
        t.alloc_by(now, Kind::Device, (step + 1) << 30, 2 * MIB, step as u32 + 1);
        t.alloc_by(now, Kind::Device, 500 << 30, 4 * MIB, 0);
        t.free(now + MS, Space::Device, 500 << 30);
    }
    let scratch = written(&t);
    let all = json(&scratch, &["leaks", "t.vtrace", "--json"]);
    let leak = &all["leaks"][0];
    assert_eq!((leak["verdict"].as_str(), leak["stacks"].as_u64()), (Some("growing"), Some(200)));
    assert_eq!(leak["bytes"], 400 * MIB);
    assert!(
        text(&scratch, &["leaks", "t.vtrace"]).contains("by 200 stacks that lead to this line")
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
    let scratch = written(&t);
    let all = json(&scratch, &["leaks", "t.vtrace", "--json"]);
    assert_eq!(all["leaks"].as_array().unwrap().len(), 0, "{all:#}");
}

/// A leaking program that waits at its end, and is examined then: the JSON document and the text.
fn asked(setup: Setup) -> (Value, String) {
    let scratch = Scratch::new();
    let setup = setup.env("VRAMTRACE_TEST_CLOCK", "0");
    let mut command = setup.command(&Program::c("leaks").0, &scratch);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let all = json(&scratch, &["leaks", "--json"]);
    let shown = text(&scratch, &["leaks"]);
    child.kill().unwrap();
    child.wait().unwrap();
    (all, shown)
}

#[test]
fn a_process_that_runs_is_reported_too() {
    let library = testkit::torch_stand_ins::libraries().join("libc10_cuda.so");
    let driver = Setup::simulated().cap("2GiB").arg("waits");
    for (setup, level) in [(driver.clone(), "driver"), (driver.arg(library.display()), "tensor")] {
        let (all, shown) = asked(setup);
        let leak = &all["leaks"][0];
        assert_eq!(
            (&leak["verdict"], &leak["level"]),
            (&"growing".into(), &level.into()),
            "{all:#}"
        );
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
    let cap = |bytes: u64| Event::Cap { device, bytes: Some(bytes) };
    let warn = Event::CapPolicy { device, only_warns: true, soft: None };
    let group = Event::GroupCap { device, bytes: Some(900 * MIB) };
    // Of 24 GiB, 664 MiB are used at the end: 600 by the leak, at 200 MiB a second.
    for (events, limit) in [
        (vec![], 24 << 10),
        (vec![cap(2 << 30)], 2 << 10),
        (vec![cap(2 << 30), warn], 24 << 10),
        (vec![cap(2 << 30), group], 900),
        (vec![cap(100 * MIB)], 0),
    ] {
        let mut t = leaking();
        events.iter().for_each(|event| t.event(SECOND, *event));
        let scratch = written(&t);
        let all = json(&scratch, &["leaks", "t.vtrace", "--json"]);
        let left = all["leaks"][0]["exhausted_in_s"].as_f64().unwrap();
        let wanted = (f64::from(limit) - 664.0).max(0.0) / 200.0;
        assert!((left - wanted).abs() <= 0.01 * wanted, "{limit}: {left} instead of {wanted}");
    }
}

#[test]
fn json_is_as_documented() {
    let scratch = written(&leaking());
    let all = json(&scratch, &["leaks", "t.vtrace", "--json"]);
    let keys = |value: &Value| -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert_eq!(keys(&all), set(&["schema", "leaks", "processes", "unused_suppressions"]));
    let leak = &all["leaks"][0];
    let asked = [
        "verdict",
        "level",
        "device",
        "bytes",
        "count",
        "rate_bytes_per_s",
        "exhausted_in_s",
        "confidence",
        "frames",
    ];
    let more = [
        "lead",
        "caller",
        "library",
        "stacks",
        "allocations",
        "frees",
        "evidence",
        "shape",
        "pid",
        "rank",
    ];
    assert_eq!(keys(leak), set(&[&asked[..], &more[..]].concat()));
    assert!(leak["device"].is_u64() && leak["bytes"].is_u64() && leak["count"].is_u64());
    assert!(leak["rate_bytes_per_s"].is_f64() && leak["exhausted_in_s"].is_f64());
    assert!((0.0..=1.0).contains(&leak["confidence"].as_f64().unwrap()));
    let holders: Value =
        serde_json::from_str(&text(&scratch, &["holders", "t.vtrace", "--json"])).unwrap();
    let frames = |value: &Value| value["frames"].as_array().unwrap().clone();
    let holder = holders["holders"].as_array().unwrap().iter();
    let same = holder.map(frames).find(|of| of.len() == frames(leak).len()).expect("the stack");
    assert_eq!(keys(&frames(leak)[0]), keys(&same[0]));
    // What has no trend has neither rate nor end.
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
    let scratch = written(&t);
    let all = json(&scratch, &["leaks", "t.vtrace", "--json"]);
    let leak = &all["leaks"][0];
    assert_eq!((&leak["verdict"], leak["bytes"].as_u64()), (&"never_freed".into(), Some(8 * MIB)));
    assert!(leak["rate_bytes_per_s"].is_null() && leak["exhausted_in_s"].is_null(), "{leak:#}");
}
