//! `vramtrace oom`: its output for runs that were out of memory, and for runs that were not.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use testkit::InteractiveProgram;
use testkit::trace_builder::{MS, SECOND, TraceBuilder, cached};
use testkit::{Program, Run, Scratch, Setup, vramtrace};
use vramtrace_format::physical::MIB;
use vramtrace_format::{Definition, Event, Kind, RefusedBy};

fn run_in(scratch: &Scratch, args: &[&str]) -> Output {
    vramtrace().arg("oom").args(args).current_dir(&scratch.0).env("NO_COLOR", "1").output().unwrap()
}

#[track_caller]
fn text(scratch: &Scratch, args: &[&str]) -> String {
    let output = run_in(scratch, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The facts; every post-mortem's parts must add up to its figure.
#[track_caller]
fn json(scratch: &Scratch, args: &[&str]) -> Value {
    let all: Value = serde_json::from_str(&text(scratch, &[args, &["--json"]].concat())).unwrap();
    assert_eq!(all["schema"], "vramtrace.oom/1");
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

fn written(builder: &TraceBuilder) -> Scratch {
    let scratch = Scratch::new();
    builder.write(&scratch.0.join("t.vtrace"));
    scratch
}

#[test]
fn a_torch_run_says_what_happened_why_and_what_to_do() {
    let scratch = written(&cached());
    let shown = text(&scratch, &["t.vtrace"]);
    assert_contains(
        &shown,
        &[
            "OUT OF MEMORY  cuda:0 pid 4711 at 10.000 s: torch asked for 40.00 MiB at\n               \
             modeling_gpt2.py:212 < train.py:41\n",
            "  limit   256 MiB by the cap; the card had 1.00 GiB free: not the card\n",
            "  used    228.00 MiB = tensors 106.00 + torch cache 58.00 + cuBLAS 16.00 + NCCL 8.00 + \
             context 40.00\n",
            "  why     fragmentation: 58.00 MiB free inside PyTorch in 3 pinned segments, largest \
             hole 20.00 MiB;\n",
            "  holds   50.00 MiB  modeling_gpt2.py:301 < train.py:41   4 blocks\n",
            "  before  1 refusal that PyTorch absorbed by emptying its cache (harmless)\n",
            "  try     PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True   (replayed, it fits under",
            "          a cap of 268 MiB\n",
            "          a smaller request: up to 20.00 MiB would have been served\n",
            "  more    vramtrace frag t.vtrace --at oom\n",
            "held by blocks",
            "keeps free",
            "default (in force)",
            "asked for by",
        ],
    );
    assert!(!shown.contains("in this run"), "one alone is no list:\n{shown}");
    let all = json(&scratch, &["t.vtrace"]);
    let [oom] = &all["ooms"].as_array().unwrap()[..] else { panic!("{all:#}") };
    for (key, value) in [
        ("number", Value::from(1)),
        ("pid", 4711.into()),
        ("rank", Value::Null),
        ("device", 0.into()),
        ("level", "tensor".into()),
        ("at_s", 10.0.into()),
        ("size_bytes", (40 * MIB).into()),
        ("api", Value::Null),
        ("refused_by", "cap".into()),
        ("limit_bytes", (256 * MIB).into()),
        ("requests", 1.into()),
        ("refusals", 2.into()),
        ("absorbed_before", 1.into()),
        ("went_on", false.into()),
    ] {
        assert_eq!(oom[key], value, "{key}");
    }
    let it = &oom["post_mortem"];
    assert_eq!(it["cause"], "fragmentation");
    assert_eq!(it["used_bytes"], 228 * MIB);
    let torch = &it["torch"];
    for (key, mib) in [
        ("allocated_bytes", 106),
        ("reserved_bytes", 164),
        ("free_bytes", 58),
        ("largest_hole_bytes", 20),
    ] {
        assert_eq!(torch[key], mib * MIB, "{key}");
    }
    assert_eq!((&torch["fits_in_one_piece"], &torch["segments"]), (&true.into(), &4.into()));
    let lead = it["lead"].as_u64().unwrap() as usize;
    assert_eq!((&it["frames"][lead]["line"], &it["grew_since_s"]), (&212.into(), &9.0.into()));
    let advice: Vec<&str> =
        it["advice"].as_array().unwrap().iter().map(|a| a["what"].as_str().unwrap()).collect();
    assert_eq!(advice, ["setting", "cap", "smaller_request"]);
    assert_eq!(it["advice"][0]["under"], "cap");
    let held = it["holders"].as_array().unwrap();
    let share: f64 = held.iter().map(|holder| holder["share"].as_f64().unwrap()).sum();
    assert!((share - 1.0).abs() < 1e-9, "{share}");
    assert_eq!(all["processes"][0]["devices"][0]["absorbed"], 1);
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

/// Neither as text nor as JSON.
#[test]
fn a_setting_that_this_pytorch_does_not_know_is_proposed_nowhere() {
    for (version, proposed) in [("2.0.1+cu118", false), ("2.8.0+cu128", true)] {
        let mut trace = cached();
        trace.define(Definition::Setting { name: "torch_version".into(), value: version.into() });
        let scratch = written(&trace);
        let by = |args: &[&str]| {
            let output = vramtrace().args(args).current_dir(&scratch.0).output().unwrap();
            assert!(output.status.success(), "{args:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let named = |text: &str, line: &str| text.contains(line);
        let oom = by(&["oom", "t.vtrace"]);
        let line = "try     PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
        assert_eq!(named(&oom, line), proposed, "{version}\n{oom}");
        let whatif = by(&["whatif", "t.vtrace"]);
        let line = "Try  export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
        assert_eq!(named(&whatif, line), proposed, "{version}\n{whatif}");
        let why = "PyTorch 2.0 does not know expandable_segments; 2.1 does";
        assert_eq!(named(&whatif, why), !proposed, "{version}\n{whatif}");
        let report = by(&["report", "t.vtrace"]);
        let line = "FIX    export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
        assert_eq!(named(&report, line), proposed, "{version}\n{report}");
        let facts = by(&["report", "--json", "t.vtrace"]);
        let fix = "\"fix\": \"expandable_segments:True\"";
        assert_eq!(named(&facts, fix), proposed, "{version}\n{facts}");
        // The page shows this list.
        let advice = &json(&scratch, &["t.vtrace"])["ooms"][0]["post_mortem"]["advice"];
        assert_eq!(advice[0]["what"] == "setting", proposed, "{version}\n{advice:#}");
    }
}

#[test]
fn each_of_several_ooms_can_be_chosen() {
    let scratch = written(&three_times());
    let shown = text(&scratch, &["t.vtrace"]);
    assert_contains(
        &shown,
        &[
            "OUT OF MEMORY  cuda:0 pid 4711 at 9.000 s: cuMemAlloc_v2 asked for 50.00 MiB",
            "(2 of 2)",
            "1 refusal after which the program went on (harmless)",
            "2 out-of-memories in this run",
        ],
    );
    let first = text(&scratch, &["t.vtrace", "--at", "1"]);
    assert_contains(
        &first,
        &["at 6.000 s", "57.00 MiB", "and the run went on", "(1 of 2)", "the card"],
    );
    assert_contains(&first, &["4 requests in a row got nothing since 3.000 s"]);
    assert_eq!(text(&scratch, &["t.vtrace", "--at", "all"]).matches("OUT OF MEMORY").count(), 2);
    let all = json(&scratch, &["t.vtrace"]);
    assert_eq!(all["ooms"].as_array().unwrap().len(), 2);
    assert!(all["ooms"][0].get("post_mortem").is_none(), "only the chosen one is printed in full");
    assert_eq!(all["ooms"][1]["post_mortem"]["cause"], "cap");
    assert_eq!(all["ooms"][0]["requests"], 4);
    let all = json(&scratch, &["t.vtrace", "--at", "all"]);
    assert_eq!(all["ooms"][0]["post_mortem"]["cause"], "card");
    assert_eq!(all["ooms"][1]["api"], "cuMemAlloc_v2");
    for (args, wanted) in [
        (&["--at", "3"][..], "--at 3: the run has 2: give a number from 1 to 2"),
        (&["--at", "last"], "give `all`, or a number from 1"),
        (&["--rank", "3"], "--rank 3: no such process"),
        (&["--at", "1", "--device", "5"], "--at 1: the run has no out-of-memory on this device"),
    ] {
        let output = run_in(&scratch, &[&["t.vtrace"], args].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(wanted), "{args:?}: {stderr}");
    }
}

#[test]
fn a_run_without_any_says_so_in_one_line() {
    let mut t = TraceBuilder::new();
    t.event(0, Event::Cap { device: vramtrace_format::DeviceId(0), bytes: Some(1 << 30) });
    t.alloc(SECOND, Kind::Device, 1 << 40, 100 * MIB);
    t.refused(2 * SECOND, Kind::Device, 2 << 30, RefusedBy::Cap, 1 << 30);
    t.alloc(2 * SECOND + MS, Kind::Device, 2 << 40, 2 * MIB);
    let scratch = written(&t);
    let shown = text(&scratch, &["t.vtrace"]);
    assert_eq!(
        shown,
        "no out-of-memory; cuda:0: 1 refusal, all absorbed, peak 102.00 MiB counted of a cap of 1.00 GiB\n"
    );
    let all = json(&scratch, &["t.vtrace"]);
    assert!(all["ooms"].as_array().unwrap().is_empty());
    assert_eq!(all["processes"][0]["devices"][0]["absorbed"], 1);
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Device, 1 << 40, 100 * MIB);
    t.refused(2 * SECOND, Kind::Device, 2 << 30, RefusedBy::Warned, 1 << 30);
    assert_contains(
        &text(&written(&t), &[]),
        &["no out-of-memory; cuda:0: no refusal, 1 request passed the cap, which only warns, peak"],
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
    let shown = text(&scratch, &["."]);
    assert!(shown.starts_with("OUT OF MEMORY  rank 2 cuda:0 pid 4713 at 6.000 s"), "{shown}");
    assert_contains(
        &shown,
        &["3 out-of-memories in this run", "rank 1: no out-of-memory; cuda:0: no refusal"],
    );
    let rank3 = text(&scratch, &[".", "--rank", "3"]);
    assert!(rank3.starts_with("OUT OF MEMORY  rank 3 cuda:0"), "{rank3}");
    let all = json(&scratch, &["."]);
    let order: Vec<i64> =
        all["ooms"].as_array().unwrap().iter().map(|oom| oom["rank"].as_i64().unwrap()).collect();
    assert_eq!(order, [0, 2, 3]);
    assert_eq!(all["processes"].as_array().unwrap().len(), 4);
}

#[test]
fn an_unreadable_cap_is_the_cause_of_all() {
    let mut t = TraceBuilder::new();
    t.refused(SECOND, Kind::Device, 2 * MIB, RefusedBy::BadCap, 0);
    assert_contains(
        &text(&written(&t), &[]),
        &["  limit   VRAMTRACE_CAP cannot be understood", "  try     correct VRAMTRACE_CAP: 8GiB"],
    );
}

#[test]
fn the_recorded_run_reads_as_documented() {
    let scratch = Scratch::new();
    let mut demo = vramtrace();
    let demo = demo.current_dir(&scratch.0).args(["demo", "--recorded", "--out", "."]);
    assert!(demo.output().unwrap().status.success());
    let shown = text(&scratch, &["recorded.vtrace"]);
    let expected =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oom/recorded.txt");
    for (index, line) in shown.lines().enumerate() {
        let wide = line.chars().count();
        // Names of functions make tables wider.
        assert!(wide <= 100 || (index > 20 && wide <= 130), "{wide} columns: {line}");
        assert_eq!(line, line.trim_end(), "trailing spaces");
    }
    // Its libraries are on no disk here: the names of native frames may differ.
    let (head, _) = shown.split_once("\n    asked for by").unwrap();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&expected, head).unwrap();
    }
    assert_eq!(head, std::fs::read_to_string(&expected).unwrap(), "BLESS=1 writes it anew");
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
    let all = json(&run.scratch, &[]);
    let [oom] = &all["ooms"].as_array().unwrap()[..] else { panic!("{all:#}") };
    assert_eq!((&oom["level"], &oom["size_bytes"]), (&"tensor".into(), &(250 * MIB).into()));
    assert_eq!((&oom["refused_by"], &oom["refusals"]), (&"cap".into(), &2.into()));
    assert_eq!((&oom["absorbed_before"], &oom["went_on"]), (&1.into(), &false.into()));
    let it = &oom["post_mortem"];
    assert_eq!(it["cause"], "fragmentation");
    let torch = &it["torch"];
    // Of 8 segments of 100 MiB each second holds 20 MiB, the others 60.
    for (key, mib) in [("allocated_bytes", 320), ("reserved_bytes", 800), ("free_bytes", 480)] {
        assert_eq!(torch[key], mib * MIB, "{key}: {torch:#}");
    }
    assert_eq!(
        (&torch["largest_hole_bytes"], &torch["segments_pinned"]),
        (&(60 * MIB).into(), &8.into())
    );
    let asked: Vec<&str> = it["frames"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|frame| frame["language"] == "python")
        .map(|frame| frame["function"].as_str().unwrap())
        .collect();
    assert_eq!(asked, ["logits", "main", "<module>"], "{it:#}");
    let line = |holder: &Value| {
        let at = holder["lead"].as_u64().unwrap() as usize;
        holder["frames"][at]["line"].as_u64().unwrap()
    };
    let held: Vec<(u64, u64)> = it["holders"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|holder| !holder["lead"].is_null() && holder["frames"][0]["file"] != "")
        .map(|holder| (line(holder), holder["bytes"].as_u64().unwrap() / MIB))
        .collect();
    // Blocks are made in one line; who called that is the caller.
    assert!(held.contains(&(line_of("torch.cache_block(0"), 160)), "{held:?}");
    let part = |what: &str| {
        let parts = it["used"].as_array().unwrap().iter();
        parts
            .filter(|part| part["what"] == what)
            .map(|part| part["bytes"].as_i64().unwrap())
            .sum::<i64>()
    };
    assert_eq!((part("tensors"), part("torch_cache")), (320 << 20, 480 << 20));
    assert!(part("context") > 0, "{it:#}");
    let shown = text(&run.scratch, &[]);
    assert_contains(
        &shown,
        &["torch asked for 250.00 MiB at", "torch_oom.py:", "fragmentation: 480.00 MiB free"],
    );
    let cause = |run: &Run| json(&run.scratch, &[])["ooms"][0]["post_mortem"]["cause"].clone();
    let Some(run) = trained("together") else { return };
    assert_eq!(cause(&run), "fragmentation");
    let shown = text(&run.scratch, &[]);
    assert_contains(
        &shown,
        &["320.00 MiB free inside PyTorch", " left; together 330.00 MiB would fit"],
    );
    let Some(run) = trained("too-much") else { return };
    assert_eq!(cause(&run), "cap");
    let shown = text(&run.scratch, &[]);
    assert_contains(
        &shown,
        &["too much: asked 600.00 MiB", "480.00 MiB in tensors", "a cap of 1598 MiB"],
    );
}

#[test]
fn memory_that_the_cache_keeps_from_a_library_is_named() {
    let Some(run) = trained("library") else { return };
    let all = json(&run.scratch, &[]);
    let [oom] = &all["ooms"].as_array().unwrap()[..] else { panic!("{all:#}") };
    assert_eq!((&oom["level"], &oom["api"]), (&"driver".into(), &"cuMemAlloc_v2".into()));
    let it = &oom["post_mortem"];
    assert_eq!(
        (&it["cause"], &it["torch"]["releasable_bytes"]),
        (&"cap".into(), &(300 * MIB).into())
    );
    let advice: Vec<&str> =
        it["advice"].as_array().unwrap().iter().map(|a| a["what"].as_str().unwrap()).collect();
    assert!(advice.contains(&"empty_cache"), "{advice:?}");
    assert_contains(
        &text(&run.scratch, &[]),
        &["PyTorch's cache keeps 300.00 MiB that no tensor uses", "torch.cuda.empty_cache()"],
    );
}

#[test]
fn a_run_that_went_on_and_one_that_was_killed_are_distinguished() {
    let Some(run) = trained("survives") else { return };
    let run = run.ok();
    let shown = text(&run.scratch, &[]);
    assert_contains(&shown, &["and the run went on"]);
    assert_eq!(json(&run.scratch, &[])["ooms"][0]["went_on"], true);
    // Still running, and killed.
    let Some((program, setup)) = trains("hangs") else { return };
    let scratch = Scratch::new();
    let mut child = setup.command(&program.0, &scratch);
    let mut child = child.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert!(line.starts_with("OutOfMemoryError"), "{line}");
    assert_contains(&text(&scratch, &[]), &["and the process still runs", "fragmentation"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = text(&scratch, &[]);
    assert_contains(&killed, &["fragmentation", "torch asked for 250.00 MiB"]);
    assert!(!killed.contains("still runs"), "{killed}");
    // Cut off anywhere: what is there is printed, or the reason why not.
    let trace = &scratch.traces()[0];
    let bytes = testkit::trace_bytes(trace);
    for part in 1..24 {
        std::fs::write(scratch.0.join("cut.vtrace"), &bytes[..bytes.len() * part / 24]).unwrap();
        let output = run_in(&scratch, &["cut.vtrace"]);
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
    let running = text(&process.scratch, &[]);
    assert_contains(
        &running,
        &["cuMemAlloc_v2 asked for 600.00 MiB", "and the process still runs"],
    );
    // Somebody else gets his.
    assert_eq!((process.result("a 10"), process.result("m 700")), (0, 2));
    process.end();
    let shown = text(&process.scratch, &[]);
    assert_contains(
        &shown,
        &["cuMemAllocManaged asked for 700.00 MiB", "1 refusal after which", "by the cap"],
    );
    let all = json(&process.scratch, &[]);
    let it = &all["ooms"][0];
    assert_eq!((&it["refused_by"], &it["limit_bytes"]), (&"cap".into(), &(1024 * MIB).into()));
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
    let shown = text(&process.scratch, &[]);
    assert_contains(&shown, &["the card: 2.00 GiB", "more than the whole card has"]);
    assert_eq!(json(&process.scratch, &[])["ooms"][0]["refused_by"], "driver");
}

#[test]
fn a_cap_that_only_warns_ends_nothing() {
    let warned = Setup::simulated().preload().cap("1GiB").env("VRAMTRACE_CAP_MODE", "warn");
    let mut process = InteractiveProgram::start(warned);
    assert_eq!((process.result("a 600"), process.result("a 600")), (0, 0));
    process.end();
    assert_contains(
        &text(&process.scratch, &[]),
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
        let all = json(&run.scratch, &[]);
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
        assert_eq!(why(&text(&run.scratch, &[])), begins, "{words:?}");
        // The same sum, to the hundredth of a GiB.
        let line = run.stderr.lines().find(|line| line.trim_start().starts_with("used")).unwrap();
        let mut figures = line.split_whitespace().skip(1);
        let used = figures.next().unwrap().parse::<f64>().unwrap();
        let used = if figures.next() == Some("MiB") { used / 1024.0 } else { used };
        let ours = it["used_bytes"].as_u64().unwrap() as f64 / f64::from(1 << 30);
        assert!((used - ours).abs() < 0.011, "{words:?}: {used} against {ours}");
        let shown = text(&run.scratch, &[]);
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
    let all = json(&run.scratch, &[]);
    let [oom] = &all["ooms"].as_array().unwrap()[..] else { panic!("{all:#}") };
    let [neighbour] = &oom["post_mortem"]["neighbours"].as_array().unwrap()[..] else {
        panic!("{oom:#}")
    };
    assert_eq!(neighbour["pid"], other.pid());
    assert!(neighbour["bytes"].as_u64().unwrap() >= 1500 * MIB);
    let shown = text(&run.scratch, &[]);
    assert_contains(
        &shown,
        &[&format!("other processes: pid {} ", other.pid()), "another card: other processes"],
    );
}
