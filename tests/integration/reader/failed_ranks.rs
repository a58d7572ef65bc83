//! A run of several processes of which one failed: what ended, where and why stands first, and the
//! commands that are suggested name the process that failed.

use std::process::Output;

use testkit::trace_builder::{MS, SECOND, TraceBuilder, cached, training};
use testkit::{Scratch, vramtrace};
use vramtrace_format::Kind;
use vramtrace_format::physical::MIB;

fn written(ranks: impl IntoIterator<Item = TraceBuilder>) -> Scratch {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.0.join("job")).unwrap();
    let ranks: Vec<TraceBuilder> = ranks.into_iter().collect();
    let of = ranks.len() as u32;
    for (rank, trace) in (0..).zip(ranks) {
        trace.rank(rank, of).write(&scratch.0.join(format!("job/{rank}.vtrace")));
    }
    scratch
}

fn output(scratch: &Scratch, arguments: &[&str]) -> Output {
    let mut command = vramtrace();
    command.args(arguments).current_dir(&scratch.0).env("NO_COLOR", "1").env("COLUMNS", "100");
    command.output().unwrap()
}

#[track_caller]
fn stdout(scratch: &Scratch, arguments: &[&str]) -> String {
    let output = output(scratch, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// [`cached`], begun so many seconds later.
fn failed(later_s: u64) -> TraceBuilder {
    let mut trace = cached();
    trace.header.start_unix_ns += later_s * SECOND;
    trace
}

/// Its last event is at that time, and no exit handler ran.
fn killed(at: u64) -> TraceBuilder {
    let mut trace = TraceBuilder::new();
    trace.context(MS, 0);
    trace.alloc(at, Kind::Device, 1 << 40, 100 * MIB);
    trace
}

/// Flat text: where lines are broken does not matter.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_rank_that_ran_out_of_memory_comes_first() {
    let scratch = written([training(), failed(0)]);
    for arguments in [&["report", "job"][..], &["report", "job", "--all"]] {
        let shown = stdout(&scratch, arguments);
        let first: Vec<&str> = shown.lines().take(8).collect();
        let first = flat(&first.join("\n"));
        for part in [
            "2 processes, the longest 11.0 s: 1 out of memory, 1 in order",
            "OUT OF MEMORY rank 1 on GPU 0 at 10.000 s, under your cap of 256 MiB",
            "LINE 40.00 MiB asked by modeling_gpt2.py:212 < train.py:41",
            "CAUSE fragmentation: asked 40.00 MiB",
            "FIX export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ] {
            assert!(first.contains(part), "{part:?} is not at the beginning:\n{shown}");
        }
        assert!(shown.contains("NEXT   vramtrace oom job --rank 1\n"), "{shown}");
        let table = shown.find("  rank ").unwrap();
        assert!(shown.find("OUT OF MEMORY").unwrap() < table, "{shown}");
    }
    let shown = stdout(&scratch, &["report", "job"]);
    assert!(shown.contains("vramtrace report job --rank 1 "), "{shown}");
    assert!(!shown.contains("--rank 0"), "{shown}");
}

/// When one rank ends, the others often fail after it, with more memory.
#[test]
fn the_first_of_several_failures_is_the_cause() {
    let scratch = written([failed(20), killed(30 * SECOND), failed(5), training()]);
    let shown = flat(&stdout(&scratch, &["report", "job"]));
    for part in [
        "4 processes, the longest 30.0 s: 2 out of memory, 1 cut off, 1 in order",
        "OUT OF MEMORY rank 2 on GPU 0 at 10.000 s",
        "ALSO rank 0 out of memory 15.0 s later; rank 1 cut off 15.0 s later",
        "NEXT vramtrace oom job --rank 2",
        "vramtrace report job --rank 2 #",
    ] {
        assert!(shown.contains(part), "{part:?} is not there:\n{shown}");
    }
    // The verdict is on the same process.
    let verdict = stdout(&scratch, &["job"]);
    assert!(verdict.contains("rank 2: out of memory"), "{verdict}");
    assert!(verdict.contains("vramtrace oom job --rank 2\n"), "{verdict}");
}

#[test]
fn a_rank_that_was_killed_comes_first_where_none_ran_out_of_memory() {
    let scratch =
        written([training(), killed(6 * SECOND), killed(4 * SECOND), training(), training()]);
    let shown = flat(&stdout(&scratch, &["report", "job"]));
    for part in [
        "5 processes, the longest 7.0 s: 2 cut off, 3 in order",
        "CUT OFF rank 2 at 4.000 s: killed, crashed or left by _exit, with 100.00 MiB live at the end",
        "ALSO rank 1 cut off 2.0 s later",
        "NEXT vramtrace report job --rank 2",
    ] {
        assert!(shown.contains(part), "{part:?} is not there:\n{shown}");
    }
}

#[test]
fn commands_name_the_process_that_was_chosen() {
    let scratch = written([training(), failed(0), training()]);
    let shown = stdout(&scratch, &["oom", "job"]);
    for command in [
        "vramtrace frag job --rank 1 --at oom",
        "vramtrace whatif job --rank 1\n",
        "vramtrace holders job --rank 1 --at 10.000 --full",
    ] {
        assert!(shown.contains(command), "{command}: {shown}");
    }
    assert_eq!(output(&scratch, &["oom", "job", "--rank", "1"]).status.code(), Some(0));
    let shown = stdout(&scratch, &["oom", "job", "--rank", "1"]);
    assert!(shown.contains("vramtrace whatif job --rank 1\n"), "{shown}");
    let shown = stdout(&scratch, &["report", "job", "--rank", "1"]);
    assert!(shown.contains("vramtrace report job --rank 1 --full"), "{shown}");
}
