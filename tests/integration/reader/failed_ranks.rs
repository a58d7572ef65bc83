//! A run of several processes of which one failed: what ended, where and why stands first, and the
//! commands that are suggested name the process that failed.

use testkit::trace_builder::{MS, SECOND, TraceBuilder, cached, training};
use testkit::{MIB, Said, Scratch};
use vramtrace_format::{ContextId, DeviceId, Event, Kind, PostMortem, RefusedBy, StackId};

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
    scratch.prints("failed/oom", &["report job --top 1", "report job --rank 1", "oom job"]);
    assert!(scratch.text("report job --all").contains("next    vramtrace oom job --rank 1\n"));
}

/// When one rank ends, the others often fail after it, with more memory. The verdict is on the same process; of a run in
/// order it is on all.
#[test]
fn the_first_of_several_failures_is_the_cause() {
    let two = written([training(), training()]);
    training().rank(1, 4).write(&two.0.join("job/1.vtrace"));
    let shown = two.text("job");
    let begins =
        "verdict    2 processes, 2 of 4 ranks, all ended in order; the highest is rank 0: ";
    assert!(shown.contains(begins), "{shown}");
    let scratch = written([failed(20), killed(30 * SECOND), failed(5), training()]);
    scratch.prints("failed/several", &["report job --top 1", "job"]);
}

/// Who fills the card of a refused process is named with its line, and what others were refused and survived.
#[test]
fn who_else_holds_the_card_is_named() {
    let device = DeviceId(0);
    let mut holds = training();
    holds.refused(SECOND, Kind::Device, 16 << 30, RefusedBy::Driver, 0);
    holds.alloc(2 * SECOND, Kind::Device, 1 << 44, MIB);
    let mut refused = TraceBuilder::new();
    refused.context(MS, 0);
    refused.refused(20 * SECOND, Kind::Device, 8 << 30, RefusedBy::Driver, 0);
    let found =
        PostMortem { device, size: 8 << 30, by: Some(RefusedBy::Driver), ..PostMortem::default() };
    refused.event(20 * SECOND, Event::PostMortem(found));
    refused.event(20 * SECOND, Event::Neighbour { device, pid: 4712, bytes: Some(20 << 30) });
    let shown = written([refused, holds]).text("job");
    let beside =
        "\n  beside     rank 1: train.py:41 < train.py:77 held 64.00 MiB at the peak (40 %)\n";
    for part in
        ["other processes of this run: 1, 20.00 GiB", beside, "\n  refused    rank 1: 1 request\n"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn a_rank_that_was_killed_comes_first_where_none_ran_out_of_memory() {
    let scratch =
        written([training(), killed(6 * SECOND), killed(4 * SECOND), training(), training()]);
    scratch.prints("failed/killed", &["report job"]);
}

/// No process failed, and one keeps 2 MiB a second.
#[test]
fn a_rank_that_leaks_comes_first_where_none_failed() {
    let mut leaks = TraceBuilder::new();
    leaks.code(1, "keep", "/srv/leaky.py", 7);
    leaks.stack(1, &[], &[1], &[]);
    for n in 1..301 {
        leaks.alloc_by(n * SECOND, Kind::Device, n << 32, 2 * MIB, 1);
    }
    leaks.event(301 * SECOND, Event::Ended);
    let scratch = written([training(), leaks, training()]);
    let shown = scratch.text("report job");
    let begins = "LEAK  rank 1: memory leaks on GPU 0: 600.00 MiB\n  line    leaky.py:7: growing, ";
    assert!(shown.contains(begins), "{shown}");
    assert!(shown.contains("  next    vramtrace leaks job --rank 1\n"), "{shown}");
}

/// Contexts that `load` makes on card 0, also on that of another rank. They stay named to the end.
#[test]
fn contexts_alone_have_their_bytes_and_their_lines() {
    let scratch = written([0, 1].map(|card| {
        let mut t = TraceBuilder::new();
        t.code(1, "load", "/srv/load.py", 3);
        t.stack(1, &[], &[1], &[]);
        let (context, device) = (ContextId(1), DeviceId(0));
        t.event(MS, Event::ContextCreated { context, device, stack: StackId(1) });
        t.sample(2 * MS, Some(518 * MIB), 518 * MIB);
        t.alloc_on(SECOND, Kind::Device, card, 1 << 40, 600 * MIB);
        t.event(2 * SECOND, Event::Ended);
        t
    }));
    let guest = "rank 1 has contexts of 518.00 MiB on GPU 0, the card of rank 0\n";
    for (command, wanted) in [
        ("job", guest),
        ("report job", guest),
        ("report job --rank 1", "peak             518.00 MiB"),
        ("holders job --at end", "2  all      518.00 MiB  train.py  context: load.py:3\n"),
    ] {
        let shown = scratch.text(command);
        assert!(shown.contains(wanted), "{command}: {wanted}: {shown}");
    }
}

/// The table of ranks in a terminal of 80 columns: no cell is cut.
#[test]
fn the_ranks_fit_80_columns() {
    let scratch = written([training(), failed(0), training(), killed(9 * SECOND)]);
    let shown = Said::by(scratch.command(&["report", "job"]).env("COLUMNS", "80")).out;
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(!shown.split("held at the peaks").next().unwrap().contains("..."), "{shown}");
}
