//! A run of several processes of which one failed: what ended, where and why stands first, and the
//! commands that are suggested name the process that failed.

use testkit::trace_builder::{MS, SECOND, TraceBuilder, cached, training};
use testkit::{Said, Scratch};
use vramtrace_format::Kind;
use vramtrace_format::physical::MIB;

fn written<const OF: usize>(ranks: [TraceBuilder; OF]) -> Scratch {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.0.join("job")).unwrap();
    for (rank, trace) in (0..).zip(ranks) {
        trace.rank(rank, OF as u32).write(&scratch.0.join(format!("job/{rank}.vtrace")));
    }
    scratch
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

/// It comes first, also with all of the report; commands that are suggested name it.
#[test]
fn the_rank_that_ran_out_of_memory_comes_first() {
    let scratch = written([training(), failed(0), training()]);
    scratch.prints("failed/oom", &["report job", "report job --rank 1", "oom job"]);
    assert!(scratch.text("report job --all").contains("next    vramtrace oom job --rank 1\n"));
}

/// When one rank ends, the others often fail after it, with more memory. The verdict is on the same process; of a run in
/// order it is on all.
#[test]
fn the_first_of_several_failures_is_the_cause() {
    let shown = written([training(), training()]).text("job");
    assert!(shown.contains("verdict    2 processes, all in order; the highest is rank 0: "));
    let scratch = written([failed(20), killed(30 * SECOND), failed(5), training()]);
    scratch.prints("failed/several", &["report job --top 1", "job"]);
}

#[test]
fn a_rank_that_was_killed_comes_first_where_none_ran_out_of_memory() {
    let scratch =
        written([training(), killed(6 * SECOND), killed(4 * SECOND), training(), training()]);
    scratch.prints("failed/killed", &["report job"]);
}

/// The table of ranks in a terminal of 80 columns: no cell is cut.
#[test]
fn the_ranks_fit_80_columns() {
    let scratch = written([training(), failed(0), training(), killed(9 * SECOND)]);
    let shown = Said::by(scratch.command(&["report", "job"]).env("COLUMNS", "80")).out;
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(!shown.split("held at the peaks").next().unwrap().contains("..."), "{shown}");
}
