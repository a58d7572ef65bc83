//! What stacks held in the time whose events were erased, from the recorder's history. It goes before the histories
//! that the events give: a stack that no sample tells apart counts as having held all along what it holds first.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, StackId};

use super::observer::{GrowthObserver, LevelTotals, StackHistory};
use crate::analysis::Level;
use crate::replay::History;
use crate::replay::history::{Sampled, Tier};

type Of = (Level, DeviceId, StackId);

/// The lowest bytes of a stack by time and by events of its level and device.
#[derive(Default)]
struct Samples {
    by_time: Vec<(u64, u64)>,
    by_events: Vec<(u64, u64)>,
    first_event: Option<u64>,
}

fn level(of_framework: bool) -> Level {
    if of_framework { Level::Tensor } else { Level::Driver }
}

/// The events of a level and device at the begin of each part, and at the end of all.
fn events_before(parts: &[(&Tier, usize)], of_framework: bool, device: DeviceId) -> Vec<u64> {
    let mut events = vec![0];
    for (tier, at) in parts {
        let of = tier.bins[*at].devices.get(&device).and_then(|of| of.level(of_framework));
        let before = events[events.len() - 1];
        let calls = of.map_or(before, |of| of.allocations.saturating_add(of.frees));
        events.push(calls.max(before));
    }
    events
}

impl GrowthObserver {
    /// Puts the samples of the time before the first observed event before the histories. `None`: there are none.
    pub fn prepend(&mut self, history: &History) -> Option<Sampled> {
        let resumed_ns = self.from_ns?;
        let parts = history.parts(resumed_ns);
        let sampled = history.sampled(resumed_ns)?;
        let from_ns = sampled.from_ns;
        let mut events: BTreeMap<(Level, DeviceId), Vec<u64>> = BTreeMap::new();
        for (level, device) in self.places.keys() {
            let of = events_before(&parts, *level == Level::Tensor, *device);
            events.insert((*level, *device), of);
        }
        let mut samples: FxHashMap<Of, Samples> = FxHashMap::default();
        let mut part = 0;
        while let Some((tier, first)) = parts.get(part).copied() {
            let count = parts[part..].iter().take_while(|(of, _)| std::ptr::eq(*of, tier)).count();
            // The bins of a tier follow each other.
            for (from, to, of) in tier.runs() {
                let key = (level(of.of_framework), of.device, of.stack);
                let (Some(events), true) =
                    (events.get(&(key.0, key.1)), self.tracks.contains_key(&key))
                else {
                    continue;
                };
                let begin = from.max(first);
                if begin > to || begin >= first + count {
                    continue;
                }
                let samples = samples.entry(key).or_default();
                let at = part + begin - first;
                samples.by_time.push((tier.bins[begin].from_ns.saturating_sub(from_ns), of.lowest));
                samples.by_events.push((events[at], of.lowest));
                let first_event = samples.first_event.get_or_insert(events[at]);
                *first_event = (*first_event).min(events[at]);
            }
            part += count;
        }
        let shift_ns = resumed_ns.saturating_sub(from_ns);
        for ((level, device, stack), track) in &mut self.tracks {
            let all = events.get(&(*level, *device)).and_then(|events| events.last());
            let all = all.copied().unwrap_or(0);
            let of = samples.remove(&(*level, *device, *stack)).unwrap_or_default();
            track.prepend(of, shift_ns, all);
        }
        for (at, place) in &mut self.places {
            let last = parts.last().and_then(|(tier, bin)| tier.bins[*bin].devices.get(&at.1));
            if let Some(of) = last.and_then(|of| of.level(at.0 == Level::Tensor)) {
                place.add_earlier(of.allocations, of.frees);
                self.frees = self.frees.saturating_add(of.frees);
            }
        }
        self.from_ns = Some(from_ns);
        self.is_sampled = true;
        Some(sampled)
    }
}

impl StackHistory {
    fn prepend(&mut self, of: Samples, shift_ns: u64, events: u64) {
        let Samples { mut by_time, mut by_events, first_event } = of;
        by_time.sort_unstable();
        by_events.sort_unstable();
        self.time = self.time.after(&by_time, shift_ns);
        self.activity = self.activity.after(&by_events, events);
        let own = &mut self.sums.first_event;
        *own = first_event.unwrap_or(own.saturating_add(events));
        // What came between is erased.
        self.sums.interleaved = self.sums.interleaved.saturating_add(events);
    }
}

impl LevelTotals {
    fn add_earlier(&mut self, allocations: u64, frees: u64) {
        let events = allocations.saturating_add(frees);
        self.events = self.events.saturating_add(events);
        self.last_alloc_events = self.last_alloc_events.saturating_add(events);
        self.allocations = self.allocations.saturating_add(allocations);
        self.frees = self.frees.saturating_add(frees);
        self.last_alloc_frees = self.last_alloc_frees.saturating_add(frees);
    }
}
