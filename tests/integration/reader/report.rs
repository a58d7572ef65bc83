//! `vramtrace report` as a command: which traces it takes, what it says, its exit status.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use testkit::trace_builder::{MS, SECOND, TraceBuilder};
use vramtrace_format::physical::{GIB, MIB, PAGE};
use vramtrace_format::{Event, Kind, RefusedBy, Space};

fn report(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vramtrace"))
        .arg("report")
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", errors(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn pids(output: &Output) -> Vec<u64> {
    let value = json(output);
    let processes = value["processes"].as_array().unwrap();
    processes.iter().map(|process| process["pid"].as_u64().unwrap()).collect()
}

/// The run that comes with the command, with all that a report may show.
#[test]
fn one_screen_unless_all_is_asked_for() {
    let scratch = testkit::Scratch::new();
    let packed = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/recorded.vtrace.gz");
    let mut bytes = Vec::new();
    let mut unpacked = flate2::read::GzDecoder::new(std::fs::File::open(packed).unwrap());
    std::io::Read::read_to_end(&mut unpacked, &mut bytes).unwrap();
    std::fs::write(scratch.0.join("t.vtrace"), bytes).unwrap();
    let printed = |name: &str, columns: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vramtrace"));
        command.args([name, "t.vtrace"]).args(more).current_dir(&scratch.0);
        text(&command.env("COLUMNS", columns).output().unwrap())
    };
    let shown = |columns: &str, more: &[&str]| printed("report", columns, more);
    for (columns, lines) in [("60", 70), ("80", 56), ("120", 49)] {
        let short = shown(columns, &[]);
        assert!(short.lines().count() <= lines, "{columns}: {}\n{short}", short.lines().count());
        for part in ["OUT OF MEMORY", "FIX ", "peak ", "activations.py", "report t.vtrace --full"] {
            assert!(short.contains(part), "{part}: {short}");
        }
        let full = shown(columns, &["--full"]);
        for part in ["by kind", "from allocations to", "largest live", "by role", "by library"] {
            assert!(full.contains(part), "{part}: {full}");
        }
        let most: usize = columns.parse().unwrap();
        // Of names that are too long the middle is left out; figures stay whole.
        assert!(short.contains("13.64 GiB at 2.042 s"), "{short}");
        let others = match columns {
            "60" => ["oom", "frag", "whatif"].map(|name| printed(name, columns, &[])).concat(),
            _ => String::new(),
        };
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
    let here = tempfile::tempdir().unwrap();
    small(7, 1).write(&here.path().join("a.vtrace"));
    let output = report(here.path(), &["a.vtrace"]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert_eq!(errors(&output), "");
    let text = text(&output);
    assert!(!text.contains('\u{1b}'), "{text:?}");
    for part in
        ["python3 train.py", "4.00 GiB  recorded, at 2.000 s", "3.00 GiB  1 allocation", "in order"]
    {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn a_run_of_ranks_is_reported_whole_or_one_rank_of_it() {
    let here = tempfile::tempdir().unwrap();
    ranks(here.path());
    let output = report(here.path(), &["."]);
    let all = text(&output);
    assert_eq!(all.matches("0 NVIDIA H200").count(), 4, "{all}");
    assert!(all.contains("rank 3: peak +1.00 GiB (2.0 times the median, 1.00 GiB)"), "{all}");
    assert!(all.contains("vramtrace report . --rank 3"), "{all}");
    assert_eq!(pids(&report(here.path(), &[".", "--rank", "2", "--json"])), [4713]);
    assert_eq!(pids(&report(here.path(), &[".", "--pid", "4711", "--json"])), [4711]);
    assert_eq!(pids(&report(here.path(), &[".", "--json"])), [4711, 4712, 4713, 4714]);
    let one = text(&report(here.path(), &[".", "--rank", "3", "--full"]));
    assert!(one.contains("rank 3 of 4") && one.contains("cuMemAlloc_v2"), "{one}");
    let output = report(here.path(), &[".", "--rank", "9"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("--rank 9: no such process"), "{}", errors(&output));
    assert!(errors(&output).contains("rank 0, rank 1, rank 2, rank 3"), "{}", errors(&output));
}

#[test]
fn nothing_named_is_the_newest_run() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path();
    for (name, pid, start) in [("vramtrace-a", 1, 10), ("vramtrace-b", 2, 30), ("other", 3, 25)] {
        std::fs::create_dir(path.join(name)).unwrap();
        small(pid, start).write(&path.join(name).join("x.vtrace"));
    }
    std::fs::create_dir(path.join("vramtrace-empty")).unwrap();
    small(4, 20).write(&path.join("vramtrace.h.4.1.vtrace"));
    let output = report(path, &["--json"]);
    assert_eq!(pids(&output), [2]);
    assert!(text(&report(path, &[])).starts_with("vramtrace-b\n"));
    // A lone file that is newer.
    small(5, 40).write(&path.join("vramtrace.h.5.1.vtrace"));
    assert_eq!(pids(&report(path, &["--json"])), [5]);
    // Another process of the same run: a child of it.
    let mut child = small(6, 41);
    child.header.parent_pid = 5;
    child.write(&path.join("vramtrace.h.6.1.vtrace"));
    assert_eq!(pids(&report(path, &["--json"])), [5, 6]);
    // A run into a directory of another name.
    std::fs::create_dir(path.join("elsewhere")).unwrap();
    small(7, 50).write(&path.join("elsewhere/x.vtrace"));
    assert_eq!(pids(&report(path, &["--json"])), [7]);
}

#[test]
fn wrong_input_says_what_is_wrong_and_what_would_be_right() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path();
    std::fs::write(path.join("text.vtrace"), "no trace at all ".repeat(500)).unwrap();
    std::fs::write(path.join("short.vtrace"), "x").unwrap();
    std::fs::write(path.join("empty.vtrace"), "").unwrap();
    std::fs::create_dir(path.join("nothing")).unwrap();
    for (arguments, wanted) in [
        (vec!["missing.vtrace"], "missing.vtrace: no such file"),
        (vec!["text.vtrace"], "text.vtrace: not a vramtrace trace"),
        (vec!["short.vtrace"], "short.vtrace: only 1 bytes long"),
        (vec!["empty.vtrace"], "empty.vtrace: only 0 bytes long"),
        (vec!["nothing"], "nothing: no trace (*.vtrace) in this directory"),
        (vec!["."], "none of the traces in this directory can be read"),
        (vec![], "no trace here"),
        (vec!["--at", "noon"], "seconds since the start"),
        (vec!["--top", "many"], "invalid value 'many'"),
    ] {
        let output = report(path, &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(errors(&output).contains(wanted), "{arguments:?}: {}", errors(&output));
        assert_eq!(text(&output), "");
    }
    // One good file among broken ones: the good one is shown, the others are named.
    small(7, 1).write(&path.join("good.vtrace"));
    let output = report(path, &["."]);
    assert_eq!(output.status.code(), Some(0));
    assert!(errors(&output).contains("text.vtrace"), "{}", errors(&output));
    assert!(text(&output).contains("train.py"));
}

#[test]
fn findings_asked_for_are_exit_1() {
    let here = tempfile::tempdir().unwrap();
    let mut t = small(7, 1);
    t.refused(5 * SECOND, Kind::Device, GIB, RefusedBy::Cap, 4 * GIB);
    t.write(&here.path().join("refused.vtrace"));
    let mut freed = TraceBuilder::new();
    freed.alloc(SECOND, Kind::Device, 16 * PAGE, MIB);
    freed.free(2 * SECOND, Space::Device, 16 * PAGE);
    freed.event(3 * SECOND, Event::Ended);
    freed.write(&here.path().join("clean.vtrace"));
    let code = |arguments: &[&str]| report(here.path(), arguments).status.code();
    assert_eq!(code(&["refused.vtrace"]), Some(0));
    assert_eq!(code(&["refused.vtrace", "--fail-on", "refusal"]), Some(1));
    assert_eq!(code(&["refused.vtrace", "--fail-on", "live"]), Some(1));
    assert_eq!(code(&["refused.vtrace", "--fail-on", "cut-off"]), Some(0));
    assert_eq!(code(&["clean.vtrace", "--fail-on", "refusal", "--fail-on", "live"]), Some(0));
    assert_eq!(code(&["clean.vtrace", "--fail-on", "sorrow"]), Some(2));
}

#[test]
fn the_report_is_of_the_moment_asked_for() {
    let here = tempfile::tempdir().unwrap();
    small(7, 1).write(&here.path().join("a.vtrace"));
    let live = |at| {
        let value = json(&report(here.path(), &["a.vtrace", "--json", "--at", at]));
        let process = &value["processes"][0];
        assert_eq!(process["ended_in_order"], true);
        process["devices"][0]["live_bytes"].as_u64().unwrap() / GIB
    };
    assert_eq!([live("0.5"), live("1"), live("peak"), live("2.5s"), live("4")], [0, 3, 4, 4, 3]);
}

#[test]
fn a_reader_that_closes_its_pipe_is_no_error() {
    let here = tempfile::tempdir().unwrap();
    small(7, 1).write(&here.path().join("a.vtrace"));
    let script = format!("{} report a.vtrace | head -1", env!("CARGO_BIN_EXE_vramtrace"));
    let output =
        Command::new("sh").args(["-c", &script]).current_dir(here.path()).output().unwrap();
    assert_eq!(errors(&output), "");
}
