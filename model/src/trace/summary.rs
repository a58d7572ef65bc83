//! The summary that a process writes at its orderly end: the figures that a report of many traces prints,
//! without a replay. A summary is used if it is whole and no event after it changes its figures.

use std::collections::BTreeMap;

use vramtrace_format::reader::Run;
use vramtrace_format::{Counters, DeviceId, Event, HeldBytes, Purpose, StateHolder};

use super::Trace;

/// The number of last event windows in which it is searched.
const WINDOWS: usize = 4;

/// The summary of a process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndSummary {
    pub ended_ns: u64,
    /// Requests that a framework's cache could not serve.
    pub cache_ooms: u32,
    pub devices: BTreeMap<DeviceId, DeviceSummary>,
}

/// The summary of one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceSummary {
    pub counters: Counters,
    pub held: Option<HeldBytes>,
    /// `Kind as u8`, bytes at the peak, bytes at the end.
    pub kinds: Vec<(u8, u64, u64)>,
    /// Also what the driver took for itself. Largest first, by moment and level.
    pub holders: Vec<StateHolder>,
}

/// The last totals that the recorder wrote.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LastTotals {
    pub devices: BTreeMap<DeviceId, Counters>,
    /// Time of the last event.
    pub last_ns: u64,
    pub ended: bool,
    pub exit_status: Option<i32>,
}

/// The part of a summary that was read so far.
#[derive(Default)]
struct PartialSummary {
    begun: bool,
    whole: bool,
    ended: bool,
    summary: EndSummary,
}

impl PartialSummary {
    fn take(&mut self, time_ns: u64, event: &Event) {
        if let Event::StateBegin { what: Purpose::Summary, cache_ooms, .. } = *event {
            *self = PartialSummary { begun: true, ..PartialSummary::default() };
            self.summary.cache_ooms = cache_ooms;
            return;
        }
        if !self.begun {
            return;
        }
        let devices = &mut self.summary.devices;
        match *event {
            Event::StateEvent(listed) => {
                if let Event::Counters(counters) = listed.event() {
                    devices.entry(DeviceId(counters.device)).or_default().counters = counters;
                }
            }
            Event::StateHeld(held) => devices.entry(held.device).or_default().held = Some(held),
            Event::StateKind { device, kind, at_peak, live } => {
                devices.entry(device).or_default().kinds.push((kind, at_peak, live));
            }
            Event::StateHolder(holder) => {
                devices.entry(holder.device).or_default().holders.push(holder);
            }
            Event::StateEnd { .. } => self.whole = true,
            Event::Ended => {
                self.summary.ended_ns = time_ns;
                self.ended = true;
            }
            // They change nothing that the summary says.
            Event::Anchor | Event::Mark { .. } => {}
            // A thread went on, or an exit handler behind ours.
            _ => *self = PartialSummary::default(),
        }
    }
}

impl Trace {
    /// The recorder writes totals about once a second: they are looked for in the last windows alone.
    pub fn last_totals(&self) -> LastTotals {
        let mut totals = LastTotals::default();
        let Some(reader) = self.reader() else { return totals };
        let Some(run) = reader.runs().last().copied() else { return totals };
        for count in 1..=WINDOWS.min(run.count) {
            let last = Run { first: run.first + run.count - count, count: 1, ..run };
            let mut devices = BTreeMap::new();
            for at in reader.events_of(&last) {
                totals.last_ns = totals.last_ns.max(at.time_ns);
                match at.event {
                    Event::Counters(counters) => {
                        devices.insert(DeviceId(counters.device), counters);
                    }
                    Event::Ended => totals.ended = true,
                    Event::Aftermath { api: None, result } => totals.exit_status = Some(result),
                    _ => {}
                }
            }
            // Windows are read from the last one backwards: later totals stay.
            for (device, counters) in devices {
                totals.devices.entry(device).or_insert(counters);
            }
        }
        totals
    }

    /// `None`: there is none, it is not whole, or something of the trace is broken or missing, so
    /// that only a replay is right.
    pub fn summary(&self) -> Option<EndSummary> {
        let reader = self.reader().filter(|_| !self.is_running())?;
        if !reader.damage().is_empty() || self.missing_tail().is_some() {
            return None;
        }
        let run = *reader.runs().last()?;
        for count in 1..=WINDOWS.min(run.count) {
            let last = Run { first: run.first + run.count - count, count, ..run };
            let mut events = reader.events_of(&last);
            let mut found = PartialSummary::default();
            for at in &mut events {
                found.take(at.time_ns, &at.event);
            }
            if !events.damage().is_empty() || events.unknown() > 0 {
                return None;
            }
            if found.begun {
                return (found.whole && found.ended).then_some(found.summary);
            }
        }
        None
    }
}
