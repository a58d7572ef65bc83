//! What others do to the files of a running program: cut, delete, rename, copy. The program never
//! notices, and the trace says what is missing.

use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testkit::{InteractiveProgram, MIB, Program, Scratch, Setup, report};

/// A program with 2 MiB, and its trace.
pub fn start(setup: Setup) -> (InteractiveProgram, PathBuf) {
    let mut program = InteractiveProgram::start(setup);
    assert_eq!(program.result("a 2"), 0);
    let trace = program.traces().first().cloned().unwrap_or_default();
    (program, trace)
}

fn preloaded() -> Setup {
    Setup::simulated().preload()
}

/// Hidden files beside the traces.
pub fn tails(directory: &Path) -> Vec<PathBuf> {
    files(directory).into_iter().filter(|path| is_tail(path)).collect()
}

fn is_tail(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "tail")
}

pub fn files(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn cut(trace: &Path, length: u64) {
    OpenOptions::new().write(true).open(trace).unwrap().set_len(length).unwrap();
}

/// More than what lies in memory at one time.
const SOME_WINDOWS: &str = "c 20000";
/// Each of three such, and 6 MiB.
pub const MANY_WINDOWS: &str = "c 20000, c 20000, c 20000, a 6";

/// The only process of a trace.
pub fn process_of(trace: &Path) -> Value {
    report(&[trace.into()])["processes"][0].clone()
}

/// Bytes that are live at its end.
pub fn live(trace: &Path) -> Value {
    process_of(trace)["devices"][0]["live_bytes"].clone()
}

fn damage(trace: &Path) -> String {
    process_of(trace)["damage"].to_string()
}

#[test]
fn a_trace_that_is_cut_at_any_moment_spares_the_program() {
    for part in [0, 2] {
        let (mut program, trace) = start(preloaded());
        // While it records as fast as it can.
        program.order("c 100000");
        let cut_part =
            || cut(&trace, trace.metadata().unwrap().len().checked_div(part).unwrap_or(0));
        for _ in 0..100 {
            cut_part();
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert_eq!(program.answer(), "0");
        cut_part();
        assert_eq!(program.result("a 6"), 0);
        program.finish();
        // A checkpoint behind the cut tells what was live, whatever came before.
        assert_eq!(process_of(&trace)["ended_in_order"], true);
        assert_eq!(live(&trace), 8 * MIB);
        assert!(program.stderr().lines().count() <= 1, "{}", program.stderr());
        assert!(program.stderr().contains("was truncated"), "{}", program.stderr());
        assert!(program.scratch.text("report .").contains("truncated"));
        assert_eq!(tails(&program.scratch.0), [] as [PathBuf; 0]);
    }
}

/// The last windows are in the tail, and so is the header page.
#[test]
fn cut_and_killed_the_rest_is_reported() {
    let (mut program, trace) = start(preloaded());
    assert_eq!(program.result(SOME_WINDOWS), 0);
    cut(&trace, 0);
    assert_eq!(program.result("a 6"), 0);
    program.kill();
    assert_eq!(process_of(&trace)["ended_in_order"], false);
    assert!(damage(&trace).contains("events are missing"), "{}", damage(&trace));
}

#[test]
fn renamed_it_goes_on_and_deleted_it_ends() {
    let (mut program, trace) = start(preloaded());
    let renamed = trace.with_file_name("renamed.vtrace");
    std::fs::rename(&trace, &renamed).unwrap();
    assert_eq!(program.results("c 20000, a 6"), [0, 0]);
    program.kill();
    assert_eq!(live(&renamed), 8 * MIB, "its tail is found all the same");

    let (mut program, trace) = start(preloaded());
    std::fs::remove_file(&trace).unwrap();
    assert_eq!(program.results(MANY_WINDOWS), [0; 4]);
    assert_eq!(program.stderr().lines().count(), 1, "{}", program.stderr());
    assert!(program.stderr().contains("it was deleted, or moved"), "{}", program.stderr());
    assert_eq!(tails(&program.scratch.0), [] as [PathBuf; 0], "of no use any more");
}

/// As a job's directory is renamed while it runs.
#[test]
fn in_a_renamed_working_directory_it_goes_on() {
    let parent = Scratch::new();
    let (before, after) = (parent.0.join("before"), parent.0.join("after"));
    std::fs::create_dir(&before).unwrap();
    let (mut program, _) = start(preloaded().cwd(&before).env("VRAMTRACE_OUT", ""));
    std::fs::rename(&before, &after).unwrap();
    assert_eq!(program.results(MANY_WINDOWS), [0; 4]);
    assert_eq!(program.stderr(), "");
    program.kill();
    let trace = files(&after).into_iter().find(|path| !is_tail(path)).unwrap();
    assert_eq!(live(&trace), 8 * MIB);
}

/// A child has neither the tail's mapping nor its lock, and may go on where it was forked. What a killed process left is
/// written into its trace.
#[test]
fn below_run_no_tail_stays() {
    for how in ["fork-kill", "abort"] {
        let scratch = Scratch::new();
        let program = Program::c("endings").0;
        scratch.run(&format!("run --simulate=1x8GiB --out out -- {} {how}", program.display()));
        let [trace] = &files(&scratch.0.join("out"))[..] else { panic!("one trace, and no tail") };
        assert_eq!(live(trace), 4 * MIB, "{how}");
        assert_eq!(process_of(trace)["ended_in_order"], false, "{how}");
        assert!(!damage(trace).contains("tail"), "{}", damage(trace));
    }
}

#[test]
fn a_copy_without_its_tail_says_so() {
    let (mut program, trace) = start(preloaded());
    assert_eq!(program.result("a 6"), 0);
    program.kill();
    assert_eq!(live(&trace), 8 * MIB);
    assert!(!damage(&trace).contains("tail"), "{}", damage(&trace));
    let alone = Scratch::new();
    let copy = alone.0.join("copy.vtrace");
    std::fs::copy(&trace, &copy).unwrap();
    assert!(damage(&copy).contains("without its tail"));
}

#[test]
fn copies_with_and_without_holes_read_alike() {
    let setup = preloaded().arg("churn").arg(300_000).env("VRAMTRACE_MAX", "4MiB");
    let run = Program::c("endings").run(setup).ok();
    let trace = run.only_trace();
    for sparse in ["always", "never"] {
        let copy = run.scratch.0.join(format!("{sparse}.copy.vtrace"));
        let sparse = format!("--sparse={sparse}");
        assert!(Command::new("cp").arg(sparse).args([&trace, &copy]).status().unwrap().success());
        assert_eq!(process_of(&copy)["devices"], process_of(&trace)["devices"]);
        assert!(copy.metadata().unwrap().len() < 44 * MIB / 10);
    }
}

/// Cutting the tail would be a SIGBUS: its owner cannot, unless they are root.
#[test]
fn the_tail_cannot_be_cut_by_its_owner() {
    const NOBODY: u32 = 65_534;
    let root = testkit::user() == 0;
    let (mut program, trace) = start(if root { preloaded().user(NOBODY) } else { preloaded() });
    let [tail] = &tails(&program.scratch.0)[..] else { panic!("one tail") };
    let before = File::open(tail).unwrap().metadata().unwrap().len();
    let mut truncate = Command::new("truncate");
    truncate.args(["-s", "0"]).arg(tail);
    if root {
        truncate.uid(NOBODY).gid(NOBODY);
    }
    assert!(!truncate.output().unwrap().status.success());
    assert_eq!(File::open(tail).unwrap().metadata().unwrap().len(), before);
    assert_eq!(program.result(SOME_WINDOWS), 0);
    program.finish();
    assert_eq!(live(&trace), 2 * MIB);
}
