//! Summaries and replays say the same; cards, imbalance and holders of several processes.

use vramtrace_format::physical::{GIB, MIB};
use vramtrace_format::{
    DriverCause, Event, Purpose, SiteId, Space, StackId, StateHolder, SummaryMoment, Took,
};

use super::*;
use crate::analysis::GroupBy;
use crate::testing::{SECOND, TraceBuilder, listed};

fn alone(trace: &Trace) -> ProcessFigures {
    super::read(std::slice::from_ref(trace), &|_, _| {}).remove(0)
}

/// What the recorder would append: made from a replay of what is there.
fn sum_up(t: &mut TraceBuilder, end_ns: u64) {
    let replayed = ProcessFigures::replayed(&Trace::of(t));
    let mut entries = Vec::new();
    for (id, device) in &replayed.devices {
        let counters = Counters {
            device: id.0,
            live: device.live_bytes,
            peak: device.peak_bytes,
            peak_time_ns: device.peak_ns,
            live_allocations: device.live_allocations,
            allocations: device.allocations,
            frees: device.frees,
            refused_by_cap: device.refused_by_cap,
            refused_by_driver: device.refused_by_driver,
            ..Counters::default()
        };
        entries.push(listed(0, Event::Counters(counters)));
        for kind in Kind::ALL {
            let of = |kinds: &BytesByKind| kinds[kind as usize];
            let (at_peak, live) = (of(&device.peak_by_kind), of(&device.live_by_kind));
            if at_peak > 0 || live > 0 {
                let kind = kind as u8;
                entries.push(Event::StateKind { device: *id, kind, at_peak, live });
            }
        }
        entries.extend(device.holders.iter().map(|holder| Event::StateHolder(*holder)));
    }
    t.state(end_ns, Purpose::Summary, &entries);
}

fn took(t: &mut TraceBuilder, at_ns: u64, cause: DriverCause, mib: i64, stack: u32) {
    let (site, stack, delta) = (SiteId(0), StackId(stack), mib * MIB as i64);
    t.event(at_ns, Event::Took(Took { device: DeviceId(0), site, stack, delta, cause, name: 0 }));
}

fn program() -> TraceBuilder {
    let mut t = TraceBuilder::new();
    t.code(1, "main", "/home/me/train.py", 7);
    t.code(2, "load", "/home/me/load.py", 3);
    t.stack(1, &[], &[1], &[]);
    t.stack(2, &[], &[2, 1], &[]);
    t.context(1, 0);
    t.alloc_by(SECOND, Kind::Device, 1 << 40, 20 * MIB, 1);
    took(&mut t, SECOND, DriverCause::Graphs, 6, 2);
    took(&mut t, SECOND, DriverCause::Modules, 2, 1);
    t.alloc_by(SECOND, Kind::Device, 2 << 40, 32 * MIB, 2);
    t.alloc_by(SECOND, Kind::Block, 2 << 40, 4 * MIB, 2);
    took(&mut t, SECOND, DriverCause::Graphs, -4, 2);
    took(&mut t, SECOND, DriverCause::Modules, -2, 1);
    t.alloc_by(SECOND, Kind::Block, (2 << 40) + 4 * MIB, 10 * MIB, 1);
    t.free(2 * SECOND, Space::Device, 1 << 40);
    t.alloc_by(3 * SECOND, Kind::Array, 7, 6 * MIB, 1);
    t.free(3 * SECOND, Space::Block, 2 << 40);
    t
}

fn same(one: &ProcessFigures, other: &ProcessFigures) {
    assert_eq!(one.devices.keys().collect::<Vec<_>>(), other.devices.keys().collect::<Vec<_>>());
    for (id, device) in &one.devices {
        let other = &other.devices[id];
        let figures = |d: &DeviceFigures| {
            let counts = (d.allocations, d.frees, d.live_allocations, d.refused());
            (d.peak_bytes, d.peak_ns, d.peak_by_kind, d.live_bytes, d.live_by_kind, counts)
        };
        assert_eq!(figures(device), figures(other));
        assert_eq!(device.holders, other.holders);
    }
}

#[test]
fn a_summary_says_what_a_replay_says() {
    let mut t = program();
    sum_up(&mut t, 4 * SECOND);
    t.event(5 * SECOND, Event::Ended);
    let trace = Trace::of(&t);
    let (summed, replayed) = (alone(&trace), ProcessFigures::replayed(&trace));
    assert_eq!((summed.source, replayed.source), (FiguresSource::Summary, FiguresSource::Events));
    assert_eq!((summed.last_ns, summed.ended_in_order), (5 * SECOND, true));
    assert_eq!((replayed.last_ns, replayed.ended_in_order), (5 * SECOND, true));
    same(&summed, &replayed);
    let device = &summed.devices[&DeviceId(0)];
    let held = |moment, of_framework| -> Vec<(u32, u64)> {
        let of = |h: &&StateHolder| {
            h.moment == moment && h.of_framework == of_framework && h.cause.is_none()
        };
        let here = device.holders.iter().filter(of);
        here.map(|h| (h.stack.0, h.bytes / MIB)).collect()
    };
    assert_eq!(held(SummaryMoment::Peak, false), [(2, 32), (1, 20)]);
    assert_eq!(held(SummaryMoment::Peak, true), [(2, 4)], "the block of the peak");
    assert_eq!(held(SummaryMoment::End, false), [(2, 32), (1, 6)]);
    assert_eq!(held(SummaryMoment::End, true), [(1, 10)]);
    let driver = |moment| -> Vec<(DriverCause, u32, u64)> {
        let here = device.holders.iter().filter(|of| of.moment == moment);
        here.filter_map(|of| Some((of.cause?, of.stack.0, of.bytes / MIB))).collect()
    };
    let at_peak = [(DriverCause::Graphs, 2, 6), (DriverCause::Modules, 1, 2)];
    assert_eq!(driver(SummaryMoment::Peak), at_peak);
    assert_eq!(driver(SummaryMoment::End), [(DriverCause::Graphs, 2, 2)]);
    // The recorder lists what there was at the peak of allocations: what the driver took after it may make a higher one.
    let mut summary = trace.summary().unwrap();
    assert!(is_enough(&summary));
    let holders = &mut summary.devices.get_mut(&DeviceId(0)).unwrap().holders;
    holders.retain(|of| of.moment == SummaryMoment::End || of.cause.is_none());
    assert!(!is_enough(&summary));
}

#[test]
fn only_a_whole_summary_at_the_end_counts() {
    let from_summary = |change: &dyn Fn(&mut TraceBuilder)| {
        let mut t = program();
        change(&mut t);
        let trace = Trace::of(&t);
        let rank = alone(&trace);
        same(&rank, &ProcessFigures::replayed(&trace));
        rank.source == FiguresSource::Summary
    };
    let ended = |t: &mut TraceBuilder| t.event(5 * SECOND, Event::Ended);
    assert!(from_summary(&|t| {
        sum_up(t, 4 * SECOND);
        ended(t);
    }));
    assert!(!from_summary(&|_| {}), "there is none");
    assert!(!from_summary(&|t| sum_up(t, 4 * SECOND)), "killed between summary and end");
    assert!(!from_summary(&|t| {
        sum_up(t, 4 * SECOND);
        t.alloc(4 * SECOND, Kind::Device, 9 << 40, GIB);
        ended(t);
    }));
    assert!(!from_summary(&|t| {
        sum_up(t, 4 * SECOND);
        ended(t);
        t.free(6 * SECOND, Space::Device, 2 << 40);
    }));
    // Its end is missing.
    assert!(!from_summary(&|t| {
        t.event(4 * SECOND, Event::StateBegin { id: 0, what: Purpose::Summary, cache_ooms: 0 });
        ended(t);
    }));
    // Why the program was refused, and whether it ended by it, the events say.
    assert!(!from_summary(&|t| {
        t.refused(4 * SECOND, Kind::Device, GIB, vramtrace_format::RefusedBy::Cap, GIB);
        sum_up(t, 4 * SECOND);
        ended(t);
    }));
}

/// Rank `n` of a run: holds so many MiB from one second of the wall's clock to another.
fn holding(n: u32, card: u8, mib: u64, from_s: u64, to_s: u64) -> TraceBuilder {
    let mut t = TraceBuilder::new().rank(n, 4);
    t.header.start_unix_ns += from_s * SECOND;
    t.define(vramtrace_format::Definition::Device {
        id: DeviceId(0),
        uuid: [card; 16],
        name: "NVIDIA H200".into(),
        total_bytes: 24 << 30,
        mig: false,
    });
    t.alloc_by(0, Kind::Device, 1 << 40, mib * MIB, 1);
    t.free((to_s - from_s) * SECOND, Space::Device, 1 << 40);
    t.event((to_s - from_s) * SECOND, Event::Ended);
    t
}

fn run_of(builders: &[TraceBuilder]) -> Vec<ProcessFigures> {
    let traces: Vec<Trace> = builders.iter().map(Trace::of).collect();
    super::read(&traces, &|_, _| {})
}

#[test]
fn processes_that_share_a_card_are_summed_at_the_same_moment() {
    let ranks = run_of(&[
        holding(0, 1, 100, 0, 10),
        holding(1, 1, 200, 5, 15),
        // When the others have ended.
        holding(2, 1, 250, 20, 30),
        holding(3, 2, 40, 0, 30),
    ]);
    let cards = cards(&ranks);
    let of = |card: &Card| (card.users.len(), card.most_bytes / MIB, card.sum_of_peaks_bytes / MIB);
    assert_eq!(cards.iter().map(of).collect::<Vec<_>>(), [(3, 300, 550), (1, 40, 40)]);
    let start = TraceBuilder::new().header.start_unix_ns;
    assert_eq!(cards[0].peak_unix_ns, start + 5 * SECOND);
    let spread = imbalance(&ranks).unwrap();
    assert_eq!((spread.lowest, spread.highest), (3, 2));
    let peaks = [spread.lowest_peak_bytes, spread.median_peak_bytes, spread.highest_peak_bytes];
    assert_eq!(peaks, [40 * MIB, 200 * MIB, 250 * MIB]);
    assert!((spread.highest_over_mean - 250.0 / 147.5).abs() < 1e-9);
}

#[test]
fn the_same_line_of_several_processes_is_one_holder() {
    let with = |n: u32, mib: u64| {
        let mut t = TraceBuilder::new().rank(n, 3);
        // The ids differ from trace to trace.
        t.code(n + 1, "main", "/home/me/train.py", 7);
        t.stack(n + 5, &[], &[n + 1], &[]);
        t.alloc_by(SECOND, Kind::Device, 1 << 40, mib * MIB, n + 5);
        t
    };
    let ranks = run_of(&[with(0, 10), with(1, 30), with(2, 20)]);
    let all = merge(&holders_of(&ranks, SummaryMoment::Peak), GroupBy::Line);
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].bytes / MIB, all[0].count), (60, 3));
    let processes = all[0].processes.iter().map(|held| (held.process, held.bytes / MIB));
    assert_eq!(processes.collect::<Vec<_>>(), [(0, 10), (1, 30), (2, 20)]);
    assert_eq!(all[0].stack.id, StackId(6), "of the largest");
}
