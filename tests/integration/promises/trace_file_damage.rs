//! What others do to the files of a running program: cut, delete, rename, copy. The program never
//! notices, and the trace says what is missing.

use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{InteractiveProgram, Program, Scratch, Setup, report, vramtrace};

const MIB: u64 = 1 << 20;

fn start() -> InteractiveProgram {
    InteractiveProgram::start(Setup::simulated().preload())
}

/// Hidden files beside the traces.
fn tails(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "tail")).collect()
}

fn cut(trace: &Path, length: u64) {
    OpenOptions::new().write(true).open(trace).unwrap().set_len(length).unwrap();
}

/// More than what lies in memory at one time.
fn some_windows(program: &mut InteractiveProgram) {
    assert_eq!(program.result("c 20000"), 0);
}

fn damage(report: &serde_json::Value) -> String {
    report["processes"][0]["damage"].to_string()
}

#[test]
fn a_trace_that_is_cut_at_any_moment_spares_the_program() {
    for part in [0, 2] {
        let mut program = start();
        assert_eq!(program.result("a 2"), 0);
        let trace = program.traces()[0].clone();
        // While it records as fast as it can.
        program.order("c 100000");
        let length = || std::fs::metadata(&trace).unwrap().len();
        for _ in 0..100 {
            cut(&trace, length().checked_div(part).unwrap_or(0));
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert_eq!(program.answer(), "0");
        cut(&trace, length().checked_div(part).unwrap_or(0));
        assert_eq!(program.result("a 6"), 0);
        program.end();
        let report = report(std::slice::from_ref(&trace));
        let process = &report["processes"][0];
        assert_eq!(process["ended_in_order"], true);
        // A checkpoint behind the cut tells what was live, whatever came before.
        assert_eq!(process["devices"][0]["live_bytes"], 8 * MIB);
        assert!(program.stderr().lines().count() <= 1, "{}", program.stderr());
        assert!(program.stderr().contains("was truncated"), "{}", program.stderr());
        let text = vramtrace().arg("report").arg(&trace).output().unwrap();
        assert!(String::from_utf8_lossy(&text.stdout).contains("truncated"));
        assert_eq!(tails(&program.scratch.0), [""; 0].map(PathBuf::from));
    }
}

#[test]
fn cut_and_killed_the_rest_is_reported() {
    let mut program = start();
    assert_eq!(program.result("a 2"), 0);
    some_windows(&mut program);
    let trace = program.traces()[0].clone();
    cut(&trace, 0);
    assert_eq!(program.result("a 6"), 0);
    program.kill();
    // The last windows are in the tail, and so is the header page.
    let report = report(&[trace]);
    assert_eq!(report["processes"][0]["ended_in_order"], false);
    assert!(damage(&report).contains("events are missing"), "{}", damage(&report));
}

#[test]
fn renamed_it_goes_on_and_deleted_it_ends() {
    let mut program = start();
    assert_eq!(program.result("a 2"), 0);
    let trace = program.traces()[0].clone();
    let renamed = trace.with_file_name("renamed.vtrace");
    std::fs::rename(&trace, &renamed).unwrap();
    some_windows(&mut program);
    assert_eq!(program.result("a 6"), 0);
    program.kill();
    let process = report(&[renamed])["processes"][0].clone();
    assert_eq!(process["devices"][0]["live_bytes"], 8 * MIB, "its tail is found all the same");

    let mut program = start();
    assert_eq!(program.result("a 2"), 0);
    std::fs::remove_file(&program.traces()[0]).unwrap();
    for _ in 0..3 {
        some_windows(&mut program);
    }
    assert_eq!(program.stderr().lines().count(), 1, "{}", program.stderr());
    assert!(program.stderr().contains("it was deleted, or moved"), "{}", program.stderr());
    assert_eq!(tails(&program.scratch.0), [""; 0].map(PathBuf::from), "of no use any more");
    assert_eq!(program.result("a 6"), 0);
}

/// As a job's directory is renamed while it runs.
#[test]
fn in_a_renamed_working_directory_it_goes_on() {
    let parent = Scratch::new();
    let (before, after) = (parent.0.join("before"), parent.0.join("after"));
    std::fs::create_dir(&before).unwrap();
    let setup = Setup::simulated().preload().cwd(&before).env("VRAMTRACE_OUT", "");
    let mut program = InteractiveProgram::start(setup);
    assert_eq!(program.result("a 2"), 0);
    std::fs::rename(&before, &after).unwrap();
    for _ in 0..3 {
        some_windows(&mut program);
    }
    assert_eq!(program.result("a 6"), 0);
    assert_eq!(program.stderr(), "");
    program.kill();
    let traces = std::fs::read_dir(&after).unwrap().map(|entry| entry.unwrap().path());
    let traces: Vec<_> = traces.filter(|path| !tails(&after).contains(path)).collect();
    assert_eq!(report(&traces)["processes"][0]["devices"][0]["live_bytes"], 8 * MIB);
}

/// A child has neither the tail's mapping nor its lock, and may go on where it was forked.
#[test]
fn a_forked_child_that_lives_on_does_not_keep_the_tail() {
    let scratch = Scratch::new();
    let program = Program::c("endings");
    let out = scratch.0.join("out");
    let output = vramtrace()
        .args(["run", "--simulate=1x8GiB", "--out"])
        .arg(&out)
        .arg("--")
        .arg(&program.0)
        .arg("fork-kill")
        .output()
        .unwrap();
    assert_eq!(tails(&out), [""; 0].map(PathBuf::from), "{output:?}");
    let traces: Vec<_> = std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().path()).collect();
    let report = report(&traces);
    let process = &report["processes"][0];
    assert_eq!(process["ended_in_order"], false);
    assert_eq!(process["devices"][0]["live_bytes"], 4 * MIB);
}

#[test]
fn a_copy_without_its_tail_says_so() {
    let mut program = start();
    assert_eq!(program.result("a 2"), 0);
    assert_eq!(program.result("a 6"), 0);
    program.kill();
    let trace = program.traces()[0].clone();
    let whole = report(std::slice::from_ref(&trace));
    assert_eq!(whole["processes"][0]["devices"][0]["live_bytes"], 8 * MIB);
    assert!(!damage(&whole).contains("tail"), "{}", damage(&whole));
    let alone = Scratch::new();
    let copy = alone.0.join("copy.vtrace");
    std::fs::copy(&trace, &copy).unwrap();
    assert!(damage(&report(&[copy])).contains("without its tail"));
}

#[test]
fn copies_with_and_without_holes_read_alike() {
    let program = Program::c("endings");
    let setup = Setup::simulated().preload().arg("churn").arg(300_000);
    let run = program.run(setup.env("VRAMTRACE_MAX", "4MiB")).ok();
    let trace = run.only_trace();
    let read = |path: &Path| report(&[path.into()])["processes"][0]["devices"].clone();
    for sparse in ["always", "never"] {
        let copy = run.scratch.0.join(format!("{sparse}.copy.vtrace"));
        let copied =
            Command::new("cp").arg(format!("--sparse={sparse}")).args([&trace, &copy]).status();
        assert!(copied.unwrap().success());
        assert_eq!(read(&copy), read(&trace));
        assert!(std::fs::metadata(&copy).unwrap().len() < 44 * MIB / 10);
    }
}

#[test]
fn a_run_writes_what_a_killed_process_left_into_its_trace() {
    let scratch = Scratch::new();
    let program = Program::c("endings");
    let out = scratch.0.join("out");
    let output = vramtrace()
        .args(["run", "--simulate=1x8GiB", "--out"])
        .arg(&out)
        .arg("--")
        .arg(&program.0)
        .arg("abort")
        .output()
        .unwrap();
    assert_eq!(tails(&out), [""; 0].map(PathBuf::from), "{output:?}");
    let traces: Vec<_> = std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().path()).collect();
    let report = report(&traces);
    assert_eq!(report["processes"][0]["devices"][0]["live_bytes"], 4 * MIB);
    assert!(!damage(&report).contains("tail"), "{}", damage(&report));
}

/// Cutting the tail would be a SIGBUS: its owner cannot, unless they are root.
#[test]
fn the_tail_cannot_be_cut_by_its_owner() {
    const NOBODY: u32 = 65_534;
    let root = testkit::user() == 0;
    let setup = Setup::simulated().preload();
    let mut program = InteractiveProgram::start(if root { setup.user(NOBODY) } else { setup });
    assert_eq!(program.result("a 2"), 0);
    let [tail] = &tails(&program.scratch.0)[..] else { panic!("one tail") };
    let before = File::open(tail).unwrap().metadata().unwrap().len();
    let mut truncate = Command::new("truncate");
    truncate.args(["-s", "0"]).arg(tail);
    if root {
        truncate.uid(NOBODY).gid(NOBODY);
    }
    assert!(!truncate.output().unwrap().status.success());
    assert_eq!(File::open(tail).unwrap().metadata().unwrap().len(), before);
    some_windows(&mut program);
    let process = program.end();
    assert_eq!(process["devices"][0]["live_bytes"], 2 * MIB);
}

#[test]
fn a_forked_child_has_a_tail_of_its_own() {
    let run = Program::c("endings").run(Setup::simulated().preload().arg("fork-cuda")).ok();
    let traces = run.traces();
    // The parent ended in order, the child by _exit: each tail belongs to one trace.
    let left = tails(&run.scratch.0);
    assert!(left.len() < traces.len(), "{left:?}");
    let ends = |trace: &PathBuf| {
        report(std::slice::from_ref(trace))["processes"][0]["ended_in_order"] == true
    };
    assert_eq!(traces.iter().filter(|trace| ends(trace)).count(), traces.len() - left.len());
}
