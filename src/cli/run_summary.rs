//! The summary that `vramtrace run` prints on stderr at the end: traces, peak, refusals, verdict.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use vramtrace_format::{DeviceId, Header};
use vramtrace_reader::analysis::ranks::{self, Card, Rank, RankDevice, RankEnd, Source};
use vramtrace_reader::analysis::{self, Bound, Moment, Process};
use vramtrace_reader::replay::{ByDevice, DeviceState, InUse};
use vramtrace_reader::report::shell;
use vramtrace_reader::report::text::verdict::Finding;
use vramtrace_reader::report::wording::{headline, numbered};
use vramtrace_reader::trace::{self, Trace};
use vramtrace_reader::units::gib;

use super::{caveats, verdict};
use crate::console::message;
use crate::launch::RunResult;
use crate::launch::child::Status;
use crate::launch::output::from_here;

/// Of a trace larger than this only the end is read, bytes.
const LONG: u64 = 256 << 20;
/// Size of the part at the end that is searched first for the latest checkpoint, bytes.
const RECENT: u64 = 16 << 20;
/// Of several traces that are larger together the processes' summaries are read, and one process in full.
const LARGE_RUN: u64 = 512 << 20;
/// How long such a run is read.
const WITHIN: Duration = Duration::from_secs(5);
/// How many devices a line names; the rest are counted.
const NAMED: usize = 8;

pub fn print(ended: &RunResult) {
    if ended.output.is_off() {
        return;
    }
    let traces = ended.output.traces();
    let Some(shown) = ended.output.shown().filter(|_| !traces.is_empty()) else {
        if !ended.observed.still_running {
            ended.output.remove_if_empty();
        }
        message("no process took GPU memory: there is no trace");
        return;
    };
    let shown = from_here(&shown);
    match traces.as_slice() {
        [only] if from_here(only) == shown => message(format_args!("the trace is {shown}")),
        several => message(format_args!("{} in {shown}", count(several.len() as u64, "trace"))),
    }
    let given = format!(" {}", shell::quoted(&shown));
    match trace::load(&traces) {
        Ok(loaded) => {
            caveats::warn_versions(&loaded.traces);
            let headers: Vec<Header> =
                loaded.traces.iter().map(|trace| trace.header().clone()).collect();
            let bytes = loaded.traces.iter().map(Trace::len).fold(0, u64::saturating_add);
            let (all, together, mut whole, traces) = match headers.len() > 1 && bytes > LARGE_RUN {
                true => of_large(loaded.traces),
                false => {
                    let together = card_peaks(&loaded.traces);
                    let (all, whole, traces) = figures(loaded.traces);
                    (all, together, whole, traces)
                }
            };
            lines(&all, together, ended.status).iter().for_each(message);
            if let Some(cap) = ended.cap.as_ref().filter(|_| all.len() > 1) {
                message(format_args!(
                    "  the cap of {cap} was for each process by itself, not for all together"
                ));
            }
            for line in verdict::lines(&mut whole, &traces, &headers, &given) {
                message(line);
            }
            if whole.is_empty() {
                let gave_up = all.iter().any(|process| process.out_of_memory);
                let finding = if gave_up { Finding::OutOfMemory } else { Finding::Nothing };
                message(verdict::next(finding, &given));
            }
        }
        Err(error) => message(error),
    }
}

/// What all processes of a card held together. `None`: there is one process, or a trace is larger than [`LONG`].
fn card_peaks(traces: &[Trace]) -> Option<Vec<Card>> {
    let short = traces.len() > 1 && traces.iter().all(|trace| trace.len() <= LONG);
    short.then(|| ranks::cards(&ranks::read(traces, &|_, _| {})))
}

/// Figures of all processes of a large run, what its cards held, and the process in full on which the verdict is: the
/// first that failed, else the one with the highest peak. Bounded in time: what is not read is not known.
fn of_large(mut traces: Vec<Trace>) -> (Vec<Figures>, Option<Vec<Card>>, Vec<Process>, Vec<Trace>) {
    let bound = Bound::within(WITHIN);
    let ranks = ranks::read_within(&traces, &bound, &|_, _| {});
    caveats::warn_damage(&traces);
    let unread = ranks.iter().filter(|rank| rank.source == Source::Totals).count();
    if unread > 0 {
        message(format_args!(
            "reading all traces would take too long: of {unread} of {} processes these figures have the last totals \
             alone; `vramtrace report` reads all",
            ranks.len()
        ));
    }
    let cards = ranks::cards(&ranks);
    let together = cards.iter().all(|card| card.is_exact).then_some(cards);
    let first = ranks::failed(&ranks).first().map(|failed| failed.rank);
    let highest = || (0..ranks.len()).rev().max_by_key(|index| ranks[*index].peak_bytes());
    let shown = first.or_else(highest).map(|index| traces.swap_remove(index));
    let shown: Vec<Trace> = shown.into_iter().collect();
    let shown = match bound.for_other_work().allows(shown.iter().map(Trace::len).sum()) {
        true => shown,
        false => Vec::new(),
    };
    let processes = analysis::read_all(&shown, Moment::End, verdict::collect(&shown), &|_, _| {});
    (ranks.iter().map(Figures::of_rank).collect(), together, processes, shown)
}

/// The figures of one process at its end.
struct Figures {
    devices: ByDevice<DeviceState>,
    ended_ns: Option<u64>,
    running: bool,
    out_of_memory: bool,
}

impl Figures {
    fn of_rank(rank: &Rank) -> Figures {
        let state = |device: &RankDevice| {
            let mut state = DeviceState::default();
            state.peak.in_use.live = device.peak_bytes;
            state.live_bytes = device.live_bytes;
            state.live_allocations = device.live_allocations;
            state.refused_by_cap = device.refused_by_cap;
            state.refused_by_driver = device.refused_by_driver;
            state
        };
        let devices = rank.devices.iter().map(|(id, device)| (*id, state(device))).collect();
        Figures {
            devices,
            ended_ns: rank.ended_in_order.then_some(rank.last_ns),
            running: rank.running,
            out_of_memory: rank.end() == RankEnd::OutOfMemory,
        }
    }
}

/// Figures of all processes. Traces larger than [`LONG`] are read from their latest checkpoint on, so that the
/// summary appears at once. Also returns the processes that were read from the beginning, with their traces.
fn figures(traces: Vec<Trace>) -> (Vec<Figures>, Vec<Process>, Vec<Trace>) {
    let (mut figures, mut whole) = (Vec::new(), Vec::new());
    for trace in traces {
        let recent = || trace.replay_recent(&trace.definitions().0, RECENT);
        match (trace.len() > LONG).then(recent).flatten() {
            Some(state) => {
                caveats::warn_damage([&trace]);
                let gave_up = |device: &DeviceState| device.cache.ended_in_oom();
                let out_of_memory = state.devices.values().any(gave_up);
                let (ended_ns, devices) = (state.ended_ns, state.devices);
                figures.push(Figures { devices, ended_ns, running: false, out_of_memory });
            }
            None => whole.push(trace),
        }
    }
    let bar = ProgressBar::new(0);
    // Hidden by itself where stderr is no terminal.
    if let Ok(style) = ProgressStyle::with_template("reading the traces {bar:40} {eta}") {
        bar.set_style(style);
    }
    let processes =
        analysis::read_all(&whole, Moment::End, verdict::collect(&whole), &|done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
    bar.finish_and_clear();
    caveats::warn_damage(&whole);
    figures.extend(processes.iter().map(|process| Figures {
        running: process.running,
        out_of_memory: !process.ended_out_of_memory().is_empty(),
        ended_ns: process.state.ended_ns,
        devices: process.state.devices.clone(),
    }));
    (figures, processes, whole)
}

/// The lines `peak`, `at the end`, `refused` and `processes`.
fn lines(processes: &[Figures], together: Option<Vec<Card>>, status: Status) -> [String; 4] {
    let mut peaks: BTreeMap<DeviceId, InUse> = BTreeMap::new();
    let mut live: BTreeMap<DeviceId, u64> = BTreeMap::new();
    let (mut allocations, mut by_cap, mut by_driver) = (0, 0, 0);
    for (device, state) in processes.iter().flat_map(|process| &process.devices) {
        let peak = peaks.entry(*device).or_default();
        if state.peak.in_use.headline() > peak.headline() {
            *peak = state.peak.in_use;
        }
        *live.entry(*device).or_default() += state.live_bytes;
        allocations += state.live_allocations;
        by_cap += state.refused_by_cap;
        by_driver += state.refused_by_driver;
    }
    let peak = match together.filter(|cards| !cards.is_empty()) {
        Some(cards) => by_card(&cards),
        None if processes.len() > 1 => {
            by_device(&peaks, headline) + " (the highest of one process)"
        }
        None => by_device(&peaks, headline),
    };
    [
        format!("  peak       {peak}"),
        format!(
            "  at the end {} in {}",
            by_device(&live, |bytes| gib(*bytes)),
            count(allocations, "allocation")
        ),
        format!("  refused    {by_cap} by the cap, {by_driver} by the driver"),
        format!("  processes  {} took GPU memory: {}", processes.len(), ends(processes, status)),
    ]
}

/// `2 ended in order, 1 cut off`: the worst last.
fn ends(processes: &[Figures], status: Status) -> String {
    let failed = match (processes, status) {
        ([_], Status::Exited(code)) if code != 0 => Some(code),
        _ => None,
    };
    let mut counts: BTreeMap<(u8, String), usize> = BTreeMap::new();
    for process in processes {
        let how = match (process.ended_ns, failed) {
            _ if process.running => (1, "still running".into()),
            _ if process.out_of_memory => (3, "out of memory".into()),
            (Some(_), Some(code)) => (2, format!("exited with status {code}")),
            (Some(_), None) => (0, "ended in order".into()),
            (None, _) => (4, "cut off".into()),
        };
        *counts.entry(how).or_default() += 1;
    }
    let words = counts.into_iter().map(|((_, how), count)| format!("{count} {how}"));
    words.collect::<Vec<_>>().join(", ")
}

/// The cards with the highest peaks: bytes that their processes held at one moment.
fn by_card(cards: &[Card]) -> String {
    let one = |card: &Card| {
        let together =
            if card.users.len() > 1 { " recorded, all processes together" } else { " recorded" };
        format!("{}: {}{together}", card_name(card, cards), gib(card.peak_bytes))
    };
    let mut parts: Vec<String> = cards.iter().take(NAMED).map(one).collect();
    if cards.len() > NAMED {
        parts.push(format!("and {} more", cards.len() - NAMED));
    }
    parts.join("; ")
}

/// `device 0` if all processes use that ordinal for this card and for no other; else its UUID.
fn card_name(card: &Card, cards: &[Card]) -> String {
    let ordinals = |card: &Card| card.users.iter().map(|(_, id)| *id).collect::<Vec<_>>();
    let mine = ordinals(card);
    let others = || cards.iter().filter(|other| !std::ptr::eq(*other, card)).flat_map(ordinals);
    match (&mine[..], &card.info) {
        ([first, rest @ ..], _)
            if rest.iter().all(|id| id == first) && others().all(|id| id != *first) =>
        {
            device_name(*first)
        }
        (_, Some(info)) => info.uuid_text(),
        _ => device_name(DeviceId::UNKNOWN),
    }
}

fn device_name(device: DeviceId) -> String {
    numbered("device ", device)
}

fn by_device<B>(bytes: &BTreeMap<DeviceId, B>, figure: impl Fn(&B) -> String) -> String {
    if bytes.is_empty() {
        return "nothing".into();
    }
    let named = bytes.iter().take(NAMED);
    let mut parts: Vec<String> = named
        .map(|(device, bytes)| format!("{}: {}", device_name(*device), figure(bytes)))
        .collect();
    if bytes.len() > NAMED {
        parts.push(format!("and {} more", bytes.len() - NAMED));
    }
    parts.join(", ")
}

fn count(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_up_to_a_point() {
        let bytes = (0..10).map(|n| (DeviceId(n), u64::from(n) << 30)).collect();
        let text = by_device(&bytes, |bytes| gib(*bytes));
        assert!(text.starts_with("device 0: 0 B, device 1: 1.00 GiB"), "{text}");
        assert!(text.ends_with("device 7: 7.00 GiB, and 2 more"), "{text}");
        assert_eq!(by_device(&BTreeMap::<DeviceId, u64>::new(), |bytes| gib(*bytes)), "nothing");
    }
}
