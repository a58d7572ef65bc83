//! How a run ended, and what helps, at whatever moment it is looked at.

use std::process::Output;

use testkit::trace_builder::{SECOND, TraceBuilder};
use testkit::{Scratch, vramtrace};
use vramtrace_format::physical::MIB;
use vramtrace_format::{DeviceId, Event, Kind, RefusedBy, Space, StackId};

fn run(t: &TraceBuilder, args: &[&str]) -> Output {
    let scratch = Scratch::new();
    t.write(&scratch.0.join("t.vtrace"));
    let args: Vec<&str> = [&args[..1], &["t.vtrace"], &args[1..]].concat();
    vramtrace().args(args).current_dir(&scratch.0).env("NO_COLOR", "1").output().unwrap()
}

fn text(t: &TraceBuilder, args: &[&str]) -> String {
    let output = run(t, args);
    assert!(output.status.code().is_some_and(|code| code < 2), "{args:?}");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// PyTorch takes a segment, and gives up on a request of `size` under a cap of 64 MiB.
fn out_of_memory(size: u64) -> TraceBuilder {
    let mut t = TraceBuilder::new();
    t.event(0, Event::Cap { device: DeviceId(0), bytes: Some(64 * MIB) });
    t.alloc(SECOND, Kind::Device, 1 << 40, 20 * MIB);
    t.alloc(SECOND, Kind::Block, 1 << 40, 16 * MIB);
    t.refused(5 * SECOND, Kind::Device, size, RefusedBy::Cap, 64 * MIB);
    t.event(
        5 * SECOND,
        Event::CacheOom {
            device: DeviceId(0),
            size,
            allocated: 16 * MIB,
            reserved: 20 * MIB,
            stack: StackId(0),
        },
    );
    t.event(6 * SECOND, Event::Ended);
    t
}

#[test]
fn a_run_that_ended_out_of_memory_did_so_at_every_moment() {
    let t = out_of_memory(100 * MIB);
    for at in ["end", "2", "peak", "0.5"] {
        let report = text(&t, &["report", "--at", at]);
        assert!(report.contains("ended    torch.OutOfMemoryError"), "{at}: {report}");
        let json = text(&t, &["report", "--json", "--at", at]);
        assert!(json.contains("\"ended_out_of_memory\": true"), "{at}: {json}");
    }
    let report = text(&t, &["report", "--at", "2"]);
    assert!(report.contains("of this moment, but for the curves: they are of the whole run"));
}

#[test]
fn of_several_processes_as_well() {
    let scratch = Scratch::new();
    for (rank, size) in [(0, 100 * MIB), (1, 100 * MIB)] {
        out_of_memory(size).rank(rank, 2).write(&scratch.0.join(format!("{rank}.vtrace")));
    }
    let output = vramtrace().args(["report", ".", "--at", "2"]).current_dir(&scratch.0).output();
    let report = String::from_utf8(output.unwrap().stdout).unwrap();
    let rows = report.lines().filter(|line| line.ends_with("  out of memory"));
    assert_eq!(rows.count(), 2, "{report}");
}

#[test]
fn no_setting_is_advised_where_none_fits() {
    let t = out_of_memory(100 * MIB);
    let report = text(&t, &["whatif"]);
    assert!(
        report.contains("No setting helps: none of these fits in 64 MiB; the least"),
        "{report}"
    );
    assert!(!report.contains("Try"), "{report}");
    let report = text(&t, &["whatif", "--capacity", "24GiB"]);
    assert!(!report.contains("No setting helps"), "{report}");
}

#[test]
fn nothing_is_advised_for_a_request_that_no_device_serves() {
    for size in [1 << 50, 20 << 40] {
        let t = out_of_memory(size);
        let report = text(&t, &["whatif", "--capacity", "1024TiB"]);
        assert!(report.contains("the request is larger than any device"), "{report}");
        assert!(!report.contains("Try"), "{report}");
        let report = text(&t, &["oom"]);
        assert!(!report.contains("TiB or more") && !report.contains("VRAMTRACE_CAP="), "{report}");
        assert!(!report.contains("PYTORCH_CUDA_ALLOC_CONF"), "{report}");
    }
}

#[test]
fn a_cap_below_the_use_is_short_of_all_that_is_over_it() {
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Device, 1 << 40, 200 * MIB);
    let site = t.site(Kind::Device, 0);
    t.event(
        2 * SECOND,
        Event::Refused(vramtrace_format::Refused {
            by: RefusedBy::Cap,
            result: 2,
            site,
            stack: StackId(0),
            size: MIB,
            counted: 200 * MIB,
            limit: 64 * MIB,
            driver_free: 1 << 30,
            cache: None,
        }),
    );
    t.event(3 * SECOND, Event::Ended);
    let report = text(&t, &["oom"]);
    let flat = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("136.00 MiB over the limit already: 137.00 MiB short"), "{report}");
}

#[test]
fn a_finding_that_fails_a_report_is_printed() {
    let t = out_of_memory(100 * MIB);
    for (finding, says) in [
        ("refusal", "FAILED: --fail-on refusal: pid 4711: 1 refused request, 1 by the cap"),
        ("live", "FAILED: --fail-on live: pid 4711 ended with 1 allocation live, 20.00 MiB"),
    ] {
        let output = run(&t, &["report", "--fail-on", finding]);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && printed.contains(says), "{finding}: {printed}");
    }
    let output = run(&t, &["report", "--fail-on", "cut-off"]);
    assert!(output.status.success() && output.stderr.is_empty());
}

#[test]
fn of_moments_with_the_highest_reserve_the_fullest_is_shown() {
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Device, 1 << 40, 20 * MIB);
    t.alloc(SECOND, Kind::Block, 1 << 40, MIB);
    t.free(2 * SECOND, Space::Block, 1 << 40);
    t.alloc(3 * SECOND, Kind::Block, 1 << 40, 12 * MIB);
    t.free(4 * SECOND, Space::Block, 1 << 40);
    t.alloc(5 * SECOND, Kind::Block, 1 << 40, 3 * MIB);
    let json = text(&t, &["frag", "--json"]);
    assert!(
        json.contains("\"at_s\": 3.0") && json.contains("\"allocated_bytes\": 12582912"),
        "{json}"
    );
}
