//! `vramtrace oom`: its output for runs that were out of memory, and for runs that were not.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::InteractiveProgram;
use testkit::trace_builder::{MS, SECOND, TraceBuilder, cached};
use testkit::{Program, Run, Scratch, Setup, has};
use vramtrace_format::physical::MIB;
use vramtrace_format::{Definition, Event, Kind, RefusedBy};

/// The facts; every post-mortem's parts must add up to its figure.
#[track_caller]
fn json(scratch: &Scratch, line: &str) -> Value {
    let all = scratch.json(line);
    for oom in all["ooms"].as_array().unwrap() {
        if let Some(used) = oom.get("post_mortem") {
            let parts = used["used"].as_array().unwrap().iter();
            let sum: i64 = parts.map(|part| part["bytes"].as_i64().unwrap()).sum();
            assert_eq!(sum, used["used_bytes"].as_i64().unwrap(), "{used:#}");
        }
    }
    all
}

/// Asserts that the text contains all of `wanted`, regardless of where its lines are broken.
#[track_caller]
fn assert_contains(shown: &str, wanted: &[&str]) {
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in wanted {
        assert!(flat(shown).contains(&flat(part)), "{part:?} is not there:\n{shown}");
    }
}

/// Each fact of it is in the kept document too: golden.rs has one of a recorded run.
#[test]
fn a_torch_run_says_what_happened_why_and_what_to_do() {
    let scratch = Scratch::with(&cached());
    json(&scratch, "oom t.vtrace");
    scratch
        .prints("oom/torch", &["oom t.vtrace", "oom t.vtrace --json | ooms processes.0.devices.0"]);
}

/// A program of the driver's alone: refused, absorbed, refused for good; then it lives on.
fn three_times() -> TraceBuilder {
    let mut t = TraceBuilder::new();
    t.code(1, "fill", "/home/me/fill.py", 7);
    t.stack(1, &[], &[1], &[]);
    t.context(0, 0);
    t.alloc_by(SECOND, Kind::Device, 1 << 40, 100 * MIB, 1);
    // Absorbed.
    t.refused(2 * SECOND, Kind::Device, 90 * MIB, RefusedBy::Cap, 150 * MIB);
    t.alloc_by(2 * SECOND + MS, Kind::Device, 2 << 40, 2 * MIB, 1);
    // For long, and then given.
    for n in 0..4 {
        t.refused((3 + n) * SECOND, Kind::Device, (60 - n) * MIB, RefusedBy::Driver, 0);
    }
    t.alloc_by(8 * SECOND, Kind::Device, 3 << 40, 2 * MIB, 1);
    t.refused(9 * SECOND, Kind::Device, 50 * MIB, RefusedBy::Cap, 150 * MIB);
    t
}

/// Neither as text nor as JSON; the page shows the list of `oom --json`.
#[test]
fn a_setting_that_this_pytorch_does_not_know_is_proposed_nowhere() {
    for (version, proposed) in [("2.0.1+cu118", false), ("2.8.0+cu128", true)] {
        let mut trace = cached();
        trace.define(Definition::Setting { name: "torch_version".into(), value: version.into() });
        let scratch = Scratch::with(&trace);
        let conf = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
        for (line, named, is_named) in [
            ("oom t.vtrace", format!("try     {conf}"), proposed),
            ("whatif t.vtrace", format!("Try  export {conf}"), proposed),
            (
                "whatif t.vtrace",
                "PyTorch 2.0 does not know expandable_segments; 2.1 does".into(),
                !proposed,
            ),
            ("report t.vtrace", format!("try     {conf}"), proposed),
            ("report t.vtrace --json", "\"fix\": \"expandable_segments:True\"".into(), proposed),
        ] {
            let shown = scratch.text(line);
            assert_eq!(shown.contains(&named), is_named, "{version}: {line}: {shown}");
        }
        let advice = &scratch.json("oom t.vtrace")["ooms"][0]["post_mortem"]["advice"];
        assert_eq!(advice[0]["what"] == "setting", proposed, "{version}\n{advice:#}");
    }
}

#[test]
fn each_of_several_ooms_can_be_chosen() {
    let scratch = Scratch::with(&three_times());
    json(&scratch, "oom t.vtrace --at all");
    scratch.prints(
        "oom/several",
        &[
            "oom t.vtrace",
            "oom t.vtrace --at 1",
            "oom t.vtrace --json | ooms.*.requests ooms.*.post_mortem.cause",
            "oom t.vtrace --at all --json | ooms.*.api ooms.*.post_mortem.cause",
            "oom t.vtrace --at 3",
            "oom t.vtrace --at last",
            "oom t.vtrace --rank 3",
            "oom t.vtrace --at 1 --device 5",
        ],
    );
    assert_eq!(scratch.text("oom t.vtrace --at all").matches("OUT OF MEMORY").count(), 2);
}

/// Only absorbed refusals; a cap that only warns; a cap that is none.
#[test]
fn a_run_without_any_says_so_in_one_line_and_an_unreadable_cap_is_the_cause_of_all() {
    let mut absorbed = TraceBuilder::new();
    let cap = Event::Cap { device: vramtrace_format::DeviceId(0), bytes: Some(1 << 30) };
    absorbed.event(0, cap);
    absorbed.alloc(SECOND, Kind::Device, 1 << 40, 100 * MIB);
    absorbed.refused(2 * SECOND, Kind::Device, 2 << 30, RefusedBy::Cap, 1 << 30);
    absorbed.alloc(2 * SECOND + MS, Kind::Device, 2 << 40, 2 * MIB);
    let mut warned = TraceBuilder::new();
    warned.alloc(SECOND, Kind::Device, 1 << 40, 100 * MIB);
    warned.refused(2 * SECOND, Kind::Device, 2 << 30, RefusedBy::Warned, 1 << 30);
    let mut unreadable = TraceBuilder::new();
    unreadable.refused(SECOND, Kind::Device, 2 * MIB, RefusedBy::BadCap, 0);
    let scratch = Scratch::with(&absorbed);
    warned.write(&scratch.0.join("warned.vtrace"));
    unreadable.write(&scratch.0.join("unreadable.vtrace"));
    scratch.prints(
        "oom/none",
        &["oom t.vtrace", "oom t.vtrace --json", "oom warned.vtrace", "oom unreadable.vtrace"],
    );
}

#[test]
fn of_many_ranks_the_first_that_ended_is_reported() {
    let scratch = Scratch::new();
    for rank in 0..4u32 {
        let mut t = TraceBuilder::new().rank(rank, 4);
        t.alloc(SECOND, Kind::Device, 1 << 40, 100 * MIB);
        // Rank 2 fails first; 3 after it, and 0 lives through it.
        let failed = [Some(1), None, Some(5), Some(6)][rank as usize];
        if let Some(at) = failed {
            t.refused(at * SECOND, Kind::Device, 50 * MIB, RefusedBy::Cap, 120 * MIB);
            t.refused((at + 1) * SECOND, Kind::Device, 50 * MIB, RefusedBy::Cap, 120 * MIB);
        }
        if rank == 0 {
            t.alloc(3 * SECOND, Kind::Device, 2 << 40, 2 * MIB);
        }
        t.write(&scratch.0.join(format!("r{rank}.vtrace")));
    }
    let of_ranks = "oom . --json | ooms.*.rank processes.*.rank";
    scratch.prints("oom/ranks", &["oom .", "oom . --rank 3", of_ranks]);
}

/// golden.rs keeps its text; these are the promises on its form.
#[test]
fn the_recorded_run_is_narrow() {
    let scratch = Scratch::new();
    scratch.text("demo --out .");
    for (index, line) in scratch.text("oom recorded.vtrace").lines().enumerate() {
        let wide = line.chars().count();
        // Names of functions make tables wider.
        assert!(wide <= 100 || (index > 20 && wide <= 130), "{wide} columns: {line}");
        assert_eq!(line, line.trim_end(), "trailing spaces");
    }
}

/// The stand-in of PyTorch's library.
fn libc10_cuda() -> PathBuf {
    testkit::torch_stand_ins::libraries().join("libc10_cuda.so")
}

/// `tests/python/torch_oom.py` under a cap of 1500 MiB, of which the context takes its part.
fn trains(how: &str) -> Option<(Program, Setup)> {
    let Some((_, python)) = testkit::pythons().into_iter().next_back() else {
        testkit::skip("oom: no Python from 3.8 on");
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/torch_oom.py");
    let setup = Setup::simulated()
        .preload()
        .cap("1500MiB")
        .env("VRAMTRACE_OOM_REPORT", "off")
        // Names of an interpreter's functions take their time, and are not what is looked at.
        .env("VRAMTRACE_STACKS", "python")
        .arg(script.display())
        .arg(libc10_cuda().display())
        .arg(how);
    Some((Program(python), setup))
}

fn trained(how: &str) -> Option<Run> {
    let (program, setup) = trains(how)?;
    Some(program.run(setup))
}

/// Line of the script that has this text.
fn line_of(text: &str) -> u64 {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/torch_oom.py");
    let script = std::fs::read_to_string(script).unwrap();
    1 + script.lines().position(|line| line.contains(text)).unwrap() as u64
}

#[test]
fn fragmentation_is_distinguished_from_too_much() {
    let Some(run) = trained("fragments") else { return };
    assert!(run.stderr.contains("OutOfMemoryError: 250 MiB"), "{}", run.stderr);
    let all = json(&run.scratch, "oom");
    // Of 8 segments of 100 MiB each second holds 20 MiB, the others 60.
    run.scratch.prints(
        "oom/fragments",
        &[
            "oom --json | ooms.*.level ooms.*.size_bytes ooms.*.refused_by ooms.*.refusals",
            "oom --json | ooms.*.absorbed_before ooms.*.went_on ooms.0.post_mortem.cause",
            "oom --json | ooms.0.post_mortem.torch",
        ],
    );
    let it = &all["ooms"][0]["post_mortem"];
    let list = |value: &Value| value.as_array().unwrap().clone();
    let frames = list(&it["frames"]);
    let asked = frames.iter().filter(|frame| frame["language"] == "python");
    let asked: Vec<&Value> = asked.map(|frame| &frame["function"]).collect();
    assert_eq!(asked, ["logits", "main", "<module>"], "{it:#}");
    // Blocks are made in one line; who called that is the caller.
    let line = line_of("torch.cache_block(0");
    let made = |holder: &Value| {
        let lead = holder["lead"].as_u64().map(|at| &holder["frames"][at as usize]);
        lead.is_some_and(|lead| lead["line"] == line) && holder["bytes"] == 160 * MIB
    };
    assert!(list(&it["holders"]).iter().any(made), "{it:#}");
    let shown = run.scratch.text("oom");
    assert_contains(
        &shown,
        &["torch asked for 250.00 MiB at", "torch_oom.py:", "fragmentation: 480.00 MiB free"],
    );
    let cause = |run: &Run| json(&run.scratch, "oom")["ooms"][0]["post_mortem"]["cause"].clone();
    let Some(run) = trained("together") else { return };
    assert_eq!(cause(&run), "fragmentation");
    let shown = run.scratch.text("oom");
    assert_contains(
        &shown,
        &["320.00 MiB free inside PyTorch", " left; together 330.00 MiB would fit"],
    );
    let Some(run) = trained("too-much") else { return };
    assert_eq!(cause(&run), "cap");
    let shown = run.scratch.text("oom");
    assert_contains(
        &shown,
        &["too much: asked 600.00 MiB", "480.00 MiB in tensors", "a cap of 1598 MiB"],
    );
}

#[test]
fn memory_that_the_cache_keeps_from_a_library_is_named() {
    let Some(run) = trained("library") else { return };
    json(&run.scratch, "oom");
    let facts = "ooms.*.level ooms.*.api ooms.0.post_mortem.cause ooms.0.post_mortem.advice.*.what";
    let releasable = "ooms.0.post_mortem.torch.releasable_bytes";
    run.scratch.prints("oom/library", &[&format!("oom --json | {facts} {releasable}")]);
    assert_contains(
        &run.scratch.text("oom"),
        &["PyTorch's cache keeps 300.00 MiB that no tensor uses", "torch.cuda.empty_cache()"],
    );
}

#[test]
fn a_run_that_went_on_and_one_that_was_killed_are_distinguished() {
    let Some(run) = trained("survives") else { return };
    let run = run.ok();
    let shown = run.scratch.text("oom");
    assert_contains(&shown, &["and the run went on"]);
    assert_eq!(json(&run.scratch, "oom")["ooms"][0]["went_on"], true);
    // Still running, and killed.
    let Some((program, setup)) = trains("hangs") else { return };
    let scratch = Scratch::new();
    let mut child = setup.command(&program.0, &scratch);
    let mut child = child.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert!(line.starts_with("OutOfMemoryError"), "{line}");
    assert_contains(&scratch.text("oom"), &["and the process still runs", "fragmentation"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = scratch.text("oom");
    assert_contains(&killed, &["fragmentation", "torch asked for 250.00 MiB"]);
    assert!(!killed.contains("still runs"), "{killed}");
    // Cut off anywhere: what is there is printed, or the reason why not.
    let trace = &scratch.traces()[0];
    let bytes = testkit::trace_bytes(trace);
    for part in 1..24 {
        std::fs::write(scratch.0.join("cut.vtrace"), &bytes[..bytes.len() * part / 24]).unwrap();
        let output = scratch.run("oom cut.vtrace");
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0) => {
                assert!(shown.contains("out-of-memory") || shown.contains("OUT OF"), "{shown}")
            }
            Some(2) => assert!(!output.stderr.is_empty()),
            other => panic!("{other:?} at {part}: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }
}

#[test]
fn callers_of_the_driver_are_named_without_torch() {
    let capped = Setup::simulated().preload().devices("2x24GiB").cap("1GiB");
    let mut process = InteractiveProgram::start(capped.clone().env("VRAMTRACE_OOM_REPORT", "off"));
    assert_eq!((process.result("a 300"), process.result("a 600")), (0, 2));
    let running = process.scratch.text("oom");
    assert_contains(
        &running,
        &["cuMemAlloc_v2 asked for 600.00 MiB", "and the process still runs"],
    );
    // Somebody else gets his.
    assert_eq!((process.result("a 10"), process.result("m 700")), (0, 2));
    process.end();
    let shown = process.scratch.text("oom");
    assert_contains(
        &shown,
        &["cuMemAllocManaged asked for 700.00 MiB", "1 refusal after which", "by the cap"],
    );
    let all = json(&process.scratch, "oom");
    let it = &all["ooms"][0];
    has(it, json!({ "refused_by": "cap", "limit_bytes": 1024 * MIB }));
    let used = it["post_mortem"]["used_bytes"].as_u64().unwrap();
    // What did not fit, and what was in use, are more than the limit.
    assert!(used >= 310 * MIB && used + 700 * MIB > 1024 * MIB, "{used}");
    assert!(it["post_mortem"]["torch"].is_null());
    let advice = it["post_mortem"]["advice"].as_array().unwrap();
    assert_eq!(advice[0]["what"], "cap");
    let cap = advice[0]["bytes"].as_u64().unwrap();
    assert!(cap >= used + 700 * MIB, "{cap} for {used}");
    // With that cap it runs.
    let mut again =
        InteractiveProgram::start(Setup::simulated().preload().cap(&format!("{}MiB", cap / MIB)));
    assert_eq!((again.result("a 300"), again.result("a 10"), again.result("m 700")), (0, 0, 0));

    // The card itself is full.
    let mut process = InteractiveProgram::start(
        Setup::simulated().preload().devices("1x2GiB").env("VRAMTRACE_OOM_REPORT", "off"),
    );
    assert_eq!((process.result("a 900"), process.result("a 4000")), (0, 2));
    process.kill();
    let shown = process.scratch.text("oom");
    assert_contains(&shown, &["the card: 2.00 GiB", "more than the whole card has"]);
    assert_eq!(json(&process.scratch, "oom")["ooms"][0]["refused_by"], "driver");
}

#[test]
fn a_cap_that_only_warns_ends_nothing() {
    let warned = Setup::simulated().preload().cap("1GiB").env("VRAMTRACE_CAP_MODE", "warn");
    let mut process = InteractiveProgram::start(warned);
    assert_eq!((process.result("a 600"), process.result("a 600")), (0, 0));
    process.end();
    assert_contains(
        &process.scratch.text("oom"),
        &["no out-of-memory; cuda:0: no refusal, ", "passed the cap, which only warns, peak 1."],
    );
}

/// The recorder speaks when the program is out of memory; the trace says so of the same runs.
#[test]
fn the_trace_repeats_the_recorders_message() {
    let program = Program::c("out_of_memory");
    let capped = |words: &[&str]| {
        let setup = Setup::simulated().preload().env("VRAMTRACE_CAP", "1400MiB");
        words.iter().fold(setup, |setup, word| setup.arg(word))
    };
    let torch = libc10_cuda().display().to_string();
    for (words, cause) in [
        (&[&torch, "fragments"][..], Some("fragmentation")),
        (&[&torch, "too-much"], Some("cap")),
        (&[&torch, "fraction"], Some("fragmentation")),
        (&[&torch, "absorbed", "3"], None),
        (&[&torch, "absorbed-then-out", "3"], Some("cap")),
        (&["-", "exit", "2000"], Some("cap")),
        (&["-", "again", "2000"], Some("cap")),
        (&["-", "go-on", "2000"], None),
        (&["-", "slowly", "2000"], None),
        (&["-", "host"], None),
        (&[&torch, "fragments", "blocks are not recorded"], Some("fragmentation")),
    ] {
        let mut setup = capped(words);
        if words.contains(&"blocks are not recorded") {
            setup = capped(&words[..2]).env("VRAMTRACE_TENSORS", "off");
        }
        let run = program.run(setup);
        let all = json(&run.scratch, "oom");
        let ooms = all["ooms"].as_array().unwrap();
        assert_eq!(ooms.len(), usize::from(cause.is_some()), "{words:?}: {all:#}");
        assert_eq!(
            run.stderr.contains("out of memory"),
            cause.is_some(),
            "{words:?}: {}",
            run.stderr
        );
        let Some(cause) = cause else { continue };
        let it = &ooms[0]["post_mortem"];
        assert_eq!(it["cause"], cause, "{words:?}");
        // The recorder and the trace give the same cause.
        let why = |text: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with("why")).unwrap();
            let why = line.trim_start()["why".len()..].trim_start();
            why.split(':').next().unwrap().to_string()
        };
        let begins = if cause == "fragmentation" { "fragmentation" } else { "too much" };
        assert_eq!(why(&run.stderr), begins, "{words:?}");
        assert_eq!(why(&run.scratch.text("oom")), begins, "{words:?}");
        // The same sum, to the hundredth of a GiB.
        let line = run.stderr.lines().find(|line| line.trim_start().starts_with("used")).unwrap();
        let mut figures = line.split_whitespace().skip(1);
        let used = figures.next().unwrap().parse::<f64>().unwrap();
        let used = if figures.next() == Some("MiB") { used / 1024.0 } else { used };
        let ours = it["used_bytes"].as_u64().unwrap() as f64 / f64::from(1 << 30);
        assert!((used - ours).abs() < 0.011, "{words:?}: {used} against {ours}");
        let shown = run.scratch.text("oom");
        if words.contains(&"fraction") {
            assert_contains(&shown, &["below 864.00 MiB by PyTorch's own memory fraction"]);
            assert_contains(&shown, &["set_per_process_memory_fraction"]);
        }
        if words.contains(&"absorbed-then-out") {
            assert_contains(&shown, &["3 refusals that PyTorch absorbed"]);
        }
    }
}

#[test]
fn other_processes_on_the_card_are_listed() {
    let scratch = Scratch::new();
    let state = scratch.0.join("state");
    let card = |words: &[&str]| {
        let setup = Setup::simulated().preload().devices("1x4GiB");
        let setup = setup.env("VRAMTRACE_SIM_STATE", &state);
        words.iter().fold(setup, |setup, word| setup.arg(word))
    };
    let mut other = InteractiveProgram::start(card(&[]));
    assert_eq!(other.result("a 1500"), 0);
    let run = Program::c("out_of_memory").run(card(&["-", "again", "2500"]));
    let all = json(&run.scratch, "oom");
    let [oom] = &all["ooms"].as_array().unwrap()[..] else { panic!("{all:#}") };
    let [neighbour] = &oom["post_mortem"]["neighbours"].as_array().unwrap()[..] else {
        panic!("{oom:#}")
    };
    assert_eq!(neighbour["pid"], other.pid());
    assert!(neighbour["bytes"].as_u64().unwrap() >= 1500 * MIB);
    let shown = run.scratch.text("oom");
    assert_contains(
        &shown,
        &[&format!("other processes: pid {} ", other.pid()), "another card: other processes"],
    );
}
