//! Records the live bytes of each stack during a replay, over time and over events. Memory is bounded by
//! the number of stacks and by the live set.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use vramtrace_format::{DeviceId, Kind, Refused, Space, StackId, Stamped, Took, physical};

use super::driver::DriverHeld;
use super::larger::Pieces;
use super::series::Series;
use crate::analysis::Level;
use crate::replay::{
    AllocCause, CacheOomAt, DeviceState, ExecGraph, FreeCause, GraphChange, Key, Live, Mapping,
    Observer, State, is_out_of_memory,
};
use crate::trace::SiteInfo;

/// The first width of bins, as powers of two: 4,096 ns of time, one event of activity.
pub(super) const TIME_SHIFT: u32 = 12;
pub(super) const ACTIVITY_SHIFT: u32 = 0;

/// A set of pieces that has as many pieces as ever by this part of its allocations is full.
const FULL: f64 = 0.75;

/// The figures of one stack, or of several, on one device.
#[derive(Clone, Copy, Debug, Default)]
pub struct StackSums {
    pub bytes: u64,
    /// The variance of `bytes`, where samples of blocks estimate them; else 0.
    pub variance: f64,
    /// Allocations in the file: of samples those that were recorded.
    pub count: u64,
    /// Calls whose events are in the file.
    pub allocations: u64,
    pub frees: u64,
    /// Those allocations that were in private pools.
    pub private: u64,
    /// Allocations between which and its last event another stack had freed memory: a program that only allocates is loading.
    pub interleaved: u64,
    /// The highest number of allocations that were live at once, and the number of allocations until then.
    pub highest_count: u64,
    pub highest_at: u64,
    /// The smallest and the largest allocation, bytes.
    pub smallest: u64,
    pub largest: u64,
    pub(super) pieces: Pieces,
    /// Events of the same level and device before its first one, and the frees among them.
    pub first_event: u64,
    pub frees_before: u64,
}

impl StackSums {
    /// Whether it had as many pieces as ever when it went on to allocate: those replace others.
    pub(super) fn is_full(&self) -> bool {
        self.highest_at as f64 <= FULL * self.allocations as f64
    }

    /// Whether its pieces differ by more than a factor of four.
    pub(super) fn are_of_many_sizes(&self) -> bool {
        self.largest > self.smallest.saturating_mul(4)
    }

    pub(super) fn add(&mut self, other: &StackSums) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.variance += other.variance;
        self.count += other.count;
        self.allocations += other.allocations;
        self.frees += other.frees;
        self.private += other.private;
        self.interleaved += other.interleaved;
        self.highest_count += other.highest_count;
        self.highest_at += other.highest_at;
        self.smallest = self.smallest.min(other.smallest);
        self.largest = self.largest.max(other.largest);
        self.pieces.add(&other.pieces);
        self.first_event = self.first_event.min(other.first_event);
        self.frees_before = self.frees_before.min(other.frees_before);
    }
}

/// What was live at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveThen {
    pub bytes: u64,
    pub count: u64,
    pub variance: f64,
}

/// The history of one stack on one device.
#[derive(Clone, Debug)]
pub struct StackHistory {
    pub sums: StackSums,
    pub last_alloc_ns: u64,
    /// Events of its level and device up to then.
    pub last_alloc_events: u64,
    /// The frees of the process up to its last event.
    seen_frees: u64,
    /// What was live before the latest frees began, and the allocations of the process up to then.
    held: (u64, LiveThen),
    /// Live bytes over time, ns since the first observed event.
    pub time: Series,
    /// The same over the events of its device and level.
    pub activity: Series,
}

/// The sums of all stacks of one level on one device.
#[derive(Clone, Copy, Debug, Default)]
pub struct LevelTotals {
    /// Allocations and frees.
    pub events: u64,
    pub allocations: u64,
    pub frees: u64,
    pub last_alloc_ns: u64,
    /// `events` and `frees` at the last allocation.
    pub last_alloc_events: u64,
    pub last_alloc_frees: u64,
}

/// Pauses that do not count as time of the last frees: between the end of a step and the end of the
/// process, and where other processes use the CPU.
const PAUSES: usize = 12;

/// The frees after the last allocation: those of the last step and of the process's end.
#[derive(Clone, Copy, Debug)]
pub struct LastFrees {
    first_ns: u64,
    last_ns: u64,
    /// The longest pauses between two of them.
    pauses_ns: [u64; PAUSES],
}

impl LastFrees {
    fn new(time_ns: u64) -> LastFrees {
        LastFrees { first_ns: time_ns, last_ns: time_ns, pauses_ns: [0; PAUSES] }
    }

    fn add(&mut self, time_ns: u64) {
        let mut pause = time_ns.saturating_sub(self.last_ns);
        self.last_ns = self.last_ns.max(time_ns);
        // Sorted, longest first: most pauses are shorter than all of them.
        if pause <= self.pauses_ns[PAUSES - 1] {
            return;
        }
        for longest in &mut self.pauses_ns {
            if pause > *longest {
                std::mem::swap(&mut pause, longest);
            }
        }
    }

    /// Time from the first to the last of them, without the longest pauses.
    pub fn busy_ns(&self) -> u64 {
        (self.last_ns - self.first_ns).saturating_sub(self.pauses_ns.iter().sum())
    }
}

/// Collects the histories of all stacks.
#[derive(Clone, Debug, Default)]
pub struct GrowthObserver {
    pub driver: DriverHeld,
    pub tracks: FxHashMap<(Level, DeviceId, StackId), StackHistory>,
    pub places: BTreeMap<(Level, DeviceId), LevelTotals>,
    /// Time of the first observed event: the first allocation, or the checkpoint where the history begins.
    pub from_ns: Option<u64>,
    pub last_ns: u64,
    /// The frees after the last allocation.
    pub last_frees: Option<LastFrees>,
    /// Unmapped memory was mapped again.
    pub woke: bool,
    /// Samples stand for the beginning: of each stack, and not of all together.
    pub is_sampled: bool,
    allocations: u64,
    /// Frees, and memory that is mapped again.
    pub(super) frees: u64,
    /// The first refusal for want of memory: time since the first observed event, ns, and the events before it.
    pub first_refusals: BTreeMap<(Level, DeviceId), (u64, u64)>,
    /// The time of the last one.
    pub last_refusal_ns: u64,
    segments: FxHashSet<Key>,
    /// Physical objects that were mapped in place of unmapped memory, with the stack that allocated that
    /// memory; of several stacks the first.
    owners: FxHashMap<u64, StackId>,
}

impl GrowthObserver {
    /// Time since the first observed event, ns.
    fn since(&mut self, time_ns: u64) -> u64 {
        self.last_ns = self.last_ns.max(time_ns);
        time_ns.saturating_sub(*self.from_ns.get_or_insert(time_ns))
    }

    fn refused(&mut self, at: &Stamped, place: (Level, DeviceId)) {
        self.last_refusal_ns = at.time_ns;
        if let (Some(from_ns), Some(totals)) = (self.from_ns, self.places.get(&place)) {
            let then = (at.time_ns.saturating_sub(from_ns), totals.events);
            self.first_refusals.entry(place).or_insert(then);
        }
    }

    fn add(&mut self, at: &Stamped, level: Level, live: &Live, how: AllocCause) {
        // What an import found when its history begins has the time of the first event.
        let was_there = self.from_ns == Some(at.time_ns) && how == AllocCause::Allocated;
        let how = if was_there { AllocCause::Checkpoint } else { how };
        let time = self.since(at.time_ns);
        let place = self.places.entry((level, live.device)).or_default();
        let activity = place.events;
        let piece = physical::share(live.kind, live.size);
        let share = live.weigh(piece);
        let track =
            self.tracks.entry((level, live.device, live.stack)).or_insert_with(|| StackHistory {
                sums: StackSums {
                    smallest: piece,
                    largest: piece,
                    first_event: activity,
                    frees_before: place.frees,
                    ..StackSums::default()
                },
                last_alloc_ns: live.time_ns,
                last_alloc_events: 0,
                seen_frees: 0,
                held: (0, LiveThen::default()),
                time: Series::new(TIME_SHIFT, 0),
                activity: Series::new(ACTIVITY_SHIFT, 0),
            });
        let sums = &mut track.sums;
        let now = sums.bytes.saturating_add(share);
        match how {
            // It was live before the first observed event.
            AllocCause::Checkpoint => {
                track.time.lift(share);
                track.activity.lift(share);
            }
            AllocCause::Allocated => {
                self.last_frees = None;
                self.allocations += 1;
                place.events += 1;
                place.allocations += 1;
                place.last_alloc_ns = at.time_ns;
                place.last_alloc_events = place.events;
                place.last_alloc_frees = place.frees;
                sums.allocations += 1;
                sums.private += u64::from(live.pool.0 > 0);
                sums.interleaved += u64::from(self.frees > track.seen_frees);
                track.seen_frees = self.frees;
                (track.last_alloc_ns, track.last_alloc_events) = (at.time_ns, place.events);
                sums.pieces.allocated(live.size);
            }
            AllocCause::FreeFailed => sums.frees = sums.frees.saturating_sub(1),
        }
        if how != AllocCause::Checkpoint {
            track.time.change(time, sums.bytes, now);
            track.activity.change(activity, sums.bytes, now);
        }
        (sums.smallest, sums.largest) = (sums.smallest.min(piece), sums.largest.max(piece));
        sums.bytes = now;
        sums.variance += live.variance(piece);
        sums.count += 1;
        if sums.count > sums.highest_count {
            (sums.highest_count, sums.highest_at) = (sums.count, sums.allocations);
        }
    }

    fn remove(&mut self, at: &Stamped, level: Level, live: &Live) {
        let time = self.since(at.time_ns);
        let place = self.places.entry((level, live.device)).or_default();
        let Some(track) = self.tracks.get_mut(&(level, live.device, live.stack)) else { return };
        if track.held.0 != self.allocations {
            track.held = (self.allocations, track.live());
        }
        let piece = physical::share(live.kind, live.size);
        track.shrink(time, place.events, live.weigh(piece));
        place.events += 1;
        place.frees += 1;
        track.sums.frees += 1;
        self.frees += 1;
        track.seen_frees = self.frees;
        self.last_frees.get_or_insert(LastFrees::new(at.time_ns)).add(at.time_ns);
        track.sums.variance = (track.sums.variance - live.variance(piece)).max(0.0);
    }

    /// Takes an allocation back: driver memory that is a framework's segment, or another stack's.
    fn uncount(&mut self, at: &Stamped, live: &Live) {
        let time = self.since(at.time_ns);
        let place = self.places.entry((Level::Driver, live.device)).or_default();
        if let Some(track) = self.tracks.get_mut(&(Level::Driver, live.device, live.stack)) {
            track.shrink(time, place.events, live.share());
            track.sums.allocations = track.sums.allocations.saturating_sub(1);
        }
    }

    /// An allocation that goes, with the stack that it counts for.
    fn owned(&mut self, key: Key, live: &Live) -> Live {
        let owner = Some(key.number).filter(|_| key.space == Space::Vmm);
        let owner = owner.and_then(|number| self.owners.remove(&number));
        Live { stack: owner.unwrap_or(live.stack), ..*live }
    }

    /// What a stack held at the process's last allocation.
    pub fn held(&self, track: &StackHistory) -> LiveThen {
        let (when, held) = track.held;
        if when == self.allocations { held } else { track.live() }
    }
}

impl StackHistory {
    fn live(&self) -> LiveThen {
        let StackSums { bytes, count, variance, .. } = self.sums;
        LiveThen { bytes, count, variance }
    }

    fn shrink(&mut self, time: u64, activity: u64, by: u64) {
        let (before, now) = (self.sums.bytes, self.sums.bytes.saturating_sub(by));
        self.time.change(time, before, now);
        self.activity.change(activity, before, now);
        self.sums.bytes = now;
        self.sums.count = self.sums.count.saturating_sub(1);
    }
}

/// Whether an allocation is followed. Graph memory is not: its reservation is counted instead.
fn counts(live: &Live) -> bool {
    live.is_device_memory() && live.kind != Kind::Graph
}

impl Observer for GrowthObserver {
    fn on_alloc(&mut self, at: &Stamped, _key: Key, live: &Live, how: AllocCause) {
        if counts(live) {
            self.add(at, Level::Driver, live, how);
        }
    }

    fn on_free(&mut self, at: &Stamped, key: Key, live: &Live, _how: FreeCause) {
        if counts(live) && self.segments.remove(&key) {
            self.frees += 1;
        } else if counts(live) {
            let owned = self.owned(key, live);
            self.remove(at, Level::Driver, &owned);
        }
    }

    fn on_device_change(&mut self, _at: &Stamped, device: DeviceId, state: &DeviceState) {
        self.driver.sampled(device, state);
    }

    fn on_took(&mut self, at: &Stamped, took: &Took) {
        self.driver.took(at, took);
    }

    fn on_contexts(&mut self, at: &Stamped, device: DeviceId, state: &State) {
        self.driver.contexts(at, device, state);
    }

    fn on_refusal(&mut self, at: &Stamped, refused: &Refused, site: Option<&SiteInfo>) {
        let device = site.map(|site| site.device).filter(|_| is_out_of_memory(refused));
        device.into_iter().for_each(|device| self.refused(at, (Level::Driver, device)));
    }

    fn on_cache_oom(&mut self, at: &Stamped, device: DeviceId, _oom: &CacheOomAt) {
        self.refused(at, (Level::Tensor, device));
    }

    fn on_graph(&mut self, at: &Stamped, graph: &ExecGraph, change: GraphChange) {
        self.driver.graph(at, graph, change);
    }

    fn on_resume(&mut self, at: &Stamped, state: &State) {
        self.driver.resume(at, state);
    }

    /// Memory that is mapped again belongs to the stack that allocated it first.
    fn on_wake(&mut self, at: &Stamped, mapping: &Mapping, object: Option<&Live>) {
        self.woke = true;
        self.frees += 1;
        let key = Key { space: Space::Vmm, number: mapping.object };
        let (Some(object), Some(woken)) = (object.filter(|live| counts(live)), mapping.woken)
        else {
            return;
        };
        if woken.owner.stack == object.stack
            || self.segments.contains(&key)
            || self.owners.contains_key(&mapping.object)
        {
            return;
        }
        self.owners.insert(mapping.object, woken.owner.stack);
        self.uncount(at, object);
        let owned = Live { stack: woken.owner.stack, ..*object };
        self.add(at, Level::Driver, &owned, AllocCause::FreeFailed);
    }

    fn on_block_alloc(&mut self, at: &Stamped, _address: u64, live: &Live, how: AllocCause) {
        self.add(at, Level::Tensor, live, how);
    }

    fn on_block_free(&mut self, at: &Stamped, _address: u64, live: &Live, _how: FreeCause) {
        self.remove(at, Level::Tensor, live);
    }

    /// The blocks of a framework's segment are followed instead of the segment.
    fn on_segment(&mut self, at: &Stamped, key: Key, live: &Live) {
        if counts(live) && self.segments.insert(key) {
            let owned = self.owned(key, live);
            self.uncount(at, &owned);
        }
    }

    fn on_history_gap(&mut self, at: &Stamped) {
        *self = GrowthObserver {
            woke: self.woke,
            from_ns: Some(at.time_ns),
            last_ns: at.time_ns,
            ..GrowthObserver::default()
        };
    }
}
