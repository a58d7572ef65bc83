//! `vramtrace diff`: the line that grew is named, and clean runs pass.

use testkit::trace_builder::{SECOND, TraceBuilder};
use testkit::{MIB, Scratch};
use vramtrace_format::{Event, Kind, Space};

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

/// Of each trace: its name, MiB of the second line, and the noise.
fn written(traces: &[(&str, u64, u64)]) -> Scratch {
    let scratch = Scratch::new();
    for (name, mib, noise) in traces {
        trained(mib * MIB, *noise).write(&scratch.0.join(name));
    }
    scratch
}

#[test]
fn a_planted_growth_of_five_percent_fails_with_its_line() {
    let scratch = written(&[("base.vtrace", 60, 0), ("grown.vtrace", 70, 3)]);
    scratch.prints(
        "diff/gate",
        &[
            "diff base.vtrace grown.vtrace --tolerance 3%",
            "diff base.vtrace grown.vtrace --tolerance 10",
        ],
    );
}

#[test]
fn twenty_clean_runs_pass() {
    let scratch = written(&[("base.vtrace", 60, 0)]);
    for n in 1..=20 {
        trained(60 * MIB, n).write(&scratch.0.join("clean.vtrace"));
        scratch.text("diff base.vtrace clean.vtrace --tolerance 3%");
    }
}

#[test]
fn the_lines_add_up_to_the_difference() {
    let scratch = written(&[("a.vtrace", 60, 0), ("b.vtrace", 90, 0)]);
    let devices =
        "devices.0.in_use.change_bytes devices.0.lines.*.change_bytes devices.0.lines.0.function";
    scratch.prints(
        "diff/lines",
        &[
            &format!("diff a.vtrace b.vtrace --format json | {devices}"),
            "diff a.vtrace b.vtrace",
            "diff a.vtrace --at 1.5 --vs 3.5",
        ],
    );
}

#[test]
fn what_cannot_be_compared_is_named() {
    let scratch = written(&[("a.vtrace", 60, 0)]);
    for (line, why) in [
        ("diff a.vtrace", "nothing to compare with"),
        ("diff a b --at 1 --vs 3", "only one trace can be given"),
        ("diff a.vtrace a.vtrace --tolerance x", "e.g. 3%"),
        ("diff nothing a.vtrace", "nothing: no such file"),
    ] {
        scratch.fails(2, line, why);
    }
}
