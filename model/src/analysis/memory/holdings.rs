//! Bytes by stack: of a live set, or of each device at its own peak.
//!
//! At the level of tensors, blocks replace their segments, and the rest of the segments is one holder,
//! "free in cache". The sum is that of driver memory at either level. The peak is that of
//! driver memory at either level; `--at peak-allocated` selects the peak of blocks.
//!
//! Contexts, and what the driver took for itself (graphs, modules, streams), have holders beside these: the lines whose calls
//! made it take the memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use vramtrace_format::{DeviceId, DriverCause, Space, StackId, StateHolder};

use crate::analysis::{Level, Moment};
use crate::replay::{DeviceState, History, Key, Live, Peak, SegmentAt, State, Until, Visitor};
use crate::spans::Spans;
use crate::symbols::FREE_CACHE;
use crate::trace::{Definitions, Trace};

/// Memory that one stack holds on one device.
/// As JSON its bytes and its count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Holding {
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

impl Holding {
    /// The standard error of `bytes`, in bytes.
    pub fn error(&self) -> u64 {
        self.variance.sqrt() as u64
    }

    pub fn add(&mut self, other: Holding) {
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
    pub cause: Option<DriverCause>,
}

impl Owner {
    pub fn of_memory(device: DeviceId, stack: StackId) -> Owner {
        Owner { device, stack, of_cache: false, cause: None }
    }

    pub fn of_cache(device: DeviceId, stack: StackId) -> Owner {
        Owner { of_cache: true, ..Owner::of_memory(device, stack) }
    }

    /// Of what the driver took for itself.
    pub fn of_driver(device: DeviceId, stack: StackId, cause: DriverCause) -> Owner {
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
    pub held: FxHashMap<Owner, Holding>,
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
        each_piece(state, level, &mut |piece| holdings.add(piece.owner, piece.held));
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

    /// The holdings at a moment. `state`: the state at that moment; for peaks the state at the end, and the trace is read up to
    /// the last of them.
    pub fn at(
        trace: &Trace,
        definitions: &Definitions,
        state: &State,
        moment: Moment,
        level: Level,
    ) -> Holdings {
        if !moment.is_peak() {
            return Holdings::of_state(state, level);
        }
        let mut at_peaks = HoldingsAtPeaks::new(state, moment, level);
        trace.visit(definitions, &mut [&mut at_peaks]);
        at_peaks.found
    }

    pub fn add(&mut self, owner: Owner, held: Holding) {
        self.held.entry(owner).or_default().add(held);
    }

    /// Adds holders of a device as the recorder wrote them, driver memory and blocks, at this level: `is_segment` says of a
    /// stack whether its memory is of the blocks' framework.
    pub fn add_recorded<'h>(
        &mut self,
        device: DeviceId,
        holders: impl Iterator<Item = &'h StateHolder> + Clone,
        is_segment: impl Fn(StackId) -> bool,
    ) {
        let with_blocks =
            self.level == Level::Tensor && holders.clone().any(|holder| holder.of_framework);
        let (mut segments, mut blocks) = (0u64, 0u64);
        for holder in holders.filter(|holder| with_blocks || !holder.of_framework) {
            let &StateHolder { stack, bytes, count, of_framework: of_cache, .. } = holder;
            if of_cache {
                blocks = blocks.saturating_add(bytes);
            } else if with_blocks && is_segment(stack) {
                segments = segments.saturating_add(bytes);
                continue;
            }
            let owner = Owner { of_cache, ..Owner::of_memory(device, stack) };
            self.add(owner, Holding { bytes, count, ..Holding::default() });
        }
        if segments > blocks {
            let free = Holding { bytes: segments - blocks, count: 1, ..Holding::default() };
            self.add(Owner::of_cache(device, FREE_CACHE), free);
        }
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

/// Finds the holdings of each device at its own peak. Where the events of a peak were erased, they are the largest holders
/// that the recorder wrote of it.
pub struct HoldingsAtPeaks {
    /// Each device, its place, and its peak.
    places: Vec<(DeviceId, Until, Peak)>,
    /// None for the peaks of blocks: they are not recorded.
    history: Option<Arc<History>>,
    /// Stacks that made segments of a framework.
    segments: FxHashSet<(DeviceId, StackId)>,
    pub found: Holdings,
}

impl HoldingsAtPeaks {
    /// `end`: the state at the end, which has the peaks.
    pub fn new(end: &State, peak: Moment, level: Level) -> HoldingsAtPeaks {
        let places = places(end, peak).into_iter();
        let places = places.map(|(device, until)| (device, until, end.devices[&device].peak));
        let history = end.history.clone().filter(|_| peak == Moment::Peak);
        let segments = history.as_ref().map(|_| segment_stacks(end)).unwrap_or_default();
        let found = Holdings { level, ..Holdings::default() };
        HoldingsAtPeaks { places: places.collect(), history, segments, found }
    }

    /// The recorded holders at a device's peak. A peak that is later than they are is another one.
    fn recorded(&self, device: DeviceId, peak: Peak) -> Vec<StateHolder> {
        let until_ns = |of: &History| of.span().map_or(0, |(_, until_ns)| until_ns);
        let of_peak = self.history.iter().filter(|of| peak.time_ns <= until_ns(of));
        let holders = of_peak.flat_map(|of| &of.peak_holders);
        holders.filter(|holder| holder.device == device).copied().collect()
    }
}

impl Visitor for HoldingsAtPeaks {
    fn stops(&self) -> Vec<Until> {
        self.places.iter().map(|(_, until, _)| *until).collect()
    }

    fn visit(&mut self, stop: usize, state: &State) {
        let (device, until, peak) = self.places[stop];
        if state.is_in_gap() {
            let recorded = self.recorded(device, peak);
            if recorded.is_empty() {
                self.found.not_known.insert(device, peak);
                return;
            }
            self.found.at_ns.insert(device, peak.time_ns);
            let is_segment = |stack| self.segments.contains(&(device, stack));
            self.found.add_recorded(device, recorded.iter(), is_segment);
            return;
        }
        let mut here = Holdings::of_state(state, self.found.level);
        here.keep(device);
        self.found.held.extend(here.held);
        let at_ns = match until {
            Until::Time(time_ns) => time_ns,
            Until::Offset(_) | Until::End => state.time_ns,
        };
        self.found.at_ns.insert(device, at_ns);
    }
}

/// Bytes of a physical object that belong to another stack than the one that created it.
#[derive(Clone, Copy, Debug)]
struct WokenBytes {
    bytes: u64,
    owner: StackId,
    by: StackId,
}

/// The owners of the bytes of physical objects, where the trace has reservations.
#[derive(Default)]
struct Owned {
    parts: FxHashMap<u64, Vec<WokenBytes>>,
    /// Objects that are mapped somewhere. `None`: not known, the trace has no reservations.
    mapped: Option<FxHashSet<u64>>,
}

impl Owned {
    fn of(state: &State) -> Owned {
        let mut owned = Owned::default();
        if !state.space.was_used {
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
                None => parts.push(WokenBytes { bytes, owner, by: woken.by }),
            }
        }
        owned
    }
}

/// A part of a device's memory at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'s> {
    pub owner: Owner,
    pub held: Holding,
    /// `None` for the rest of a segment, for unmapped memory, and for what the driver took.
    pub allocation: Option<(Key, &'s Live)>,
}

/// Calls `take` for every part of every device's memory, without imports. No byte is in two parts.
pub fn each_piece(state: &State, level: Level, take: &mut dyn FnMut(Piece)) {
    let mut taken: FxHashSet<Key> = FxHashSet::default();
    if level == Level::Tensor {
        for segment in &state.segments() {
            pieces_of(state, segment, &mut taken, take);
        }
        for (address, bytes) in state.cache.outside() {
            let key = Key::block(address);
            if let Some(live) = state.live.get(key) {
                let held = sampled(live, Holding { bytes, count: 1, ..Holding::default() });
                let owner = Owner::of_cache(live.device, live.stack);
                take(Piece { owner, held, allocation: Some((key, live)) });
            }
        }
        // Where samples of blocks are recorded, the free bytes of all segments are known, but not those of one.
        for (&device, of) in state.devices.iter().filter(|(_, of)| of.cache.sampled) {
            let bytes = of.cache.free_resident();
            take_free(device, bytes, of.cache.free() - bytes, take);
        }
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
            let held = Holding { count: 1, paused: asleep.size, ..Holding::default() };
            let owner = Owner::of_memory(asleep.owner.device, asleep.owner.stack);
            take(Piece { owner, held, allocation: None });
        }
    }
    let mut take_driver = |device, stack, cause, bytes| {
        let held = Holding { bytes, count: 1, ..Holding::default() };
        let owner = Owner::of_driver(device, stack, cause);
        take(Piece { owner, held, allocation: None });
    };
    for (device, sums) in &state.devices {
        for (maker, bytes) in sums.driver_own.makers() {
            take_driver(*device, maker.stack, maker.cause, bytes);
        }
    }
    for (_, of, bytes) in state.contexts().filter(|(_, _, bytes)| *bytes > 0) {
        take_driver(of.device, of.stack, DriverCause::Context, bytes);
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
    let mut take = |stack, held| {
        let owner = Owner::of_memory(live.device, stack);
        take(Piece { owner, held, allocation: Some((key, live)) });
    };
    for part in parts {
        let bytes = part.bytes.min(rest);
        rest -= bytes;
        let brought_back_by = Some(part.by);
        take(part.owner, Holding { bytes, count: 1, brought_back_by, ..Holding::default() });
    }
    if rest > 0 || parts.is_empty() {
        let mapped = owned.mapped.as_ref().filter(|_| key.space == Space::Vmm);
        let unmapped = mapped.map_or(0, |all| if all.contains(&key.number) { 0 } else { rest });
        take(live.stack, Holding { bytes: rest, count: 1, unmapped, ..Holding::default() });
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
        let brought_back_by = woken.map(|woken| woken.by);
        let held = Holding {
            bytes,
            count: 1,
            paused: block.paused,
            brought_back_by,
            ..Holding::default()
        };
        take(Piece {
            owner: Owner::of_cache(device, block.live.stack),
            held: sampled(block.live, held),
            allocation: Some((Key::block(block.address), block.live)),
        });
        rest = rest.saturating_sub(bytes);
        paused = paused.saturating_sub(block.paused);
    }
    if !state.devices.get(&device).is_some_and(|device| device.cache.sampled) {
        take_free(device, rest, paused, take);
    }
}

/// What is free in a framework's segments.
fn take_free(device: DeviceId, bytes: u64, paused: u64, take: &mut dyn FnMut(Piece)) {
    if bytes > 0 || paused > 0 {
        let held = Holding { bytes, count: 1, paused, ..Holding::default() };
        take(Piece { owner: Owner::of_cache(device, FREE_CACHE), held, allocation: None });
    }
}

/// The figures of all blocks that this one stands for.
fn sampled(live: &Live, held: Holding) -> Holding {
    Holding {
        bytes: live.weigh(held.bytes),
        count: live.weigh(held.count),
        paused: live.weigh(held.paused),
        variance: live.variance(held.bytes),
        ..held
    }
}

/// The stacks of the memory that a framework's blocks lie in.
pub(in crate::analysis) fn segment_stacks(state: &State) -> FxHashSet<(DeviceId, StackId)> {
    let mut stacks = FxHashSet::default();
    for segment in state.cache.extents() {
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
