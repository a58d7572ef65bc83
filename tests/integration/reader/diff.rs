//! `vramtrace diff`: the line that grew is named, and clean runs pass.

use std::process::Output;

use serde_json::Value;
use testkit::trace_builder::{SECOND, TraceBuilder};
use testkit::{Scratch, vramtrace};
use vramtrace_format::physical::MIB;
use vramtrace_format::{Event, Kind, Space};

fn run(scratch: &Scratch, args: &[&str]) -> Output {
    vramtrace().args(args).current_dir(&scratch.0).env("NO_COLOR", "1").output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A run whose three lines hold 100, 60 and 40 MiB at its peak. `attention`: bytes of the second.
/// `noise`: what differs between runs of the same program: times, addresses, something small.
fn trained(attention: u64, noise: u64) -> TraceBuilder {
    let mut t = TraceBuilder::new();
    for (code, (name, file, line)) in [
        ("main", "/home/me/train.py", 9),
        ("Net.forward", "/home/me/model.py", 41),
        ("Attention.forward", "/home/me/model.py", 77),
        ("load", "/home/me/data.py", 5),
    ]
    .into_iter()
    .enumerate()
    {
        t.code(code as u32 + 1, name, file, line);
    }
    t.stack(1, &[], &[2, 1], &[]);
    t.stack(2, &[], &[3, 2, 1], &[]);
    t.stack(3, &[], &[4, 1], &[]);
    t.context(SECOND, 0);
    let at = |n: u64| (n << 40) + (noise % 7) * (4 << 20);
    t.alloc_by(SECOND + noise, Kind::Device, at(1), 100 * MIB, 1);
    t.alloc_by(2 * SECOND + noise, Kind::Device, at(2), attention, 2);
    t.alloc_by(3 * SECOND, Kind::Device, at(3), 40 * MIB, 3);
    t.alloc_by(3 * SECOND, Kind::Device, at(4), (noise % 3) * 2 * MIB + 2 * MIB, 1);
    t.free(4 * SECOND, Space::Device, at(2));
    t.event(5 * SECOND, Event::Ended);
    t
}

fn written(traces: &[(&str, TraceBuilder)]) -> Scratch {
    let scratch = Scratch::new();
    for (name, trace) in traces {
        trace.write(&scratch.0.join(name));
    }
    scratch
}

#[test]
fn against_means_the_run_before_in_diff_and_report() {
    let (before, after) = (trained(60 * MIB, 0), trained(70 * MIB, 3));
    let scratch = written(&[("before.vtrace", before), ("after.vtrace", after)]);
    let shown = |args: &[&str]| {
        let output = run(&scratch, args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
        stdout(&output)
    };
    let both = shown(&["diff", "before.vtrace", "after.vtrace"]);
    assert_eq!(shown(&["diff", "after.vtrace", "--against", "before.vtrace"]), both);
    assert!(both.contains("model.py:77"), "{both}");
    let report = shown(&["report", "after.vtrace", "--against", "before.vtrace", "--top", "15"]);
    assert!(report.ends_with(&format!("\n{both}")), "{report}");
    assert!(report.contains("peak             "), "{report}");
    let page =
        ["report", "--html", "after.vtrace", "--against", "before.vtrace", "-o", "page.html"];
    shown(&page);
    assert!(scratch.0.join("page.html").exists());
    for (args, wanted) in [
        (&["diff", "a", "b", "--against", "c"][..], "only one trace can be given with --against"),
        (&["diff", "after.vtrace", "--against", "nothing"], "nothing: no such file"),
        (&["report", "after.vtrace", "--against", "nothing"], "nothing: no such file"),
        (
            &["report", "--json", "after.vtrace", "--against", "before.vtrace"],
            "cannot be used with",
        ),
        (
            &["diff", "after.vtrace", "--against", "before.vtrace", "--vs", "3"],
            "cannot be used with",
        ),
    ] {
        let output = run(&scratch, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(wanted), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn a_planted_growth_of_five_percent_fails_with_its_line() {
    let base = trained(60 * MIB, 0);
    let grown = trained(70 * MIB, 3);
    let scratch = written(&[("base.vtrace", base), ("grown.vtrace", grown)]);
    let saved = run(&scratch, &["diff", "--save", "base.json", "base.vtrace"]);
    assert!(saved.status.success(), "{}", stderr(&saved));
    let gate = ["diff", "--baseline", "base.json", "--tolerance", "3%", "grown.vtrace"];
    let failed = run(&scratch, &gate);
    assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
    let printed = stderr(&failed);
    assert!(
        printed.contains("FAILED: GPU 0: memory in use grew by +10.00 MiB, +5.0 %"),
        "{printed}"
    );
    assert!(
        printed.contains("model.py:77 Attention.forward, called from model.py:41"),
        "{printed}"
    );
    assert!(printed.contains("+10.00 MiB"), "{printed}");
    let shown = run(&scratch, &[&gate[..], &["--format", "markdown"]].concat());
    let table = stdout(&shown);
    assert!(table.starts_with("### GPU memory: GPU 0: memory in use grew"), "{table}");
    assert!(table.contains("| `model.py:77 Attention.forward, called from"), "{table}");
    // More is allowed.
    let allowed =
        run(&scratch, &["diff", "--baseline", "base.json", "--tolerance", "10", "grown.vtrace"]);
    assert_eq!(allowed.status.code(), Some(0), "{}", stderr(&allowed));
}

#[test]
fn twenty_clean_runs_pass() {
    let scratch = written(&[("base.vtrace", trained(60 * MIB, 0))]);
    assert!(run(&scratch, &["diff", "--save", "base.json", "base.vtrace"]).status.success());
    for n in 1..=20 {
        trained(60 * MIB, n).write(&scratch.0.join("clean.vtrace"));
        let passed = run(&scratch, &["diff", "--baseline", "base.json", "clean.vtrace"]);
        assert_eq!(passed.status.code(), Some(0), "run {n}: {}", stderr(&passed));
        std::fs::remove_file(scratch.0.join("clean.vtrace")).unwrap();
    }
}

#[test]
fn the_lines_add_up_to_the_difference() {
    let scratch =
        written(&[("a.vtrace", trained(60 * MIB, 0)), ("b.vtrace", trained(90 * MIB, 0))]);
    let answer = run(&scratch, &["diff", "a.vtrace", "b.vtrace", "--format", "json"]);
    assert_eq!(answer.status.code(), Some(0), "no tolerance was asked for");
    let facts: Value = serde_json::from_slice(&answer.stdout).unwrap();
    let device = &facts["devices"][0];
    assert_eq!(device["in_use"]["change_bytes"], 30 * MIB);
    let lines = device["lines"].as_array().unwrap();
    let sum: i64 = lines.iter().map(|line| line["change_bytes"].as_i64().unwrap()).sum();
    assert_eq!(sum, 30 * MIB as i64);
    assert_eq!(lines[0]["function"], "Attention.forward");
    let shown = stdout(&run(&scratch, &["diff", "a.vtrace", "b.vtrace"]));
    assert!(shown.contains("+30.00 MiB"), "{shown}");
}

#[test]
fn two_moments_of_one_run() {
    let scratch = written(&[("a.vtrace", trained(60 * MIB, 0))]);
    let shown = stdout(&run(&scratch, &["diff", "a.vtrace", "--at", "1.5", "--vs", "3.5"]));
    assert!(shown.contains("+102.00 MiB"), "{shown}");
    let same = stdout(&run(&scratch, &["holders", "a.vtrace", "--at", "1.5", "--vs", "3.5"]));
    assert!(same.contains("+102.00 MiB") && same.contains("Attention.forward"), "{same}");
}

#[test]
fn what_cannot_be_compared_is_named() {
    let scratch = written(&[("a.vtrace", trained(60 * MIB, 0))]);
    std::fs::write(scratch.0.join("other.json"), "{\"schema\": \"x\", \"places\": []}").unwrap();
    for (args, wanted) in [
        (&["diff", "a.vtrace"][..], "nothing to compare with"),
        (&["diff", "a.vtrace", "a.vtrace", "--save", "b.json"], "only one trace can be given"),
        (&["diff", "--baseline", "gone.json", "a.vtrace"], "gone.json: cannot be read"),
        (&["diff", "--baseline", "other.json", "a.vtrace"], "vramtrace.baseline/1"),
        (&["diff", "--baseline", "a.vtrace", "a.vtrace"], "a.vtrace: "),
        (&["diff", "a.vtrace", "a.vtrace", "--tolerance", "x"], "e.g. 3%"),
    ] {
        let refused = run(&scratch, args);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(wanted), "{args:?}: {}", stderr(&refused));
    }
}
