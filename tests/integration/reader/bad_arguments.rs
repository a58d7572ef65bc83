//! Arguments that name nothing in a trace: an error that says what would be right, and exit code 2.

use testkit::Scratch;
use testkit::trace_builder::{cached, training};

fn two_traces() -> Scratch {
    let scratch = Scratch::new();
    cached().write(&scratch.0.join("oom.vtrace"));
    std::fs::create_dir(scratch.0.join("job")).unwrap();
    // They end at 7 and 11 s.
    training().rank(0, 2).write(&scratch.0.join("job/0.vtrace"));
    cached().rank(1, 2).write(&scratch.0.join("job/1.vtrace"));
    scratch
}

#[track_caller]
fn refused(scratch: &Scratch, command: &str, wanted: &str) {
    scratch.fails(2, command, wanted);
    assert!(scratch.run(command).stdout.is_empty(), "{command}");
}

#[test]
fn a_moment_before_the_start_is_no_option() {
    let scratch = two_traces();
    for command in ["report", "holders", "frag", "export --format folded", "flame"] {
        let wanted = "invalid value '-1' for '--at <MOMENT>': give `peak`";
        refused(&scratch, &format!("{command} oom.vtrace --at -1"), wanted);
    }
    refused(
        &scratch,
        "oom oom.vtrace --at -1",
        "invalid value '-1' for '--at <WHICH>': give `all`, or a number from 1",
    );
    refused(&scratch, "report oom.vtrace --top -1", "invalid value '-1' for '--top <N>'");
    refused(&scratch, "diff oom.vtrace --at 1 --vs -2", "invalid value '-2' for '--vs <MOMENT>'");
}

#[test]
fn a_moment_behind_the_end_is_not_the_end() {
    let scratch = two_traces();
    for command in
        ["report", "report --json", "holders", "export --format folded -o f", "flame -o f"]
    {
        let wanted = "--at 99.500 s: oom.vtrace ends at 11.000 s";
        refused(&scratch, &format!("{command} oom.vtrace --at 99.5"), wanted);
    }
    assert!(!scratch.0.join("f").exists());
    for (command, wanted) in [
        ("diff oom.vtrace --at 1 --vs 12", "--vs 12.000 s: oom.vtrace ends at 11.000 s"),
        ("diff oom.vtrace --at 12 --vs 1", "--at 12.000 s: oom.vtrace ends at 11.000 s"),
        ("report job --at 12", "--at 12.000 s: the last of these 2 traces ends at 11.000 s"),
        ("frag oom.vtrace --at 99.5", "--at 99.500 s: oom.vtrace ends at 11.000 s"),
        ("oom oom.vtrace --at 2", "--at 2: the run has 1 out-of-memory: --at 1 shows it"),
    ] {
        refused(&scratch, command, wanted);
    }
    // Of several processes one may have ended before.
    for command in ["report job --at 9", "holders job --at 9", "report oom.vtrace --at 11.0001"] {
        scratch.text(command);
    }
}

#[test]
fn a_trace_needs_no_import() {
    let scratch = two_traces();
    let wanted = "oom.vtrace: this is a trace already: every command reads it, for example `vramtrace report FILE`";
    refused(&scratch, "import oom.vtrace -o new.vtrace", wanted);
    scratch.text("pack oom.vtrace -o packed.vtrace.gz");
    let wanted = "packed.vtrace.gz: this is a trace already";
    refused(&scratch, "import packed.vtrace.gz -o new.vtrace", wanted);
    let wanted = "job: is a directory: give one recording of another tool";
    refused(&scratch, "import job -o new.vtrace", wanted);
    assert!(!scratch.0.join("new.vtrace").exists());
}
