//! `vramtrace oom`: its output for runs that were out of memory, and for runs that were not.

use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::trace_builder::{MS, SECOND, TraceBuilder, cached, cap_event};
use testkit::{InteractiveProgram, Program, Run, Scratch, Setup, has};
use vramtrace_format::physical::MIB;
use vramtrace_format::{Definition, Event, Kind, RefusedBy};

use crate::oom_message::says;

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
pub fn assert_contains(shown: &str, wanted: &[&str]) {
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
        .prints("oom/torch", &["oom t.vtrace", "oom t.vtrace --json | ooms.0.post_mortem.advice"]);
}

/// A program of the driver's alone: refused, absorbed, refused for good; then it lives on.
fn three_times() -> TraceBuilder {
    let mut t = TraceBuilder::new();
    t.code(1, "fill", "/home/me/fill.py", 7);
    t.stack(1, &[], &[1], &[]);
    t.context(0, 0);
    t.alloc_by(SECOND, Kind::Device, 1 << 40, 100 * MIB, 1);
    // Absorbed.
    t.refused(2 * SECOND, Kind::Device, 2 * MIB, RefusedBy::Cap, 150 * MIB);
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

/// Absorbed refusals; one that was handled; a cap that only warns; a cap that is none.
#[test]
fn a_run_without_any_says_so_in_one_line_and_an_unreadable_cap_is_the_cause_of_all() {
    let mut absorbed = TraceBuilder::new();
    absorbed.event(0, cap_event(0, 1 << 30));
    absorbed.alloc(SECOND, Kind::Device, 1 << 40, 100 * MIB);
    absorbed.refused(2 * SECOND, Kind::Device, 2 * MIB, RefusedBy::Cap, 1 << 30);
    absorbed.alloc(2 * SECOND + MS, Kind::Device, 2 << 40, 2 * MIB);
    let scratch = Scratch::with(&absorbed);
    absorbed.refused(3 * SECOND, Kind::Device, 2 << 30, RefusedBy::Cap, 1 << 30);
    absorbed.alloc(4 * SECOND, Kind::Device, 3 << 40, 2 * MIB);
    absorbed.write(&scratch.0.join("handled.vtrace"));
    absorbed.event(5 * SECOND, Event::Aftermath { api: None, result: 3 });
    absorbed.write(&scratch.0.join("left.vtrace"));
    let mut warned = TraceBuilder::new();
    warned.alloc(SECOND, Kind::Device, 1 << 40, 100 * MIB);
    warned.refused(2 * SECOND, Kind::Device, 2 << 30, RefusedBy::Warned, 1 << 30);
    let mut unreadable = TraceBuilder::new();
    unreadable.refused(SECOND, Kind::Device, 2 * MIB, RefusedBy::BadCap, 0);
    warned.write(&scratch.0.join("warned.vtrace"));
    unreadable.write(&scratch.0.join("unreadable.vtrace"));
    scratch.prints(
        "oom/none",
        &["oom t.vtrace", "oom t.vtrace --json", "oom warned.vtrace", "oom unreadable.vtrace"],
    );
    scratch.prints("oom/handled", &["handled.vtrace"]);
    assert!(
        scratch.text("left.vtrace").contains(" ended by _exit with status 3; at 5.000 s 104.00 ")
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
pub fn libc10_cuda() -> PathBuf {
    testkit::torch_stand_ins::libraries().join("libc10_cuda.so")
}

fn script() -> PathBuf {
    testkit::repository().join("tests/python/torch_oom.py")
}

/// `tests/python/torch_oom.py` under a cap of 1500 MiB, of which the context takes its part.
fn trains(how: &str) -> Option<(Program, Setup)> {
    let Some((_, python)) = testkit::pythons().into_iter().next_back() else {
        testkit::skip("oom: no Python from 3.8 on");
        return None;
    };
    let setup = Setup::simulated()
        .preload()
        .cap("1500MiB")
        .env("VRAMTRACE_OOM_REPORT", "off")
        // Names of an interpreter's functions take their time, and are not what is looked at.
        .env("VRAMTRACE_STACKS", "python")
        .arg(script().display())
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
    let script = std::fs::read_to_string(script()).unwrap();
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
    let mut asked = list(&it["frames"]);
    asked.retain(|frame| frame["language"] == "python");
    let asked: Vec<&Value> = asked.iter().map(|frame| &frame["function"]).collect();
    assert_eq!(asked, ["logits", "main", "<module>"], "{it:#}");
    // Blocks are made in one line; who called that is the caller.
    let line = line_of("torch.cache_block(0");
    let made = |holder: &Value| {
        let lead = holder["lead"].as_u64().map(|at| &holder["frames"][at as usize]);
        lead.is_some_and(|lead| lead["line"] == line) && holder["bytes"] == 160 * MIB
    };
    assert!(list(&it["holders"]).iter().any(made), "{it:#}");
    let fragments =
        ["torch asked for 250.00 MiB at", "torch_oom.py:", "fragmentation: 480.00 MiB free"];
    assert_contains(&run.scratch.text("oom"), &fragments);
    for (how, cause, wanted) in [
        (
            "together",
            "fragmentation",
            &["320.00 MiB free in cache", " left; together 330.00 MiB would fit"][..],
        ),
        (
            "too-much",
            "cap",
            &["no room: asked 600.00 MiB", "480.00 MiB allocated", "a cap of 1598 MiB"],
        ),
    ] {
        let run = trained(how).unwrap();
        assert_eq!(json(&run.scratch, "oom")["ooms"][0]["post_mortem"]["cause"], cause);
        assert_contains(&run.scratch.text("oom"), wanted);
    }
}

/// The card is not called full, also where it has less than the addresses that were asked for.
#[test]
fn a_refused_call_that_allocates_nothing_is_named() {
    for (program, how, call) in [
        ("tables", "pools", "cuMemPoolCreate"),
        ("out_of_memory", "- expandable", "cuMemAddressReserve"),
        ("taken", "graph", "cuGraphInstantiateWithFlags"),
        ("taken", "graph", "cuGraphLaunch"),
        ("taken", "kernel", "cuLibraryLoadData"),
        ("taken", "streams", "cuStreamCreateWithPriority"),
        ("taken", "streams", "cuDevicePrimaryCtxRetain"),
    ] {
        let setup = Setup::simulated().devices("1x1GiB").preload();
        let setup = how.split(' ').fold(setup, |setup, word| setup.arg(word));
        let fault = format!("once-2@{call}:1");
        let run = Program::c(program).run(setup.env("VRAMTRACE_SIM_FAULT", fault));
        let shown = run.scratch.text(".");
        assert_contains(&shown, &["out of memory on", &format!("; {call} was refused")]);
        assert!(shown.contains("; limit: not known") && !shown.contains("full card"), "{shown}");
    }
}

/// As on an H200 with 139.80 GiB: the driver takes back whole pieces of a pool, and no piece with a block in it.
#[test]
fn memory_that_the_drivers_pools_keep_is_named() {
    let run = |devices, cap: &str| {
        let setup = Setup::simulated().devices(devices).preload().env("VRAMTRACE_CAP", cap);
        Program::c("out_of_memory").run(setup.arg("-").arg("pool").arg(200))
    };
    let full = run("1x1GiB", "24GiB");
    let keeps = "fragmentation: 240.00 MiB free in the driver's pools, beside live allocations";
    assert_contains(&full.stdout, &["200 MiB: 2"]);
    assert_contains(&full.scratch.text("."), &["out of memory on GPU 0", keeps, "(24 %)"]);
    assert_contains(&full.scratch.text("oom"), &["+ free in pools 240.00 MiB"]);
    assert!(says(&full.stderr, "holds").ends_with("   80 allocations"), "{}", full.stderr);
    let capped = run("1x24GiB", "1GiB");
    let keeps = "; the driver's pools keep 240.00 MiB that no allocation uses";
    assert_contains(&capped.scratch.text("oom"), &["no room: asked 200.00 MiB", keeps]);
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
    assert_contains(&run.scratch.text("oom"), &["and the run went on"]);
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
        let [shown, why] = [output.stdout, output.stderr].map(|b| String::from_utf8(b).unwrap());
        let is_shown = shown.contains("out-of-memory") || shown.contains("OUT OF");
        let status = output.status.code();
        let is_right = status == Some(0) && is_shown || status == Some(2) && !why.is_empty();
        assert!(is_right, "{part}: {shown}{why}");
    }
}

#[test]
fn callers_of_the_driver_are_named_without_torch() {
    let start = |setup: Setup| InteractiveProgram::start(setup.env("VRAMTRACE_OOM_REPORT", "off"));
    let setup = || Setup::simulated().preload();
    let mut process = start(setup().devices("2x24GiB").cap("1GiB"));
    assert_eq!(process.results("a 300, a 600"), [0, 2]);
    let running = ["cuMemAlloc_v2 asked for 600.00 MiB", "and the process still runs"];
    assert_contains(&process.scratch.text("oom"), &running);
    // Somebody else gets his.
    assert_eq!(process.results("a 10, m 700"), [0, 2]);
    process.finish();
    let shown = ["cuMemAllocManaged asked for 700.00 MiB", "600.00 MiB 1 cap", "by the cap"];
    assert_contains(&process.scratch.text("oom"), &shown);
    let it = json(&process.scratch, "oom")["ooms"][1].clone();
    has(&it, json!({ "refused_by": "cap", "limit_bytes": 1024 * MIB }));
    let it = &it["post_mortem"];
    let used = it["used_bytes"].as_u64().unwrap();
    // What did not fit, and what was in use, are more than the limit.
    assert!(used >= 310 * MIB && used + 700 * MIB > 1024 * MIB, "{used}");
    assert!(it["torch"].is_null());
    assert_eq!(it["advice"][0]["what"], "cap");
    let cap = it["advice"][0]["bytes"].as_u64().unwrap();
    assert!(cap >= used + 700 * MIB, "{cap} for {used}");
    // With that cap it runs.
    let mut again = InteractiveProgram::start(setup().cap(&format!("{}MiB", cap / MIB)));
    assert_eq!(again.results("a 300, a 10, m 700"), [0, 0, 0]);
    // The card itself is full.
    let mut process = start(setup().devices("1x2GiB"));
    assert_eq!(process.results("a 900, a 4000"), [0, 2]);
    process.kill();
    let shown = ["the card: 2.00 GiB", "more than the whole card has"];
    assert_contains(&process.scratch.text("oom"), &shown);
    let killed = json(&process.scratch, "oom")["ooms"][0].clone();
    assert_eq!(killed["refused_by"], "driver");
    let frames = killed["post_mortem"]["frames"].as_array().unwrap();
    assert!(frames.iter().any(|frame| frame["function"] == "allocate"), "{frames:#?}");
}

/// The recorder speaks when the program is out of memory; the trace says so of the same run, with the same limit.
#[track_caller]
pub fn agrees(run: &Run, post_mortems: usize) {
    let all = json(&run.scratch, "oom");
    let ooms = all["ooms"].as_array().unwrap();
    let handled = ooms.iter().all(|oom| oom["went_on"] == true && oom["level"] == "driver");
    assert!(if post_mortems == 0 { handled } else { !ooms.is_empty() }, "{all:#}");
    assert_eq!(run.stderr.contains("out of memory"), post_mortems > 0, "{}", run.stderr);
    if post_mortems > 0 {
        let limit = says(&run.stderr, "limit");
        assert_contains(&run.scratch.text("oom"), &[limit.split(';').next().unwrap()]);
    }
}

#[test]
fn other_processes_on_the_card_are_listed() {
    let state = Scratch::new();
    let card = || {
        let setup = Setup::simulated().preload().devices("1x4GiB");
        setup.env("VRAMTRACE_SIM_STATE", state.0.join("state"))
    };
    let mut other = InteractiveProgram::start(card());
    assert_eq!(other.result("a 1500"), 0);
    let run = Program::c("out_of_memory").run(card().arg("-").arg("again").arg(2500));
    let neighbours = json(&run.scratch, "oom")["ooms"][0]["post_mortem"]["neighbours"].clone();
    let found = (neighbours.as_array().unwrap().len(), &neighbours[0]["pid"]);
    assert_eq!(found, (1, &json!(other.pid())));
    assert!(neighbours[0]["bytes"].as_u64().unwrap() >= 1500 * MIB);
    let named = format!("other processes: pid {} ", other.pid());
    assert_contains(&run.scratch.text("oom"), &[&named, "another card: other processes"]);
}
