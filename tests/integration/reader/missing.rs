//! Traces that do not tell all: damaged ones, and bounded ones whose events were erased.

use std::process::Output;

use serde_json::Value;
use testkit::trace_builder::{SECOND, TraceBuilder, cached};
use testkit::{Scratch, vramtrace};
use vramtrace_format::physical::MIB;
use vramtrace_format::{Alloc, Counters, Event, Kind, SiteId, Space, StackId, TraceReader};

fn run(scratch: &Scratch, args: &[&str]) -> Output {
    vramtrace().args(args).current_dir(&scratch.0).env("NO_COLOR", "1").output().unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A trace of which one record of an event is broken.
fn damaged() -> Scratch {
    let scratch = Scratch::new();
    let mut bytes = cached().bytes();
    let middle = {
        let reader = TraceReader::new(&bytes).unwrap();
        let events: Vec<u64> = reader.events().map(|event| event.offset).collect();
        events[events.len() / 2]
    };
    bytes[middle as usize + 9] ^= 0x55;
    std::fs::write(scratch.0.join("t.vtrace"), bytes).unwrap();
    scratch
}

#[test]
fn every_command_that_reads_tells_of_damage_in_one_line() {
    let scratch = damaged();
    for line in [
        "report t.vtrace",
        "report t.vtrace --json",
        "report t.vtrace --by phase",
        "report t.vtrace --by step",
        "holders t.vtrace",
        "holders t.vtrace --json --at end",
        "leaks t.vtrace",
        "leaks t.vtrace --json",
        "oom t.vtrace",
        "oom t.vtrace --json",
        "frag t.vtrace",
        "frag t.vtrace --json",
        "whatif t.vtrace --conf default",
        "whatif t.vtrace --json --conf default",
        "export t.vtrace --format csv -o -",
        "export t.vtrace --format folded -o -",
        "export t.vtrace --format torch-snapshot -o -",
        "flame t.vtrace -o -",
        "pack t.vtrace",
    ] {
        let output = run(&scratch, &line.split(' ').collect::<Vec<_>>());
        let printed = printed(&output);
        assert_eq!(output.status.code(), Some(0), "{line}: {printed}");
        let of_damage =
            printed.lines().filter(|line| line.contains("t.vtrace: damaged in 1 place"));
        assert_eq!(of_damage.count(), 1, "{line}: {printed}");
        if line.contains("--json") {
            let all: Value = serde_json::from_slice(&output.stdout).unwrap();
            let damage = match line.starts_with("report") {
                true => &all["processes"][0]["damage"],
                false => &all["damage"][0],
            };
            assert_eq!(damage["places"], 1, "{line}: {all:#}");
        }
    }
}

#[test]
fn a_sound_trace_has_no_damage_in_its_documents() {
    let scratch = Scratch::new();
    cached().write(&scratch.0.join("t.vtrace"));
    let output = run(&scratch, &["holders", "t.vtrace", "--json"]);
    assert_eq!(printed(&output), "");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(all.get("damage").is_none() && all.get("not_known").is_none(), "{all:#}");
}

/// 30 MiB are live at 2 s, 160 MiB at 10 s; of all this the file has what a checkpoint at 18 s
/// tells, and what came after.
fn bounded() -> TraceBuilder {
    let mut t = TraceBuilder::new();
    t.header.max_bytes = Some(16 * MIB);
    t.lose();
    t.stack(1, &[], &[], &[]);
    let site = t.site(Kind::Device, 0);
    t.event(18 * SECOND, Event::CheckpointBegin { id: 3 });
    for n in 0..5u64 {
        let alloc = Alloc { key: (n + 1) << 40, size: 32 * MIB, stack: StackId(1), ..of(site) };
        let time_ns = (n + 1) * SECOND;
        t.event(18 * SECOND, Event::CheckpointAlloc { id: 3, time_ns, alloc });
    }
    t.event(18 * SECOND, Event::CheckpointCounters { id: 3, counters: peak(200, 12) });
    t.event(18 * SECOND, Event::CheckpointEnd { id: 3 });
    t.free(20 * SECOND, Space::Device, 1 << 40);
    t.event(25 * SECOND, Event::Ended);
    t
}

fn of(site: SiteId) -> Alloc {
    Alloc { site, space: Space::Device, key: 0, size: 0, stack: StackId(0), requested: None }
}

fn peak(mib: u64, second: u64) -> Counters {
    Counters {
        peak: mib * MIB,
        peak_time_ns: second * SECOND,
        ..testkit::trace_builder::counters(0)
    }
}

#[test]
fn a_moment_that_is_not_in_the_file_is_no_moment_without_memory() {
    let scratch = Scratch::new();
    bounded().write(&scratch.0.join("t.vtrace"));
    for line in [
        "report t.vtrace --at 2",
        "report t.vtrace --json --at 2",
        "holders t.vtrace --at 10",
        "holders t.vtrace --json --at 10",
        "export t.vtrace --format folded --at 10 -o -",
        "flame t.vtrace --at 10 -o -",
    ] {
        let output = run(&scratch, &line.split(' ').collect::<Vec<_>>());
        let printed = printed(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {printed}");
        assert!(output.stdout.is_empty(), "{line}");
        assert!(printed.contains("VRAMTRACE_MAX=16.00 MiB"), "{line}: {printed}");
        assert!(printed.contains("from 18.000 s on it is known"), "{line}: {printed}");
        assert!(printed.contains("160.00 MiB on GPU 0 were live then"), "{line}: {printed}");
    }
    // What the file does hold is printed as before.
    let later = run(&scratch, &["report", "t.vtrace", "--json", "--at", "21"]);
    let all: Value = serde_json::from_slice(&later.stdout).unwrap();
    assert_eq!(all["processes"][0]["devices"][0]["live_bytes"], 128 * MIB);
    let empty = run(&scratch, &["export", "t.vtrace", "--format", "csv", "--to", "9", "-o", "-"]);
    assert!(
        printed(&empty).contains("the history in the file begins at 18.000 s"),
        "{}",
        printed(&empty)
    );
}

#[test]
fn a_peak_of_which_only_the_height_is_known_is_reported_so() {
    let scratch = Scratch::new();
    bounded().write(&scratch.0.join("t.vtrace"));
    let output = run(&scratch, &["holders", "t.vtrace"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("GPU 0, at the peak (12.000 s): 200.00 MiB; its events"), "{text}");
    let output = run(&scratch, &["holders", "t.vtrace", "--json"]);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all["not_known"][0]["bytes"], 200 * MIB);
    let output = run(&scratch, &["flame", "t.vtrace", "-o", "-"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(printed(&output).contains("the holders are not known"), "{}", printed(&output));
    let output = run(&scratch, &["report", "t.vtrace", "--at", "peak"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(printed(&output).contains("what was live at 12.000 s is not in the file"));
}

#[test]
fn between_two_kept_parts_both_ends_are_named() {
    let scratch = Scratch::new();
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Device, 9 << 40, 8 * MIB);
    t.lose();
    let site = t.site(Kind::Device, 0);
    t.event(7 * SECOND, Event::CheckpointBegin { id: 1 });
    let alloc = Alloc { key: 9 << 40, size: 8 * MIB, ..of(site) };
    t.event(7 * SECOND, Event::CheckpointAlloc { id: 1, time_ns: SECOND, alloc });
    t.event(7 * SECOND, Event::CheckpointEnd { id: 1 });
    t.event(9 * SECOND, Event::Ended);
    t.write(&scratch.0.join("t.vtrace"));
    let at = |moment: &str| run(&scratch, &["report", "t.vtrace", "--json", "--at", moment]);
    let refused = printed(&at("4"));
    assert!(refused.contains("all is known up to 1.000 s; from 7.000 s on"), "{refused}");
    for moment in ["1", "7.5", "end"] {
        let all: Value = serde_json::from_slice(&at(moment).stdout).unwrap();
        assert_eq!(all["processes"][0]["devices"][0]["live_bytes"], 8 * MIB, "{moment}");
    }
}

#[test]
fn of_several_processes_those_that_are_known_are_shown() {
    let scratch = Scratch::new();
    let mut whole = TraceBuilder::new().rank(0, 2);
    whole.alloc(SECOND, Kind::Device, 1 << 40, MIB);
    whole.event(25 * SECOND, Event::Ended);
    whole.write(&scratch.0.join("a.vtrace"));
    bounded().rank(1, 2).write(&scratch.0.join("b.vtrace"));
    let output = run(&scratch, &["report", "a.vtrace", "b.vtrace", "--json", "--at", "2"]);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all["processes"].as_array().unwrap().len(), 1);
    assert!(
        printed(&output).contains("b.vtrace: what was live at 2.000 s"),
        "{}",
        printed(&output)
    );
}
