//! The summary that `vramtrace run` prints on stderr at the end: traces, peak, refusals, verdict.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressStyle};
use vramtrace_format::DeviceId;
use vramtrace_reader::analysis::ranks::{self, Card};
use vramtrace_reader::analysis::{self, Moment, Process};
use vramtrace_reader::replay::{DeviceState, InUse};
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
            let together = card_peaks(&loaded.traces);
            let (all, mut whole, traces) = figures(loaded.traces);
            lines(&all, together, ended.status).iter().for_each(message);
            if let Some(cap) = ended.cap.as_ref().filter(|_| all.len() > 1) {
                message(format_args!(
                    "  the cap of {cap} was for each process by itself, not for all together"
                ));
            }
            for line in verdict::lines(&mut whole, &traces, &given) {
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

/// The figures of one process at its end.
struct Figures {
    devices: BTreeMap<DeviceId, DeviceState>,
    ended_ns: Option<u64>,
    running: bool,
    out_of_memory: bool,
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
