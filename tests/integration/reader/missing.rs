//! Traces that do not tell all: damaged ones, and bounded ones whose events were erased.

use testkit::erased_trace::{ended, without_history};
use testkit::trace_builder::{SECOND, TraceBuilder, cached, listed};
use testkit::{MIB, Scratch};
use vramtrace_format::{Event, Kind, Purpose, TraceReader};

use super::READING;

#[test]
fn every_command_that_reads_tells_of_damage_in_one_line() {
    let mut bytes = cached().bytes();
    let offsets: Vec<u64> =
        TraceReader::new(&bytes).unwrap().events().map(|event| event.offset).collect();
    // A record of an event is broken.
    bytes[offsets[offsets.len() / 2] as usize + 9] ^= 0x55;
    let scratch = Scratch::new();
    scratch.write("t.vtrace", bytes);
    for line in READING {
        let said = scratch.says(&line.split(' ').chain(["t.vtrace"]).collect::<Vec<_>>()).ended(0);
        let of_damage = said.err.matches("t.vtrace: damaged in 1 place").count();
        assert_eq!(of_damage, 1, "{line}: {}", said.err);
        if line.contains("--json") {
            let all = said.json();
            let all = if line.starts_with("report") { &all["processes"][0] } else { &all };
            let damage = if all["damage"].is_array() { &all["damage"][0] } else { &all["damage"] };
            assert_eq!(damage["places"], 1, "{line}: {all:#}");
        }
    }
    // A sound trace has no damage in its documents.
    let scratch = Scratch::with(&cached());
    assert_eq!(scratch.run("holders t.vtrace").stderr, b"");
    let all = scratch.json("holders t.vtrace");
    assert!(all.get("damage").is_none() && all.get("not_known").is_none(), "{all:#}");
}

fn bounded() -> TraceBuilder {
    ended(without_history())
}

/// Of its peak only the height is known; what the file does hold is printed.
#[test]
fn a_moment_that_is_not_in_the_file_is_no_moment_without_memory() {
    Scratch::with(&bounded()).prints(
        "missing/bounded",
        &[
            "report t.vtrace --at 2",
            "report t.vtrace --json --at 2",
            "holders t.vtrace --at 10",
            "holders t.vtrace --json --at 10",
            "export t.vtrace --format folded --at 10 -o -",
            "flame t.vtrace --at 10 -o -",
            "report t.vtrace --json --at 21 | processes.0.devices.0.live_bytes",
            "export t.vtrace --format csv --to 9 -o -",
            "holders t.vtrace",
            "holders t.vtrace --json | not_known",
            "flame t.vtrace -o -",
            "report t.vtrace --at peak",
        ],
    );
}

#[test]
fn between_two_kept_parts_both_ends_are_named() {
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Device, 9 << 40, 8 * MIB);
    t.lose();
    let alloc = t.allocation(Kind::Device, 0, 9 << 40, 8 * MIB);
    t.state(7 * SECOND, Purpose::Checkpoint, &[listed(SECOND, Event::Alloc(alloc))]);
    t.event(9 * SECOND, Event::Ended);
    let live = "processes.0.devices.0.live_bytes";
    let at = |moment| format!("report t.vtrace --json --at {moment} | {live}");
    let lines = ["4", "1", "7.5", "end"].map(at);
    Scratch::with(&t).prints("missing/between", &lines.each_ref().map(String::as_str));
}

#[test]
fn of_several_processes_those_that_are_known_are_shown() {
    let scratch = Scratch::new();
    let mut whole = TraceBuilder::new().rank(0, 2);
    whole.alloc(SECOND, Kind::Device, 1 << 40, MIB);
    whole.event(25 * SECOND, Event::Ended);
    whole.write(&scratch.0.join("a.vtrace"));
    bounded().rank(1, 2).write(&scratch.0.join("b.vtrace"));
    scratch.prints("missing/ranks", &["report a.vtrace b.vtrace --json --at 2 | processes.*.rank"]);
}
