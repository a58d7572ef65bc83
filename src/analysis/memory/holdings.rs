//! Bytes by stack: of a live set, or of each device at its own peak.
//!
//! At the level of tensors, blocks replace their segments, and the rest of the segments is one holder,
//! "PyTorch cache (free)". The sum is that of driver memory at either level. The peak is that of
//! driver memory at either level; `--at peak-allocated` selects the peak of blocks.
//!
//! What the driver took for itself (graphs, modules, streams) has holders beside these: the lines whose calls made it
//! take the memory.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use vramtrace_format::{Cause, DeviceId, Space, StackId};

use super::recorded_peaks::RecordedPeaks;
use crate::analysis::{Level, Moment};
use crate::replay::{DeviceState, Key, Live, Peak, SegmentAt, State, Until, Visitor};
use crate::spans::Spans;
use crate::symbols::FREE_CACHE;
use crate::trace::{Definitions, Trace};

/// Memory that one stack holds on one device.
/// As JSON its bytes and its count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Held {
    /// Shares of physical memory, as [`Live::share`] counts them; of blocks the part of their size
    /// that has memory below it.
    pub bytes: u64,
    /// Number of allocations; of memory that the driver took, of functions and names that it took it for.
    pub count: u64,
    /// Bytes whose memory is unmapped and may be mapped again. Not in `bytes`.
    #[serde(skip)]
    pub paused: u64,
    /// Of `bytes`, physical memory that is mapped nowhere.
    #[serde(skip)]
    pub unmapped: u64,
    /// The call that brought memory back after it had been unmapped.
    #[serde(skip)]
    pub brought_back_by: Option<StackId>,
    /// The variance of `bytes`, where they are estimated from samples of blocks; else 0.
    #[serde(skip)]
    pub variance: f64,
}

impl Held {
    /// The standard error of `bytes`, in bytes.
    pub fn error(&self) -> u64 {
        self.variance.sqrt() as u64
    }

    pub fn add(&mut self, other: Held) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.count = self.count.saturating_add(other.count);
        self.paused = self.paused.saturating_add(other.paused);
        self.unmapped = self.unmapped.saturating_add(other.unmapped);
        self.brought_back_by = self.brought_back_by.or(other.brought_back_by);
        self.variance += other.variance;
    }
}

/// Who holds memory: a stack on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub device: DeviceId,
    pub stack: StackId,
    /// Blocks of a framework's cache, or what is free in it. False: driver memory.
    pub of_cache: bool,
    /// What the driver took it for, in no allocation. `None`: it was allocated.
    pub cause: Option<Cause>,
}

impl Owner {
    pub fn of_memory(device: DeviceId, stack: StackId) -> Owner {
        Owner { device, stack, of_cache: false, cause: None }
    }

    pub fn of_cache(device: DeviceId, stack: StackId) -> Owner {
        Owner { of_cache: true, ..Owner::of_memory(device, stack) }
    }

    /// Of what the driver took for itself.
    pub fn of_driver(device: DeviceId, stack: StackId, cause: Cause) -> Owner {
        Owner { cause: Some(cause), ..Owner::of_memory(device, stack) }
    }
}

/// What each stack held at a moment: a device's memory, without imports.
///
/// No byte counts twice: at the level of tensors, blocks replace the segments that contain them, and
/// [`FREE_CACHE`] holds the rest of the segments. The sum of a device is that of its driver memory at
/// either level, plus blocks whose driver memory was not recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holdings {
    pub level: Level,
    /// Driver memory (at the level of tensors without a framework's segments), a framework's blocks, the rest of its
    /// segments, and what the driver took for itself.
    pub held: FxHashMap<Owner, Held>,
    /// The moment of each device's figures, ns since the start of the trace.
    pub at_ns: BTreeMap<DeviceId, u64>,
    /// Devices with a known peak whose events are missing in the trace: no stacks are known.
    pub not_known: BTreeMap<DeviceId, Peak>,
}

impl Holdings {
    /// What each stack holds in a state.
    pub fn of_state(state: &State, level: Level) -> Holdings {
        let mut holdings = Holdings {
            level,
            at_ns: state.devices.keys().map(|device| (*device, state.time_ns)).collect(),
            ..Holdings::default()
        };
        each_piece(state, level, &mut |piece| {
            let (device, stack) = (piece.device, piece.stack);
            let owner = match piece.what {
                What::Memory => Owner::of_memory(device, stack),
                What::Block | What::Free => Owner::of_cache(device, stack),
                What::Driver(cause) => Owner::of_driver(device, stack, cause),
            };
            holdings.add(owner, piece.held);
        });
        holdings
    }

    /// Keeps the holdings of one device.
    pub fn keep(&mut self, device: DeviceId) {
        self.retain(|of| of == device);
    }

    /// Keeps the holdings of some devices.
    pub fn retain(&mut self, wanted: impl Fn(DeviceId) -> bool) {
        self.held.retain(|owner, _| wanted(owner.device));
        self.at_ns.retain(|of, _| wanted(*of));
        self.not_known.retain(|of, _| wanted(*of));
    }

    /// The holdings at a moment. `state`: the state at that moment; for peaks, the state at the end.
    pub fn at(
        trace: &Trace,
        definitions: &Definitions,
        state: &State,
        moment: Moment,
        level: Level,
    ) -> Holdings {
        match moment {
            Moment::Peak | Moment::AllocatedPeak => {
                Holdings::at_peaks(trace, definitions, state, moment, level)
            }
            _ => Holdings::of_state(state, level),
        }
    }

    /// The holdings of each device at its own peak. `end`: the state at the end, which has the peaks.
    /// Reads the trace up to the last of them.
    pub fn at_peaks(
        trace: &Trace,
        definitions: &Definitions,
        end: &State,
        peak: Moment,
        level: Level,
    ) -> Holdings {
        let mut at_peaks = HoldingsAtPeaks::new(end, peak, level);
        trace.visit(definitions, &mut [&mut at_peaks]);
        at_peaks.found
    }

    pub fn add(&mut self, owner: Owner, held: Held) {
        self.held.entry(owner).or_default().add(held);
    }

    /// All bytes on a device.
    pub fn bytes_on(&self, device: DeviceId) -> u64 {
        let here = self.held.iter().filter(|(owner, _)| owner.device == device);
        here.fold(0, |sum: u64, (_, held)| sum.saturating_add(held.bytes))
    }

    /// The stacks of the holders, and of the calls that mapped their memory again.
    pub fn stacks(&self) -> impl Iterator<Item = StackId> {
        self.held
            .iter()
            .flat_map(|(owner, held)| [Some(owner.stack), held.brought_back_by])
            .flatten()
    }
}

/// Finds the holdings of each device at its own peak.
pub struct HoldingsAtPeaks {
    /// Each device, its place, and its peak.
    places: Vec<(DeviceId, Until, Peak)>,
    recorded: RecordedPeaks,
    pub found: Holdings,
}

impl HoldingsAtPeaks {
    /// `end`: the state at the end, which has the peaks.
    pub fn new(end: &State, peak: Moment, level: Level) -> HoldingsAtPeaks {
        let places = places(end, peak).into_iter();
        let places = places.map(|(device, until)| (device, until, end.devices[&device].peak));
        let found = Holdings { level, ..Holdings::default() };
        HoldingsAtPeaks { places: places.collect(), recorded: RecordedPeaks::of(end, peak), found }
    }
}

impl Visitor for HoldingsAtPeaks {
    fn stops(&self) -> Vec<Until> {
        self.places.iter().map(|(_, until, _)| *until).collect()
    }

    fn visit(&mut self, stop: usize, state: &State) {
        let (device, until, peak) = self.places[stop];
        let found = &mut self.found;
        if state.is_in_gap() {
            let Some(recorded) = self.recorded.at(device, peak, found.level) else {
                found.not_known.insert(device, peak);
                return;
            };
            found.at_ns.insert(device, peak.time_ns);
            recorded.into_iter().for_each(|(owner, held)| found.add(owner, held));
            return;
        }
        let mut here = Holdings::of_state(state, found.level);
        here.keep(device);
        found.held.extend(here.held);
        let at_ns = match until {
            Until::Time(time_ns) => time_ns,
            Until::Offset(_) | Until::End => state.time_ns,
        };
        found.at_ns.insert(device, at_ns);
    }
}

/// Bytes of a physical object that belong to another stack than the one that created it.
#[derive(Clone, Copy, Debug)]
struct Part {
    bytes: u64,
    owner: StackId,
    by: StackId,
}

/// The owners of the bytes of physical objects, where the trace has reservations.
#[derive(Default)]
struct Owned {
    parts: FxHashMap<u64, Vec<Part>>,
    /// Objects that are mapped somewhere. `None`: not known, the trace has no reservations.
    mapped: Option<FxHashSet<u64>>,
}

impl Owned {
    fn of(state: &State) -> Owned {
        let mut owned = Owned::default();
        if !state.space.was_used() {
            return owned;
        }
        owned.mapped = Some(state.space.mappings().map(|mapping| mapping.object).collect());
        // Bytes that are mapped twice count once.
        let mut seen: FxHashMap<u64, Spans<()>> = FxHashMap::default();
        for mapping in state.space.mappings() {
            let Some(woken) = mapping.woken else { continue };
            if !state.space.backs(mapping) {
                continue;
            }
            let seen = seen.entry(mapping.object).or_default();
            let range = mapping.offset..mapping.offset.saturating_add(mapping.size);
            let new = seen.holes(range.clone());
            let bytes = new.iter().map(|hole| hole.end - hole.start).sum();
            seen.put(range, ());
            let parts = owned.parts.entry(mapping.object).or_default();
            let owner = woken.owner.stack;
            match parts.iter_mut().find(|part| part.owner == owner) {
                Some(part) => part.bytes += bytes,
                None => parts.push(Part { bytes, owner, by: woken.by }),
            }
        }
        owned
    }

    fn is_unmapped(&self, key: Key) -> bool {
        let mapped = self.mapped.as_ref().filter(|_| key.space == Space::Vmm);
        mapped.is_some_and(|mapped| !mapped.contains(&key.number))
    }
}

/// The kind of a [`Piece`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Driver memory.
    Memory,
    /// A framework's block.
    Block,
    /// The rest of a framework's segment.
    Free,
    /// What the driver took for itself: in no allocation.
    Driver(Cause),
}

/// A part of a device's memory at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'s> {
    pub what: What,
    pub device: DeviceId,
    pub stack: StackId,
    pub held: Held,
    /// `None` for the rest of a segment, for unmapped memory, and for what the driver took.
    pub allocation: Option<(Key, &'s Live)>,
}

/// Calls `take` for every part of every device's memory, without imports. No byte is in two parts.
pub fn each_piece(state: &State, level: Level, take: &mut dyn FnMut(Piece)) {
    let segments = match level {
        Level::Driver => Vec::new(),
        Level::Tensor => state.segments(),
    };
    let mut taken: FxHashSet<Key> = FxHashSet::default();
    for segment in &segments {
        pieces_of(state, segment, &mut taken, take);
    }
    if level == Level::Tensor {
        for (address, bytes) in state.cache.outside() {
            let key = Key::block(address);
            if let Some(live) = state.live.get(key) {
                take(Piece::of(
                    What::Block,
                    key,
                    live,
                    sampled(live, Held { bytes, count: 1, ..Held::default() }),
                ));
            }
        }
    }
    if level == Level::Tensor {
        free_beside_samples(state, take);
    }
    let owned = Owned::of(state);
    for (key, live) in state.live.iter().filter(|(_, live)| live.is_device_memory()) {
        if taken.is_empty() || !taken.contains(&key) {
            pieces_of_memory(&owned, key, live, take);
        }
    }
    for asleep in state.space.asleep() {
        let in_segment = || state.cache.segment_of(asleep.address).is_some();
        if level == Level::Driver || !in_segment() {
            let held = Held { count: 1, paused: asleep.size, ..Held::default() };
            let (device, stack) = (asleep.owner.device, asleep.owner.stack);
            take(Piece { what: What::Memory, device, stack, held, allocation: None });
        }
    }
    for (device, sums) in &state.devices {
        for (maker, bytes) in sums.driver_own.makers() {
            let held = Held { bytes, count: 1, ..Held::default() };
            let (what, device, stack) = (What::Driver(maker.cause), *device, maker.stack);
            take(Piece { what, device, stack, held, allocation: None });
        }
    }
}

/// The owner of driver memory: the stack that allocated it, except for memory that was mapped in place
/// of unmapped bytes.
fn pieces_of_memory(owned: &Owned, key: Key, live: &Live, take: &mut dyn FnMut(Piece)) {
    let mut rest = live.share();
    let parts = match key.space {
        Space::Vmm => owned.parts.get(&key.number).map_or(&[][..], Vec::as_slice),
        _ => &[],
    };
    for part in parts {
        let bytes = part.bytes.min(rest);
        rest -= bytes;
        let brought_back_by = Some(part.by);
        let held = Held { bytes, count: 1, brought_back_by, ..Held::default() };
        take(Piece { stack: part.owner, ..Piece::of(What::Memory, key, live, held) });
    }
    if rest > 0 || parts.is_empty() {
        let unmapped = if owned.is_unmapped(key) { rest } else { 0 };
        let held = Held { bytes: rest, count: 1, unmapped, ..Held::default() };
        take(Piece::of(What::Memory, key, live, held));
    }
}

/// The blocks of a segment, and the rest of it.
fn pieces_of(
    state: &State,
    segment: &SegmentAt,
    taken: &mut FxHashSet<Key>,
    take: &mut dyn FnMut(Piece),
) {
    let mut rest = 0u64;
    let mut device = segment.device;
    for (key, live) in segment.allocation(state).into_iter().chain(segment.objects(state)) {
        // An object may be mapped twice.
        if taken.insert(key) {
            rest = rest.saturating_add(live.share());
            device = live.device;
        }
    }
    let mut paused = segment.paused;
    for block in &segment.blocks {
        let bytes = block.bytes - block.paused;
        let woken = state.space.at(block.address).and_then(|mapping| mapping.woken);
        let held = Held {
            bytes,
            count: 1,
            paused: block.paused,
            unmapped: 0,
            brought_back_by: woken.map(|woken| woken.by),
            variance: 0.0,
        };
        let held = sampled(block.live, held);
        let piece = Piece::of(What::Block, Key::block(block.address), block.live, held);
        take(Piece { device, ..piece });
        rest = rest.saturating_sub(bytes);
        paused = paused.saturating_sub(block.paused);
    }
    let is_sampled = state.devices.get(&device).is_some_and(|device| device.cache.sampled);
    if (rest > 0 || paused > 0) && !is_sampled {
        let held = Held { bytes: rest, count: 1, paused, ..Held::default() };
        take(Piece { what: What::Free, device, stack: FREE_CACHE, held, allocation: None });
    }
}

/// Where samples of blocks are recorded, the free bytes of all segments of a device are known, but not those of one.
fn free_beside_samples(state: &State, take: &mut dyn FnMut(Piece)) {
    for (&device, of) in &state.devices {
        let cache = &of.cache;
        let (bytes, paused) = (cache.free_resident(), cache.free() - cache.free_resident());
        if cache.sampled && (bytes > 0 || paused > 0) {
            let held = Held { bytes, count: 1, paused, ..Held::default() };
            take(Piece { what: What::Free, device, stack: FREE_CACHE, held, allocation: None });
        }
    }
}

/// The figures of all blocks that this one stands for.
fn sampled(live: &Live, held: Held) -> Held {
    Held {
        bytes: live.weigh(held.bytes),
        count: live.weigh(held.count),
        paused: live.weigh(held.paused),
        variance: live.variance(held.bytes),
        ..held
    }
}

impl<'s> Piece<'s> {
    fn of(what: What, key: Key, live: &'s Live, held: Held) -> Piece<'s> {
        let (device, stack) = (live.device, live.stack);
        Piece { what, device, stack, held, allocation: Some((key, live)) }
    }
}

/// The stacks of the memory that a framework's blocks lie in.
pub(in crate::analysis) fn segment_stacks(state: &State) -> FxHashSet<(DeviceId, StackId)> {
    let mut stacks = FxHashSet::default();
    for segment in state.segments() {
        let memory = segment.allocation(state).into_iter().chain(segment.objects(state));
        stacks.extend(memory.map(|(_, live)| (live.device, live.stack)));
    }
    stacks
}

/// The place in the trace of a moment, for each device. `end`: the state at the end, with the peaks.
pub(in crate::analysis) fn places(end: &State, moment: Moment) -> Vec<(DeviceId, Until)> {
    let place = |device: &DeviceState| match moment {
        Moment::Peak | Moment::AllocatedPeak => place_of(device, moment),
        Moment::End => Some(Until::End),
        Moment::At(time_ns) => Some(Until::Time(time_ns)),
        Moment::Event { offset, .. } => Some(Until::Offset(offset)),
        Moment::OutOfMemory | Moment::Step(_) => None,
    };
    end.devices.iter().filter_map(|(id, device)| Some((*id, place(device)?))).collect()
}

/// The place in the trace of a device's peak. `None`: the device held no memory.
fn place_of(device: &DeviceState, peak: Moment) -> Option<Until> {
    if peak == Moment::AllocatedPeak {
        let peak = device.cache.peak_allocated;
        return (peak.bytes > 0).then_some(Until::Offset(peak.offset));
    }
    let peak = device.peak;
    // Without an offset, the peak comes from the recorder's counters alone.
    let place = peak.offset.map_or(Until::Time(peak.time_ns), Until::Offset);
    (peak.bytes > 0).then_some(place)
}

#[cfg(test)]
mod tests;
