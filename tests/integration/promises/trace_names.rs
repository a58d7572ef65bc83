//! `VRAMTRACE_OUT`, `--out` and what is found again: as docs/ENV.md says.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use testkit::{Program, Scratch, Setup};

use crate::trace_file_damage::files;

fn names(directory: &Path) -> Vec<String> {
    let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_string();
    let mut names: Vec<_> = files(directory).into_iter().map(name).collect();
    names.retain(|name| !matches!(name.as_str(), "stdout" | "stderr"));
    names.sort();
    names
}

fn record(scratch: Scratch, out: &str) -> testkit::Run {
    let setup = Setup::simulated().preload().arg("return").env("VRAMTRACE_OUT", out);
    Program::c("endings").run_in(setup, scratch)
}

#[test]
fn a_name_without_the_extension_is_one_directory_for_all_ranks() {
    let mut scratch = Scratch::new();
    for _ in 0..3 {
        scratch = record(scratch, "traces").ok().scratch;
    }
    assert_eq!(names(&scratch.0), ["traces"]);
    let traces = names(&scratch.0.join("traces"));
    assert_eq!(traces.len(), 3, "{traces:?}");
    assert!(traces.iter().all(|name| name.ends_with(".vtrace")), "{traces:?}");
}

#[test]
fn devices_and_plain_files_are_left_alone() {
    let scratch = Scratch::new();
    std::fs::write(scratch.0.join("notes"), "mine").unwrap();
    let run = record(record(scratch, "notes").ok().scratch, "/dev/zero").ok();
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(run.stderr.contains("Not a directory"), "{}", run.stderr);
    assert!(!Path::new("/dev/zero.2").exists());
    assert_eq!(names(&run.scratch.0), ["notes"]);
    assert_eq!(std::fs::read(run.scratch.0.join("notes")).unwrap(), b"mine");

    let scratch = Scratch::new();
    let null = scratch.0.join("null");
    let made = Command::new("mknod").arg(&null).args(["c", "1", "3"]).output().unwrap();
    if !made.status.success() {
        return testkit::skip_here("a null device of our own: mknod is not allowed");
    }
    let run = record(scratch, null.to_str().unwrap()).ok();
    assert_eq!(names(&run.quiet().scratch.0), ["null"]);
}

fn run_into(scratch: &Scratch, out: &str) -> Output {
    let program = Program::c("endings").0;
    let line = format!("run --simulate=1x8GiB --out {out} -- {}", program.display());
    let output = scratch.run(&line);
    assert!(output.status.success(), "{output:?}");
    output
}

/// The traces of a report.
fn reported(scratch: &Scratch, line: &str) -> Vec<String> {
    let report = scratch.json(line);
    let all = report["processes"].as_array().unwrap().iter();
    all.map(|process| process["trace"].as_str().unwrap().to_string()).collect()
}

#[test]
fn a_taken_name_is_numbered_and_found_again() {
    let scratch = Scratch::new();
    run_into(&scratch, "x.vtrace");
    let second = run_into(&scratch, "x.vtrace");
    assert!(String::from_utf8_lossy(&second.stderr).contains("x.2.vtrace"), "{second:?}");
    assert_eq!(names(&scratch.0), ["x.2.vtrace", "x.vtrace"]);
    // Of a directory, the newest run.
    assert_eq!(reported(&scratch, "report ."), ["./x.2.vtrace"]);
    assert_eq!(reported(&scratch, "report x.vtrace x.2.vtrace").len(), 2);
}

#[test]
fn the_newest_run_is_found_in_a_directory_of_any_name() {
    let scratch = Scratch::new();
    run_into(&scratch, "first.vtrace");
    run_into(&scratch, "elsewhere");
    let newest = names(&scratch.0.join("elsewhere"));
    assert_eq!(reported(&scratch, "report"), [format!("elsewhere/{}", newest[0])]);
}

#[test]
fn the_launcher_and_the_recorder_agree_on_what_records_nothing_and_on_directories() {
    for out in ["off", "/dev/null"] {
        let scratch = Scratch::new();
        run_into(&scratch, out);
        let run = record(scratch, out).ok().quiet();
        assert_eq!(names(&run.scratch.0), [""; 0], "{out}");
    }
    let scratch = Scratch::new();
    run_into(&scratch, "run.vtrace/");
    let run = record(scratch, "run.vtrace/").ok();
    assert_eq!(names(&run.scratch.0), ["run.vtrace"]);
    let traces = names(&run.scratch.0.join("run.vtrace"));
    assert!(traces.len() == 2 && traces.iter().all(|name| name.starts_with("vramtrace.")));
}

#[test]
fn a_percent_sign_in_the_name_of_the_working_directory_is_no_code() {
    let scratch = Scratch::new();
    let here = Scratch::at(scratch.0.join("50%h"));
    std::fs::create_dir(&here.0).unwrap();
    run_into(&here, "run.vtrace");
    assert_eq!(names(&here.0), ["run.vtrace"]);
}
