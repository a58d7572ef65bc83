//! `vramtrace report` as a command: which traces it takes, what it says, its exit status.

use std::path::Path;

use testkit::trace_builder::{MS, SECOND, TraceBuilder};
use testkit::{Said, Scratch, bin_dir};
use vramtrace_format::physical::{GIB, PAGE};
use vramtrace_format::{Event, Kind, Space};

/// Of the newest run.
fn pids(scratch: &Scratch) -> Vec<u64> {
    let value = scratch.json("report");
    let processes = value["processes"].as_array().unwrap();
    processes.iter().map(|process| process["pid"].as_u64().unwrap()).collect()
}

/// The run that comes with the command, with all that a report may show.
#[test]
fn one_screen_unless_all_is_asked_for() {
    let scratch = Scratch::recorded("assets/recorded.vtrace.gz");
    let printed = |name: &str, columns: &str, more: &[&str]| {
        let mut command = scratch.command(&[&[name, "t.vtrace"], more].concat());
        Said::by(command.env("COLUMNS", columns)).out
    };
    let shown = |columns: &str, more: &[&str]| printed("report", columns, more);
    for (columns, lines) in [("60", 70), ("80", 56), ("120", 49)] {
        let short = shown(columns, &[]);
        assert!(short.lines().count() <= lines, "{columns}: {}\n{short}", short.lines().count());
        for part in ["OUT OF MEMORY", "try ", "peak ", "activations.py", "report t.vtrace --full"] {
            assert!(short.contains(part), "{part}: {short}");
        }
        let full = shown(columns, &["--full"]);
        for part in ["by kind", "from allocations to", "by role", "by library"] {
            assert!(full.contains(part), "{part}: {full}");
        }
        let most: usize = columns.parse().unwrap();
        // Of names that are too long the middle is left out; figures stay whole.
        assert!(short.contains("13.64 GiB at 2.042 s"), "{short}");
        let more: &[&str] = if columns == "60" { &["oom", "frag", "whatif"] } else { &[] };
        let others: String = more.iter().map(|name| printed(name, columns, &[])).collect();
        for line in short.lines().chain(full.lines()).chain(others.lines()) {
            assert!(line.chars().count() <= most, "{columns}: {line}");
        }
    }
    let ten = shown("120", &["--top", "10"]);
    assert!(ten.lines().count() > shown("120", &[]).lines().count(), "{ten}");
}

fn small(pid: u32, start_s: u64) -> TraceBuilder {
    let mut t = TraceBuilder::new();
    t.header.pid = pid;
    t.header.parent_pid = 100_000 + pid;
    t.header.uuid[0] = pid as u8;
    t.header.start_unix_ns = start_s * SECOND;
    t.context(MS, 0);
    t.alloc(SECOND, Kind::Device, 16 * PAGE, 3 * GIB);
    t.alloc(2 * SECOND, Kind::Device, 1 << 40, GIB);
    t.free(3 * SECOND, Space::Device, 1 << 40);
    t.event(4 * SECOND, Event::Ended);
    t
}

fn ranks(directory: &Path) {
    for rank in 0..4 {
        let mut t = TraceBuilder::new().rank(rank, 4);
        t.alloc(SECOND, Kind::Device, 16 * PAGE, u64::from(rank / 3 + 1) * GIB);
        t.event(2 * SECOND, Event::Ended);
        t.write(&directory.join(format!("vramtrace.node7.{rank}.vtrace")));
    }
}

#[test]
fn one_file_is_reported_in_words_without_colour_in_a_pipe() {
    let scratch = Scratch::new();
    small(7, 1).write(&scratch.0.join("a.vtrace"));
    scratch.prints("report/one", &["report a.vtrace"]);
    let said = Said::by(scratch.command(&["report", "a.vtrace"]).env_remove("NO_COLOR"));
    assert!(!said.out.contains('\x1b') && said.err.is_empty());
}

#[test]
fn a_run_of_ranks_is_reported_whole_or_one_rank_of_it() {
    let scratch = Scratch::new();
    ranks(&scratch.0);
    scratch.prints(
        "report/ranks",
        &[
            "report .",
            "report . --rank 2 --json | processes.*.pid",
            "report . --pid 4711 --json | processes.*.pid",
            "report . --json | processes.*.pid",
            "report . --rank 9",
        ],
    );
    let one = scratch.text("report . --rank 3 --full");
    assert!(one.contains("rank 3 of 4") && one.contains("by kind"), "{one}");
}

#[test]
fn nothing_named_is_the_newest_run() {
    let scratch = Scratch::new();
    let path = &scratch.0;
    for (name, pid, start) in [("vramtrace-a", 1, 10), ("vramtrace-b", 2, 30), ("other", 3, 25)] {
        std::fs::create_dir(path.join(name)).unwrap();
        small(pid, start).write(&path.join(name).join("x.vtrace"));
    }
    std::fs::create_dir(path.join("vramtrace-empty")).unwrap();
    small(4, 20).write(&path.join("vramtrace.h.4.1.vtrace"));
    assert_eq!(pids(&scratch), [2]);
    assert!(scratch.text("report").starts_with("vramtrace-b\n"));
    // A lone file that is newer.
    small(5, 40).write(&path.join("vramtrace.h.5.1.vtrace"));
    assert_eq!(pids(&scratch), [4, 5]);
    // A run into a directory of another name.
    std::fs::create_dir(path.join("elsewhere")).unwrap();
    small(7, 50).write(&path.join("elsewhere/x.vtrace"));
    assert_eq!(pids(&scratch), [7]);
}

#[test]
fn wrong_input_says_what_is_wrong_and_what_would_be_right() {
    let scratch = Scratch::new();
    let path = &scratch.0;
    scratch.write("text.vtrace", "no trace at all ".repeat(500));
    scratch.write("short.vtrace", "x");
    scratch.write("empty.vtrace", "");
    std::fs::create_dir(path.join("nothing")).unwrap();
    scratch.damaged_traces();
    for (line, why) in [
        ("report missing.vtrace", "missing.vtrace: no such file"),
        ("report text.vtrace", "text.vtrace: not a vramtrace trace"),
        ("report short.vtrace", "short.vtrace: only 1 bytes long"),
        ("report empty.vtrace", "empty.vtrace: only 0 bytes long"),
        ("report nothing", "nothing: no trace (*.vtrace) in this directory"),
        ("report .", "none of the traces in this directory can be read"),
        ("report", "no trace here"),
        ("report --at noon", "seconds since the start"),
        ("report --top many", "invalid value 'many'"),
    ] {
        scratch.fails(2, line, why);
        assert_eq!(scratch.run(line).stdout, b"");
    }
    // One good file among broken ones: the good one is shown, the others are named.
    small(7, 1).write(&path.join("good.vtrace"));
    scratch.fails(0, "report .", "text.vtrace");
    assert!(scratch.text("report .").contains("train.py"));
}

#[test]
fn the_report_is_of_the_moment_asked_for() {
    let scratch = Scratch::with(&small(7, 1));
    let live = |at| {
        let value = scratch.json(&format!("report t.vtrace --at {at}"));
        let process = &value["processes"][0];
        assert_eq!(process["ended_in_order"], true);
        process["devices"][0]["live_bytes"].as_u64().unwrap() / GIB
    };
    assert_eq!([live("0.5"), live("1"), live("peak"), live("2.5s"), live("4")], [0, 3, 4, 4, 3]);
}

#[test]
fn a_reader_that_closes_its_pipe_is_no_error() {
    let scratch = Scratch::with(&small(7, 1));
    let program = bin_dir().join("vramtrace");
    let script = format!("{} report t.vtrace 2> err | head -1; cat err", program.display());
    let said = scratch.shell(&script);
    assert_eq!(said.lines().count(), 1, "{said}");
}
