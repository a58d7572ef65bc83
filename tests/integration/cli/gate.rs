//! `vramtrace run --fail-on-leak --max-peak`: what a run must hold to, in CI.

use serde_json::{Value, json};
use testkit::{Program, Scratch, has, vramtrace};

#[track_caller]
fn json(scratch: &Scratch, args: &[&str]) -> Value {
    let output = vramtrace().args(args).current_dir(&scratch.0).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `vramtrace run OPTIONS -- PROGRAM MODE` over the simulated driver: exit status and stderr.
fn gated(scratch: &Scratch, options: &[&str], command: &[&str]) -> (Option<i32>, String) {
    testkit::sim();
    testkit::shim();
    let mut run = vramtrace();
    run.args(["run", "--simulate", "--out", "traces"]).args(options).arg("--");
    // Verdicts are not to depend on how busy the machine is: tests/programs/clock.h.
    run.env("VRAMTRACE_TEST_CLOCK", "0");
    let output = run.args(command).current_dir(&scratch.0).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// The lines of found.json.
fn lines(scratch: &Scratch) -> Vec<Value> {
    let text = std::fs::read_to_string(scratch.0.join("found.json")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The last line: that of the job.
fn found(scratch: &Scratch) -> Value {
    let last = lines(scratch).pop().unwrap();
    assert_eq!(last["record"], "job");
    last
}

fn processes(scratch: &Scratch) -> Vec<Value> {
    let all = lines(scratch).into_iter();
    all.filter(|line| line["record"] == "process").collect()
}

#[test]
fn a_run_fails_on_what_it_was_reported_to_fail_on() {
    let program = Program::c("leaks").0;
    let program = program.to_str().unwrap();
    let leak = ["--fail-on-leak", "--json", "found.json"];
    let scratch = Scratch::new();
    let (code, printed) = gated(&scratch, &leak, &[program, "linear"]);
    assert!(code == Some(1) && printed.contains("FAILED: pid"), "{code:?} {printed}");
    let all = found(&scratch);
    assert_eq!((&all["schema"], &all["passed"]), (&"vramtrace.run/2".into(), &false.into()));
    assert_eq!((&all["exit_status"], &all["leaks"]), (&0.into(), &1.into()));
    assert_eq!(all["worst_leak"]["verdict"], "growing");
    assert!(all["reasons"][0].as_str().unwrap().contains("growing"));
    let leak_of_process = &processes(&scratch)[0]["leaks"][0];
    has(leak_of_process, json!({ "fails": true, "verdict": "growing" }));
    // Too small a leak, none at all, and one that is known.
    let scratch = Scratch::new();
    let (code, printed) = gated(&scratch, &["--fail-on-leak=2GiB"], &[program, "linear"]);
    assert_eq!(code, Some(0), "{printed}");
    let scratch = Scratch::new();
    let (code, printed) = gated(&scratch, &leak, &[program, "lru"]);
    assert!(code == Some(0) && found(&scratch)["passed"] == true, "{printed}");
    // The command's exit status is not hidden by ours.
    let scratch = Scratch::new();
    let both = format!("{program} linear; exit 7");
    let (code, printed) = gated(&scratch, &leak, &["sh", "-c", &both]);
    assert!(code == Some(7) && printed.contains("FAILED: pid"), "{code:?} {printed}");
    assert_eq!(found(&scratch)["exit_status"], 7);
}

#[test]
fn a_run_fails_on_a_peak_and_on_bad_options() {
    let program = Program::c("leaks").0;
    let program = program.to_str().unwrap();
    let scratch = Scratch::new();
    let (code, printed) = gated(&scratch, &["--max-peak", "32MiB"], &[program, "exit"]);
    let wanted = "held 116.00 MiB of GPU 0 at its peak, 84.00 MiB more than --max-peak 32.00 MiB";
    assert!(code == Some(1) && printed.contains(wanted), "{code:?} {printed}");
    let scratch = Scratch::new();
    let (code, printed) = gated(&scratch, &["--max-peak", "1GiB"], &[program, "exit"]);
    assert_eq!(code, Some(0), "{printed}");
    for (options, wanted) in [
        (&["--max-peak", "8"][..], "unit"),
        (&["--fail-on-leak", "--suppressions", "no-file"], "no-file"),
        (&["--suppressions", "x"], "--fail-on-leak"),
        (&["--json", "no/such/directory"], "--json no/such/directory"),
    ] {
        let scratch = Scratch::new();
        let (code, printed) = gated(&scratch, options, &["touch", "was-run"]);
        assert!(code == Some(2) && printed.contains(wanted), "{options:?} {code:?} {printed}");
        assert!(!scratch.0.join("was-run").exists());
    }
    let mut off = vramtrace();
    off.args(["run", "--out", "off", "--fail-on-leak", "--", "true"]);
    let output = off.current_dir(&scratch.0).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && printed.contains("need a trace"), "{printed}");
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
    let (code, printed) = gated(&scratch, &["--fail-on-leak"], &["python3", "train.py"]);
    assert_eq!(code, Some(1), "{printed}");
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

/// As test runners do: many processes, at once and one after the other, most without a GPU.
#[test]
fn every_process_of_a_run_is_looked_at() {
    let program = Program::c("leaks").0;
    let program = program.to_str().unwrap();
    let all = "for n in 1 2 3; do (true; $0 exit) & $0 item; done; wait; sh -c true; ";
    let options = ["--fail-on-leak", "--max-peak", "200MiB", "--json", "found.json"];
    let scratch = Scratch::new();
    let (code, printed) = gated(&scratch, &options, &["sh", "-c", all, program]);
    assert_eq!(code, Some(0), "{printed}");
    let fine = found(&scratch);
    has(&fine, json!({ "passed": true, "exit_status": 0 }));
    assert_eq!((processes(&scratch).len(), &fine["reasons"]), (6, &Value::Array(vec![])));
    // One of them leaks, one holds too much, and the rules know of no other.
    let scratch = Scratch::new();
    std::fs::write(scratch.0.join("known"), "function: leaking_stream\nfunction: gone\n").unwrap();
    let bad = format!("{all} $0 slow; $0 async; $0 warm-up");
    let known = [&options[..], &["--suppressions", "known"]].concat();
    let (code, printed) = gated(&scratch, &known, &["sh", "-c", &bad, program]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(
        printed.contains("line 2 of the suppressions matches no leak: function: gone"),
        "{printed}"
    );
    let bad = found(&scratch);
    let of_processes = processes(&scratch);
    assert_eq!((&bad["passed"], of_processes.len()), (&false.into(), 9));
    let leaks = of_processes.iter().flat_map(|process| process["leaks"].as_array().unwrap());
    let failing: Vec<&Value> = leaks.filter(|leak| leak["fails"] == true).collect();
    assert_eq!((failing.len(), &failing[0]["bytes"]), (1, &10240.into()), "{bad:#}");
    let reasons = bad["reasons"].as_array().unwrap();
    let with = |word: &str| reasons.iter().filter(|r| r.as_str().unwrap().contains(word)).count();
    // The leak of the pool holds too much as well.
    assert_eq!((with("growing"), with("at its peak"), reasons.len()), (1, 2, 3), "{printed}");
    // A command that a signal ended: the run ends by it too.
    let scratch = Scratch::new();
    let killed = format!("{program} item; kill -9 $$");
    let (code, printed) = gated(&scratch, &options, &["sh", "-c", &killed]);
    assert_eq!(code, None, "{printed}");
    has(&found(&scratch), json!({ "signal": 9, "exit_status": null }));
}

/// Two runs at once with one directory: the first waits, as `sh`, until the second has ended.
fn beside_another(
    options: &[&str],
    ends: &str,
    (others, other): (&[&str], &[&str]),
) -> (Scratch, Option<i32>, String) {
    testkit::sim();
    testkit::shim();
    let scratch = Scratch::new();
    let script = format!("echo x >> started; until [ -e go ]; do sleep 0.01; done; {ends}");
    let mut first = vramtrace();
    first.args(["run", "--simulate", "--out", "traces"]).args(options).args(["--", "sh", "-c"]);
    first.arg(&script).current_dir(&scratch.0).stderr(std::process::Stdio::piped());
    first.env_remove("VRAMTRACE_RUN").stdin(std::process::Stdio::null());
    let first = first.spawn().unwrap();
    while !scratch.0.join("started").exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let (_, printed) = gated(&scratch, others, other);
    assert!(std::fs::read_dir(scratch.0.join("traces")).unwrap().count() > 0, "{printed}");
    std::fs::write(scratch.0.join("go"), "").unwrap();
    let output = first.wait_with_output().unwrap();
    (scratch, output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_run_is_not_judged_by_another_one_that_records_into_its_directory() {
    let program = Program::c("leaks").0;
    let other = [program.to_str().unwrap(), "linear"];
    let checks = ["--max-peak", "1MiB", "--fail-on-leak", "--json", "found.json"];
    let (scratch, code, printed) = beside_another(&checks, "true", (&[], &other));
    assert_eq!(code, Some(0), "{printed}");
    assert!(!printed.contains("FAILED"), "{printed}");
    assert_eq!(processes(&scratch), [Value::Null; 0]);
    assert_eq!(found(&scratch)["passed"], true);
    // What it started itself is judged, beside the other's.
    let own = format!("{} lru", program.display());
    let (scratch, code, printed) = beside_another(&checks, &own, (&[], &other));
    assert!(code == Some(1) && printed.contains("FAILED: pid"), "{code:?} {printed}");
    assert_eq!(processes(&scratch).len(), 1, "{printed}");
}

#[test]
fn a_command_is_not_started_again_because_another_run_was_out_of_memory() {
    let libc10 = testkit::torch_stand_ins::libraries().join("libc10_cuda.so");
    let program = Program::c("out_of_memory").0;
    let other = [program.to_str().unwrap(), libc10.to_str().unwrap(), "fixable", "1"];
    let others = ["--cap", "1400MiB", "--oom-report", "off"];
    let (scratch, code, printed) = beside_another(&["--fix=on-oom"], "exit 1", (&others, &other));
    assert_eq!(code, Some(1), "{printed}");
    assert_eq!(std::fs::read_to_string(scratch.0.join("started")).unwrap(), "x\n", "{printed}");
    assert!(!printed.contains("--fix=on-oom"), "{printed}");
}

#[test]
fn a_run_that_a_command_starts_is_judged_alone() {
    let program = Program::c("leaks").0;
    let scratch = Scratch::new();
    let inner = format!(
        "{} run --simulate --max-peak 1KiB -- {} linear; {0} run --simulate --max-peak 1KiB -- true",
        vramtrace().get_program().display(),
        program.display()
    );
    let checks = ["--json", "found.json"];
    let (code, printed) = gated(&scratch, &checks, &["sh", "-c", &inner]);
    // The second inner run has no trace of its own.
    assert_eq!((code, printed.matches("FAILED").count()), (Some(0), 1), "{printed}");
    assert_eq!(processes(&scratch), [Value::Null; 0], "{printed}");
}
