//! Recordings as they are handed over: compressed, in directories, with spaces in their names, without a command.

use std::fs;
use std::process::Command;

use testkit::{Said, Scratch, repository, unpacked};

/// The recorded run, compressed and not.
fn recordings(scratch: &Scratch) {
    let packed = repository().join("assets/recorded.vtrace.gz");
    fs::create_dir(scratch.0.join("packed run")).unwrap();
    fs::copy(&packed, scratch.0.join("packed run/a.vtrace.gz")).unwrap();
    scratch.write("a.vtrace", unpacked("assets/recorded.vtrace.gz"));
}

/// The output of a command on the plain trace, with the name of the compressed one.
#[track_caller]
fn same(scratch: &Scratch, command: &str, given: &str) {
    let plain = scratch.text(&format!("{command} a.vtrace"));
    let words: Vec<&str> = command.split(' ').chain([given]).collect();
    let packed = scratch.says(&words).out;
    let name = |mut text: String| {
        for given in ["packed run/a.vtrace.gz", "packed run"] {
            text = text.replace(&format!("'{given}'"), "a.vtrace").replace(given, "a.vtrace");
        }
        text
    };
    assert_eq!(name(packed), plain, "{command} {given}");
}

#[test]
fn a_compressed_trace_is_read_as_the_trace() {
    let scratch = Scratch::new();
    recordings(&scratch);
    for command in ["holders --json", "verify"] {
        same(&scratch, command, "packed run/a.vtrace.gz");
    }
    same(&scratch, "report", "packed run");
    // The newest run here may be compressed.
    fs::remove_file(scratch.0.join("a.vtrace")).unwrap();
    assert!(scratch.text("").starts_with("'packed run'\n  verdict    out of memory"));
}

#[test]
fn commands_that_are_suggested_can_be_pasted() {
    let scratch = Scratch::new();
    recordings(&scratch);
    std::fs::rename(scratch.0.join("packed run"), scratch.0.join("it's packed")).unwrap();
    let report = scratch.says(&["report", "it's packed/a.vtrace.gz"]).out;
    let report: Vec<&str> = report.lines().collect();
    let next = report.iter().find_map(|line| line.strip_prefix("  next    ")).unwrap().to_string();
    let hints = report.iter().rev().take_while(|line| line.starts_with("vramtrace "));
    let hints = hints.filter(|line| !line.contains(" export ")).map(|line| line.to_string());
    for command in [next].into_iter().chain(hints) {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("set -e; vramtrace() {{ \"$0\" \"$@\"; }}; {command}")]);
        shell.arg(testkit::bin_dir().join("vramtrace")).current_dir(&scratch.0);
        Said::by(&mut shell).ended(0);
    }
}

#[test]
fn what_is_neither_a_file_nor_a_command_is_refused() {
    let scratch = Scratch::new();
    scratch.fails(2, "nosuch.vtrace", "");
    fs::write(scratch.0.join("b.vtrace.gz"), b"\x1f\x8b\x08\0\0\0\0\0\0\xff").unwrap();
    scratch.fails(2, "b.vtrace.gz", "");
}
