//! `vramtrace leaks`: programs with known answers, and what is said of traces.

mod support;
#[path = "support/trace.rs"]
mod trace;

use std::io::BufRead;
use std::process::{Output, Stdio};

use serde_json::Value;
use support::{Program, Scratch, Setup, vramtrace};
use trace::{GPT2, MS, SECOND, TORCH, TraceBuilder};
use vramtrace_format::physical::MIB;
use vramtrace_format::{Event, Kind, Space};

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
        let said = &all["processes"][0]["suppressed"][0];
        assert_eq!((said["line"].as_u64(), said["leaks"].as_u64()), (Some(3), Some(1)), "{rule}");
    }
    let shown = text(&scratch, &["leaks", "t.vtrace", "--suppressions", "known"]);
    assert!(shown.contains("no leak\n") && shown.contains("suppressed by line 3"), "{shown}");
    std::fs::write(scratch.0.join("known"), "function: no_such\n").unwrap();
    assert!(text(&scratch, &["leaks", "t.vtrace", "--suppressions", "known"]).contains("1 leak"));
}

#[test]
fn bad_input_is_told_with_its_place() {
    let scratch = written(&leaking());
    std::fs::write(scratch.0.join("bad"), "# fine\nlibmine\n").unwrap();
    for (args, wanted) in [
        (&["--suppressions", "bad"][..], "bad: line 2: `libmine` has no colon"),
        (&["--suppressions", "none"], "--suppressions none: No such file"),
        (&["--min", "5 apples"], "5 apples"),
        (&["--rank", "3"], "--rank 3: no such process"),
    ] {
        let output = run(&scratch, &[&["leaks", "t.vtrace"], args].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(wanted), "{args:?}: {said}");
    }
}

#[test]
fn pools_imports_and_host_memory_are_no_leaks() {
    let mut t = leaking();
    for step in 0..300 {
        let now = 4 * SECOND + step * 10 * MS;
        t.alloc_by(now, Kind::Device, (400 + step) << 31, 20 * MIB, 3);
        t.alloc_by(now, Kind::Imported, (800 + step) << 31, 20 * MIB, 2);
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

/// Verdicts of one program, told with more certainty than a coin's.
fn verdicts(mode: &str) -> (Vec<String>, Value) {
    let setup = Setup::simulated().preload().env("VRAMTRACE_STACKS", "native").arg(mode);
    let run = Program::c("leaks").run(setup).ok();
    let all = json(&run.scratch, &["leaks", "--json"]);
    let leaks = all["leaks"].as_array().unwrap().iter();
    let sure = leaks.filter(|leak| leak["confidence"].as_f64().unwrap() >= 0.5);
    let verdict = |leak: &Value| leak["verdict"].as_str().unwrap().to_string();
    (sure.map(verdict).collect(), all)
}

#[test]
fn programs_with_known_answers() {
    for (mode, answer) in [
        ("linear", Some("growing")),
        ("slow", Some("growing")),
        ("below", Some("growing")),
        ("thread", Some("growing")),
        ("list", Some("freed_at_end")),
        ("none", None),
        ("cache", None),
        ("lru", None),
        ("warm-up", None),
        ("saw-tooth", None),
        ("pool", None),
        ("singletons", None),
        ("exit", None),
    ] {
        let (found, all) = verdicts(mode);
        assert_eq!(found, answer.into_iter().collect::<Vec<_>>(), "{mode}: {all:#}");
        let Some(leak) = all["leaks"].get(0).filter(|_| answer.is_some()) else { continue };
        let frames = leak["frames"].as_array().unwrap();
        if frames.is_empty() {
            support::skip("leaks: the recorder takes no stacks here");
        } else {
            let named = frames.iter().any(|frame| frame["function"] == "leaking_line");
            assert!(named, "{mode}: {frames:#?}");
        }
    }
}

#[test]
fn a_process_that_runs_is_told_of_too() {
    let scratch = Scratch::new();
    let setup = Setup::simulated().preload().arg("wait");
    let mut command = setup.command(&Program::c("leaks").0, &scratch);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let all = json(&scratch, &["leaks", "--json"]);
    let shown = text(&scratch, &["leaks"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(all["leaks"][0]["verdict"], "growing", "{all:#}");
    assert_eq!(all["processes"][0]["running"], true);
    assert!(shown.contains("it is still running") && shown.contains("full in"), "{shown}");
}

/// `vramtrace run OPTIONS -- PROGRAM MODE` over the simulated driver: exit status and stderr.
fn gated(scratch: &Scratch, options: &[&str], command: &[&str]) -> (Option<i32>, String) {
    support::sim();
    support::shim();
    let mut run = vramtrace();
    run.args(["run", "--simulate", "--out", "traces"]).args(options).arg("--");
    let output = run.args(command).current_dir(&scratch.0).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_run_fails_on_what_it_was_told_to_fail_on() {
    let program = Program::c("leaks").0;
    let program = program.to_str().unwrap();
    let found = |scratch: &Scratch| -> Value {
        serde_json::from_slice(&std::fs::read(scratch.0.join("found.json")).unwrap()).unwrap()
    };
    let leak = ["--fail-on-leak", "--json", "found.json"];
    let scratch = Scratch::new();
    let (code, said) = gated(&scratch, &leak, &[program, "linear"]);
    assert!(code == Some(1) && said.contains("FAILED: pid"), "{code:?} {said}");
    let all = found(&scratch);
    assert_eq!((&all["schema"], &all["passed"]), (&"vramtrace.run/1".into(), &false.into()));
    assert_eq!((&all["exit_status"], &all["leaks"][0]["fails"]), (&0.into(), &true.into()));
    assert_eq!(all["leaks"][0]["verdict"], "growing");
    assert!(all["reasons"][0].as_str().unwrap().contains("growing"));
    // Too small a leak, none at all, and one that is known.
    let scratch = Scratch::new();
    let (code, said) = gated(&scratch, &["--fail-on-leak=2GiB"], &[program, "linear"]);
    assert_eq!(code, Some(0), "{said}");
    let scratch = Scratch::new();
    let (code, said) = gated(&scratch, &leak, &[program, "lru"]);
    assert!(code == Some(0) && found(&scratch)["passed"] == true, "{said}");
    // The command's own failure is told, not hidden.
    let scratch = Scratch::new();
    let both = format!("{program} linear; exit 7");
    let (code, said) = gated(&scratch, &leak, &["sh", "-c", &both]);
    assert!(code == Some(7) && said.contains("FAILED: pid"), "{code:?} {said}");
    assert_eq!(found(&scratch)["exit_status"], 7);
}

#[test]
fn a_run_fails_on_a_peak_and_on_bad_options() {
    let program = Program::c("leaks").0;
    let program = program.to_str().unwrap();
    let scratch = Scratch::new();
    let (code, said) = gated(&scratch, &["--max-peak", "32MiB"], &[program, "none"]);
    let wanted = "held 66.00 MiB of GPU 0 at its peak, 34.00 MiB more than --max-peak 32.00 MiB";
    assert!(code == Some(1) && said.contains(wanted), "{code:?} {said}");
    let scratch = Scratch::new();
    let (code, said) = gated(&scratch, &["--max-peak", "1GiB"], &[program, "none"]);
    assert_eq!(code, Some(0), "{said}");
    for (options, wanted) in [
        (&["--max-peak", "8"][..], "unit"),
        (&["--fail-on-leak", "--suppressions", "no-file"], "no-file"),
        (&["--suppressions", "x"], "--fail-on-leak"),
        (&["--json", "no/such/directory"], "--json no/such/directory"),
    ] {
        let scratch = Scratch::new();
        let (code, said) = gated(&scratch, options, &["touch", "was-run"]);
        assert!(code == Some(2) && said.contains(wanted), "{options:?} {code:?} {said}");
        assert!(!scratch.0.join("was-run").exists());
    }
    let mut off = vramtrace();
    off.args(["run", "--out", "off", "--fail-on-leak", "--", "true"]);
    let output = off.current_dir(&scratch.0).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("need a trace"), "{said}");
}

const PYTHON: &str = r#"
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
def take(size):
    pointer = ctypes.c_uint64()
    cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
    return pointer
losses = []
for step in range(300):
    temporary = take(64 << 20)
    time.sleep(0.0005)
    losses.append(take(2 << 20))
    cuda.cuMemFree_v2(temporary)
"#;

#[test]
fn a_python_line_is_named() {
    let scratch = Scratch::new();
    std::fs::write(scratch.0.join("train.py"), PYTHON).unwrap();
    let (code, said) = gated(&scratch, &["--fail-on-leak"], &["python3", "train.py"]);
    assert_eq!(code, Some(1), "{said}");
    let all = json(&scratch, &["leaks", "traces", "--json"]);
    let leaks = all["leaks"].as_array().unwrap();
    assert_eq!(leaks.len(), 1, "{all:#}");
    let frames = leaks[0]["frames"].as_array().unwrap();
    let lines: Vec<_> = frames
        .iter()
        .filter(|frame| frame["language"] == "python")
        .map(|frame| frame["line"].as_u64().unwrap())
        .collect();
    // In `take`, called where the losses are kept.
    assert_eq!(lines, [10, 16], "{frames:#?}");
}
