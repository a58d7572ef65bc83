//! Lines without a replay: what is left out is null, and said.

use vramtrace_format::physical::MIB;
use vramtrace_format::{Counters, DeviceId, Event, HeldBytes, Kind, Purpose, RefusedBy};

use super::*;
use crate::testing::{SECOND, TraceBuilder, listed};
use crate::trace::{Trace, open};

fn counters(peak: u64, live: u64) -> Counters {
    Counters {
        device: 0,
        peak,
        live,
        peak_time_ns: SECOND,
        live_allocations: 1,
        ..Counters::default()
    }
}

/// Rank 0 ended with a summary, rank 1 was killed.
fn run() -> [TraceBuilder; 2] {
    let mut whole = TraceBuilder::new().rank(0, 2);
    whole.header.uuid[0] = 1;
    whole.alloc(SECOND, Kind::Device, 1 << 40, 100 * MIB);
    let (device, byte_s, error_byte_s) = (DeviceId(0), 7200 << 30, 360 << 30);
    let held = HeldBytes { device, byte_s, error_byte_s };
    let at_end = counters(100 * MIB, 100 * MIB);
    let entries = [listed(0, Event::Counters(at_end)), Event::StateHeld(held)];
    whole.state(3 * SECOND, Purpose::Summary, &entries);
    whole.event(3 * SECOND, Event::Ended);
    let mut killed = TraceBuilder::new().rank(1, 2);
    killed.alloc(SECOND, Kind::Device, 1 << 40, 300 * MIB);
    killed.event(2 * SECOND, Event::Counters(counters(300 * MIB, 300 * MIB)));
    killed.refused(2 * SECOND, Kind::Device, 900 * MIB, RefusedBy::Cap, 512 * MIB);
    [whole, killed]
}

fn lines(most_bytes: u64) -> RunRecords {
    let place = tempfile::tempdir().unwrap();
    let opened = |(number, builder): (usize, TraceBuilder)| {
        let path = place.path().join(format!("{number}.vtrace"));
        builder.write(&path);
        open(&path).unwrap()
    };
    let traces: Vec<Trace> = run().into_iter().enumerate().map(opened).collect();
    read(&traces, Judged::default(), most_bytes, RunEnd::default())
}

#[test]
fn without_a_replay_the_figures_are_those_of_summary_and_totals() {
    let RunRecords { processes, job } = lines(0);
    let sources: Vec<&str> = processes.iter().map(|process| process.source).collect();
    assert_eq!(sources, ["summary", "totals"]);
    let ended: Vec<&str> = processes.iter().map(|process| process.head.ended).collect();
    assert_eq!(ended, ["in_order", "cut_off"]);
    let peaks: Vec<u64> =
        processes.iter().map(|it| it.devices[0].figures.peak_bytes / MIB).collect();
    assert_eq!(peaks, [100, 300]);
    for process in &processes {
        let device = &process.devices[0];
        assert!(process.leaks.is_none());
        assert!(device.by_role_at_peak.is_none());
        assert_eq!(device.limit_bytes, Some(24 << 30));
    }
    // By the samples that the summary has; the last totals have none.
    let held = |of: &ProcessRecord| {
        let device = &of.devices[0];
        device.held_gib_hours.zip(device.held_gib_hours_error)
    };
    assert_eq!((held(&processes[0]), held(&processes[1])), (Some((2.0, 0.1)), None));
    assert_eq!((job.held_gib_hours, job.held_gib_hours_error), (2.0, 0.1));
    assert!(processes[1].devices[0].by_library_at_peak.is_none());
    assert_eq!((job.processes, job.processes_in_full, job.leaks), (2, 0, None));
    // Both had the card at one time, and no moment was read.
    assert_eq!((job.cards[0].peak_bytes, job.peak_bytes), (None, None));
    assert_eq!(job.cards[0].sum_of_peaks_bytes / MIB, 400);
    assert_eq!(job.first_failure.unwrap().head.ended, "cut_off");
}

#[test]
fn with_replays_every_figure_is_there() {
    let RunRecords { processes, job } = lines(u64::MAX);
    assert!(processes.iter().all(|process| process.source == "events"));
    assert_eq!((job.processes_in_full, job.leaks), (2, Some(0)));
    assert_eq!(job.cards[0].peak_bytes, Some(400 * MIB));
    // 100 MiB for two seconds, 300 for one.
    let expected = (2.0 * 100.0 + 300.0) / 1024.0 / 3600.0;
    assert!((job.held_gib_hours - expected).abs() < 2e-6, "{}", job.held_gib_hours);
    assert_eq!(job.held_gib_hours_error, 0.0);
    let failure = job.first_failure.unwrap().out_of_memory.unwrap();
    assert_eq!((failure.cause, failure.oom.size / MIB), ("cap", 900));
    assert_eq!(
        processes[1].advice.as_ref().unwrap().advice.what,
        crate::analysis::oom::AdvisedChange::Cap
    );
}

#[test]
fn small_names_are_summed() {
    let all = (0..40u64).map(|n| (format!("lib{n}"), n + 1)).collect();
    let kept = bounded(all);
    assert_eq!((kept.len(), kept["other"]), (25, (1..=16).sum::<u64>()));
    assert_eq!(kept.values().sum::<u64>(), (1..=40).sum::<u64>());
}
