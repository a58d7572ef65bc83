//! `vramtrace run --fail-on-leak --max-peak`: what a run must hold to, in CI.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::{Program, Said, Scratch, has, shim, sim, vramtrace};

/// `vramtrace run OPTIONS -- COMMAND` over the simulated driver.
fn run(scratch: &Scratch, options: &str, command: &[&str]) -> Command {
    sim();
    shim();
    let options = options.split(' ').filter(|word| !word.is_empty());
    let mut run = scratch.command(&["run", "--simulate", "--out", "traces"]);
    run.args(options).arg("--").args(command);
    // Verdicts are not to depend on how busy the machine is: tests/programs/clock.h.
    run.env("VRAMTRACE_TEST_CLOCK", "0");
    run
}

/// In a new directory, with the lines of found.json: exit status, and stderr that contains a part.
#[track_caller]
fn gated(options: &str, command: &[&str], (code, part): (i32, &str)) -> Scratch {
    let scratch = Scratch::new();
    judged(&scratch, options, command, (code, part));
    scratch
}

#[track_caller]
fn judged(scratch: &Scratch, options: &str, command: &[&str], (code, part): (i32, &str)) {
    let said = Said::by(&mut run(scratch, options, command)).ended(code);
    assert!(said.err.contains(part), "{options}: {}", said.err);
}

fn leaks() -> String {
    Program::c("leaks").0.display().to_string()
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

const LEAK: &str = "--fail-on-leak --json found.json";
const FAILED: (i32, &str) = (1, "FAILED: pid");
const PASSED: (i32, &str) = (0, "");

#[test]
fn a_run_fails_on_what_it_was_reported_to_fail_on() {
    let program = &*leaks();
    let scratch = gated(LEAK, &[program, "linear"], FAILED);
    let all = found(&scratch);
    has(&all, json!({ "passed": false, "exit_status": 0, "leaks": 1 }));
    assert_eq!(all["worst_leak"]["verdict"], "growing");
    assert!(all["reasons"][0].as_str().unwrap().contains("growing"));
    let leak_of_process = &processes(&scratch)[0]["leaks"][0];
    has(leak_of_process, json!({ "fails": true, "verdict": "growing" }));
    // Too small a leak, and none at all.
    gated("--fail-on-leak=2GiB", &[program, "linear"], PASSED);
    assert_eq!(found(&gated(LEAK, &[program, "lru"], PASSED))["passed"], true);
    // The command's exit status is not hidden by ours.
    let both = format!("{program} linear; exit 7");
    let scratch = gated(LEAK, &["sh", "-c", &both], (7, "FAILED: pid"));
    assert_eq!(found(&scratch)["exit_status"], 7);
    let wanted = "held 634.00 MiB of GPU 0 at its peak, 84.00 MiB more than --max-peak 550.00 MiB";
    gated("--max-peak 550MiB", &[program, "exit"], (1, wanted));
    gated("--max-peak 1GiB", &[program, "exit"], PASSED);
}

#[test]
fn bad_options_are_refused_before_anything_runs() {
    for (options, wanted) in [
        ("--max-peak 8", "unit"),
        ("--fail-on-leak --suppressions no-file", "no-file"),
        ("--suppressions x", "--fail-on-leak"),
        ("--json no/such/directory", "--json no/such/directory"),
        ("--out off --fail-on-leak", "need a trace"),
    ] {
        let scratch = Scratch::new();
        let words = ["run", "--simulate"].into_iter().chain(options.split(' '));
        let words: Vec<&str> = words.chain(["--", "touch", "was-run"]).collect();
        let said = scratch.says(&words).ended(2);
        assert!(said.err.contains(wanted), "{options}: {}", said.err);
        assert!(!scratch.0.join("was-run").exists());
    }
}

/// As test runners do: many processes, at once and one after the other, most without a GPU.
#[test]
fn every_process_of_a_run_is_looked_at() {
    let program = &*leaks();
    let all = "for n in 1 2 3; do (true; $0 exit) & $0 item; done; wait; sh -c true; ";
    let options = "--fail-on-leak --max-peak 718MiB --json found.json";
    let scratch = gated(options, &["sh", "-c", all, program], PASSED);
    let fine = found(&scratch);
    has(&fine, json!({ "passed": true, "exit_status": 0, "reasons": [] }));
    assert_eq!(processes(&scratch).len(), 6);
    // One of them leaks, one holds too much, and the rules know of no other.
    let scratch = Scratch::new();
    scratch.write("known", "function: leaking_stream\nfunction: gone\n");
    let bad = format!("{all} $0 slow; $0 async; $0 warm-up");
    let unused = "line 2 of the suppressions matches no leak: function: gone";
    let known = format!("{options} --suppressions known");
    judged(&scratch, &known, &["sh", "-c", &bad, program], (1, unused));
    let bad = found(&scratch);
    let of_processes = processes(&scratch);
    assert_eq!((&bad["passed"], of_processes.len()), (&false.into(), 9));
    let leaks = of_processes.iter().flat_map(|process| process["leaks"].as_array().unwrap());
    let failing: Vec<&Value> = leaks.filter(|leak| leak["fails"] == true).collect();
    assert_eq!((failing.len(), &failing[0]["bytes"]), (1, &10240.into()), "{bad:#}");
    let reasons = bad["reasons"].as_array().unwrap();
    let with = |word: &str| reasons.iter().filter(|r| r.as_str().unwrap().contains(word)).count();
    // The leak of the pool holds too much as well.
    assert_eq!((with("growing"), with("at its peak"), reasons.len()), (1, 2, 3), "{bad:#}");
    // A command that a signal ended: the run ends by it too.
    let scratch = Scratch::new();
    let killed = format!("{program} item; kill -9 $$");
    let said = Said::by(&mut run(&scratch, options, &["sh", "-c", &killed]));
    assert_eq!(said.code, None, "{said:?}");
    has(&found(&scratch), json!({ "signal": 9, "exit_status": null }));
}

/// Two runs at once with one directory: the first waits, as `sh`, until the second has ended.
fn beside_another(options: &str, ends: &str, other: &[&str]) -> (Scratch, Said) {
    let scratch = Scratch::new();
    let script = format!("touch started; until [ -e go ]; do sleep 0.01; done; {ends}");
    let mut first = run(&scratch, options, &["sh", "-c", &script]);
    first.stdin(Stdio::null());
    let said = std::thread::scope(|scope| {
        let first = scope.spawn(|| Said::by(&mut first));
        while !scratch.0.join("started").exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let other = Said::by(&mut run(&scratch, "", other));
        assert!(std::fs::read_dir(scratch.0.join("traces")).unwrap().count() > 0, "{other:?}");
        scratch.write("go", "");
        first.join().unwrap()
    });
    (scratch, said)
}

#[test]
fn a_run_is_not_judged_by_another_one_that_records_into_its_directory() {
    let program = &*leaks();
    let checks = "--max-peak 1MiB --fail-on-leak --json found.json";
    // What it started itself is judged, beside the other's.
    for (own, code, judged) in [("true", 0, 0), (&format!("{program} lru"), 1, 1)] {
        let (scratch, said) = beside_another(checks, own, &[program, "linear"]);
        let said = said.ended(code);
        assert_eq!(said.err.contains("FAILED"), code == 1, "{}", said.err);
        assert_eq!(processes(&scratch).len(), judged, "{}", said.err);
        assert_eq!(found(&scratch)["passed"], code == 0);
    }
}

#[test]
fn a_run_that_a_command_starts_is_judged_alone() {
    let scratch = Scratch::new();
    let inner = format!(
        "{} run --simulate --max-peak 1KiB -- {} linear; {0} run --simulate --max-peak 1KiB -- true",
        vramtrace().get_program().display(),
        leaks()
    );
    let said = Said::by(&mut run(&scratch, "--json found.json", &["sh", "-c", &inner])).ended(0);
    // The second inner run has no trace of its own.
    assert_eq!(said.err.matches("FAILED").count(), 1, "{}", said.err);
    assert_eq!(processes(&scratch), [Value::Null; 0], "{}", said.err);
}
