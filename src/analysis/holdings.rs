//! Bytes by stack: of a live set, or of each device at its own peak.
//!
//! At the level of tensors blocks stand in place of their segments, and the rest of the segments is
//! one holder, "PyTorch cache (free)". So the sum is that of driver memory at either level. The peak
//! is the peak of driver memory at either level too; `--at peak-allocated` asks for that of blocks.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use vramtrace_format::{DeviceId, Kind, Space, StackId};

use super::{Level, Moment};
use crate::replay::{DeviceState, Key, Live, Peak, SegmentAt, State, Until};
use crate::spans::Spans;
use crate::symbols::FREE_CACHE;
use crate::trace::{Definitions, Trace};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Shares of physical memory, as [`Live::share`] counts them; of blocks the part of their size
    /// that has memory below it.
    pub bytes: u64,
    pub count: u64,
    /// Held, too, but without memory: it was unmapped and may come back. Not in `bytes`.
    pub paused: u64,
    /// Of `bytes`, physical memory that is mapped nowhere.
    pub unmapped: u64,
    /// The call that brought memory back after it had been unmapped.
    pub brought_back_by: Option<StackId>,
}

impl Held {
    pub fn add(&mut self, other: Held) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.count = self.count.saturating_add(other.count);
        self.paused = self.paused.saturating_add(other.paused);
        self.unmapped = self.unmapped.saturating_add(other.unmapped);
        self.brought_back_by = self.brought_back_by.or(other.brought_back_by);
    }
}

type ByStack = FxHashMap<(DeviceId, StackId), Held>;

/// What each stack held at a moment: a device's memory, without imports.
///
/// No byte is in it twice: at the level of tensors, blocks stand in place of the segments that
/// hold them, and what is left of the segments is held by [`FREE_CACHE`]. So the sum of a device
/// is that of its driver memory at either level, plus blocks of which no driver memory is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holdings {
    pub level: Level,
    /// Driver memory; at the level of tensors without a framework's segments.
    pub held: ByStack,
    /// A framework's blocks, and the rest of its segments.
    pub blocks: ByStack,
    /// Of which moment a device's figures are, ns since start.
    pub at_ns: BTreeMap<DeviceId, u64>,
    /// Devices of whose peak the trace has the height alone: its events are missing.
    pub not_known: BTreeMap<DeviceId, Peak>,
}

impl Holdings {
    pub fn of_state(state: &State, level: Level) -> Holdings {
        let mut holdings = Holdings {
            level,
            at_ns: state.devices.keys().map(|device| (*device, state.time_ns)).collect(),
            ..Holdings::default()
        };
        let (held, blocks) = (&mut holdings.held, &mut holdings.blocks);
        each_piece(state, level, &mut |piece| {
            let of_cache = matches!(piece.what, What::Block | What::Free);
            let sums = if of_cache { &mut *blocks } else { &mut *held };
            let sum = sums.entry((piece.device, piece.stack)).or_default();
            sum.add(piece.held);
        });
        holdings
    }

    /// Leaves one device's.
    pub fn keep(&mut self, device: DeviceId) {
        self.retain(|of| of == device);
    }

    /// Leaves those of some devices.
    pub fn retain(&mut self, wanted: impl Fn(DeviceId) -> bool) {
        self.held.retain(|(of, _), _| wanted(*of));
        self.blocks.retain(|(of, _), _| wanted(*of));
        self.at_ns.retain(|of, _| wanted(*of));
        self.not_known.retain(|of, _| wanted(*of));
    }

    /// At the moment that is asked for; `state` is that of the moment, for peaks that of the end.
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
            Moment::End | Moment::At(_) => Holdings::of_state(state, level),
        }
    }

    /// Each device at its own peak, as `end`, the state at the end, tells them. Reads the trace
    /// up to the last of them.
    pub fn at_peaks(
        trace: &Trace,
        definitions: &Definitions,
        end: &State,
        peak: Moment,
        level: Level,
    ) -> Holdings {
        let places = places(end, peak);
        let stops: Vec<Until> = places.iter().map(|(_, until)| *until).collect();
        let mut found = Holdings { level, ..Holdings::default() };
        trace.visit(definitions, &stops, &mut |stop, state| {
            let (device, until) = places[stop];
            if state.is_in_gap() {
                found.not_known.extend(end.devices.get(&device).map(|end| (device, end.peak)));
                return;
            }
            let mut here = Holdings::of_state(state, level);
            here.keep(device);
            found.held.extend(here.held);
            found.blocks.extend(here.blocks);
            let at_ns = match until {
                Until::Time(time_ns) => time_ns,
                Until::Offset(_) | Until::End => state.time_ns,
            };
            found.at_ns.insert(device, at_ns);
        });
        found
    }

    /// All that is held, at either level.
    pub fn all(&self) -> impl Iterator<Item = (DeviceId, StackId, Held)> {
        self.held.iter().chain(&self.blocks).map(|((device, stack), held)| (*device, *stack, *held))
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.blocks.is_empty()
    }

    /// Those of the holders, and of the calls that brought their memory back.
    pub fn stacks(&self) -> impl Iterator<Item = StackId> {
        self.all().flat_map(|(_, stack, held)| [Some(stack), held.brought_back_by]).flatten()
    }
}

/// Bytes of a physical object that are another's than its maker's.
#[derive(Clone, Copy, Debug)]
struct Part {
    bytes: u64,
    owner: StackId,
    by: StackId,
}

/// Whose the bytes of physical objects are, where addresses are reserved.
#[derive(Default)]
struct Owned {
    parts: FxHashMap<u64, Vec<Part>>,
    /// Objects that are mapped somewhere. `None`: the trace does not tell of reservations, so that
    /// nobody can tell.
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

/// What a [`Piece`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Driver memory.
    Memory,
    /// A framework's block.
    Block,
    /// The rest of a framework's segment.
    Free,
}

/// A part of a device's memory at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'s> {
    pub what: What,
    pub device: DeviceId,
    pub stack: StackId,
    pub held: Held,
    /// `None` for the rest of a segment, and for memory that is asleep.
    pub allocation: Option<(Key, &'s Live)>,
}

/// Every part of every device's memory at a moment, without imports: no byte twice.
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
            let key = block_key(address);
            if let Some(live) = state.live.get(key) {
                take(Piece::of(
                    What::Block,
                    key,
                    live,
                    Held { bytes, count: 1, ..Held::default() },
                ));
            }
        }
    }
    let owned = Owned::of(state);
    for (key, live) in state.live.iter().filter(|(_, live)| counts(live)) {
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

/// Blocks in place of their segment.
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
        };
        let piece = Piece::of(What::Block, block_key(block.address), block.live, held);
        take(Piece { device, ..piece });
        rest = rest.saturating_sub(bytes);
        paused = paused.saturating_sub(block.paused);
    }
    if rest > 0 || paused > 0 {
        let held = Held { bytes: rest, count: 1, paused, ..Held::default() };
        take(Piece { what: What::Free, device, stack: FREE_CACHE, held, allocation: None });
    }
}

impl<'s> Piece<'s> {
    fn of(what: What, key: Key, live: &'s Live, held: Held) -> Piece<'s> {
        let (device, stack) = (live.device, live.stack);
        Piece { what, device, stack, held, allocation: Some((key, live)) }
    }
}

fn block_key(address: u64) -> Key {
    Key { space: Space::Block, number: address }
}

/// Where each device has this moment; `end`: the state at the end, which tells the peaks.
pub(super) fn places(end: &State, moment: Moment) -> Vec<(DeviceId, Until)> {
    let place = |device: &DeviceState| match moment {
        Moment::Peak | Moment::AllocatedPeak => place_of(device, moment),
        Moment::End => Some(Until::End),
        Moment::At(time_ns) => Some(Until::Time(time_ns)),
    };
    end.devices.iter().filter_map(|(id, device)| Some((*id, place(device)?))).collect()
}

/// Where a device reached its peak. `None`: it has none.
fn place_of(device: &DeviceState, peak: Moment) -> Option<Until> {
    if peak == Moment::AllocatedPeak {
        let peak = device.cache.peak_allocated;
        return (peak.bytes > 0).then_some(Until::Offset(peak.offset));
    }
    let peak = device.peak;
    // Without an offset only the recorder's counters are known.
    let place = peak.offset.map_or(Until::Time(peak.time_ns), Until::Offset);
    (peak.bytes > 0).then_some(place)
}

fn counts(live: &Live) -> bool {
    !live.kind.is_host() && live.kind != Kind::Imported
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vramtrace_format::Event;
    use vramtrace_format::physical::MIB;

    use super::*;
    use crate::testing::{SECOND, TraceBuilder};

    fn with_trace<R>(builder: &TraceBuilder, look: impl FnOnce(&Trace, &Definitions) -> R) -> R {
        let file = tempfile::NamedTempFile::new().unwrap();
        builder.write(file.path());
        let trace = Trace::open(file.path()).unwrap();
        look(&trace, &trace.definitions().0)
    }

    fn sum(holdings: &Holdings, device: u8) -> u64 {
        let here = holdings.all().filter(|(of, _, _)| *of == DeviceId(device));
        here.map(|(_, _, held)| held.bytes).sum()
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Driver memory: an allocation, or mapped objects; with a hole to the next.
        Memory {
            slot: u64,
            mapped: bool,
            pages: u64,
            device: u8,
        },
        FreeMemory {
            slot: u64,
        },
        Block {
            slot: u64,
            at: u64,
            size: u64,
        },
        FreeBlock {
            slot: u64,
            at: u64,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => (0..8u64, any::<bool>(), 1..4u64, 0..2u8)
                .prop_map(|(slot, mapped, pages, device)| Step::Memory { slot, mapped, pages, device }),
            1 => (0..8u64).prop_map(|slot| Step::FreeMemory { slot }),
            8 => (0..8u64, 0..12u64, 1..5u64)
                .prop_map(|(slot, at, size)| Step::Block { slot, at, size }),
            4 => (0..8u64, 0..12u64).prop_map(|(slot, at)| Step::FreeBlock { slot, at }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, cases: 64, ..ProptestConfig::default()
        })]

        /// Whatever blocks there are, also ones that lie across each other or across an end.
        #[test]
        fn no_byte_is_counted_twice(steps in proptest::collection::vec(step(), 1..80)) {
            let mut t = TraceBuilder::new();
            let mut memory: BTreeMap<u64, (bool, u64, u8, u64)> = BTreeMap::new();
            let mut object = 0;
            for (step, n) in steps.into_iter().zip(1..) {
                let now = n * SECOND;
                let start = |slot: u64| (1 << 40) + slot * (1 << 32);
                match step {
                    Step::Memory { slot, mapped, pages, device } => {
                        if memory.contains_key(&slot) {
                            continue;
                        }
                        memory.insert(slot, (mapped, pages, device, object));
                        if !mapped {
                            let bytes = pages * 4 * MIB;
                            t.alloc_on(now, Kind::Device, device, start(slot), bytes);
                            continue;
                        }
                        for page in 0..pages {
                            object += 1;
                            let (address, size) = (start(slot) + page * 4 * MIB, 4 * MIB);
                            t.alloc_on(now, Kind::Vmm, device, object, size);
                            t.event(now, Event::Map { address, size, offset: 0, object, stack: Default::default() });
                        }
                    }
                    Step::FreeMemory { slot } => {
                        let Some((mapped, pages, _, first)) = memory.remove(&slot) else { continue };
                        if !mapped {
                            t.free(now, Space::Device, start(slot));
                            continue;
                        }
                        let (address, size) = (start(slot), pages * 4 * MIB);
                        t.event(now, Event::Unmap { address, size, stack: Default::default() });
                        for page in 1..=pages {
                            t.free(now, Space::Vmm, first + page);
                        }
                    }
                    Step::Block { slot, at, size } => {
                        // Blocks of the recorder lie in memory, of its device.
                        let Some((_, pages, device, _)) = memory.get(&slot) else { continue };
                        if at < pages * 4 {
                            let address = start(slot) + at * MIB;
                            t.alloc_on(now, Kind::Block, *device, address, size * MIB);
                        }
                    }
                    Step::FreeBlock { slot, at } => {
                        t.free(now, Space::Block, start(slot) + at * MIB);
                    }
                }
            }
            with_trace(&t, |trace, definitions| {
                let state = trace.replay(definitions, &mut ()).state;
                let at = |moment, level| Holdings::at(trace, definitions, &state, moment, level);
                for moment in [Moment::End, Moment::Peak] {
                    let driver = at(moment, Level::Driver);
                    let tensor = at(moment, Level::Tensor);
                    prop_assert!(driver.blocks.is_empty());
                    prop_assert_eq!(&driver.at_ns, &tensor.at_ns);
                    for device in 0..2 {
                        prop_assert_eq!(sum(&tensor, device), sum(&driver, device));
                        let figures = state.devices.get(&DeviceId(device));
                        let expected = figures.map_or(0, |device| match moment {
                            Moment::Peak => device.peak.bytes,
                            _ => device.live_bytes,
                        });
                        prop_assert_eq!(sum(&driver, device), expected);
                    }
                }
                Ok(())
            })?;
        }
    }

    #[test]
    fn blocks_stand_in_place_of_their_segment_and_the_rest_is_free() {
        let mut t = TraceBuilder::new();
        t.alloc_by(SECOND, Kind::Device, 1 << 40, 20 * MIB, 1);
        t.alloc_by(SECOND, Kind::Device, 2 << 40, 32 * MIB, 2);
        t.alloc_by(SECOND, Kind::Block, 1 << 40, 4 * MIB, 3);
        t.alloc_by(SECOND, Kind::Block, (1 << 40) + 4 * MIB, 10 * MIB, 3);
        t.free(2 * SECOND, Space::Block, 1 << 40);
        // Of which no driver memory is known.
        t.alloc_by(3 * SECOND, Kind::Block, 3 << 40, MIB, 4);
        with_trace(&t, |trace, definitions| {
            let state = trace.replay(definitions, &mut ()).state;
            let held = |mib, count| Held { bytes: mib * MIB, count, ..Held::default() };
            let gpu = |stack: u32| (DeviceId(0), StackId(stack));
            let end = Holdings::of_state(&state, Level::Tensor);
            assert_eq!(end.held, [(gpu(2), held(32, 1))].into_iter().collect());
            let blocks = [
                (gpu(3), held(10, 1)),
                (gpu(4), held(1, 1)),
                ((DeviceId(0), FREE_CACHE), held(10, 1)),
            ];
            assert_eq!(end.blocks, blocks.into_iter().collect());
            let driver = Holdings::of_state(&state, Level::Driver);
            assert_eq!(driver.held[&gpu(1)], held(20, 1));
            assert!(driver.blocks.is_empty());
            // The peak of blocks is not that of driver memory.
            let level = Level::Tensor;
            let peak = Holdings::at(trace, definitions, &state, Moment::AllocatedPeak, level);
            assert_eq!(peak.at_ns[&DeviceId(0)], SECOND);
            assert_eq!(peak.blocks[&gpu(3)], held(14, 2));
            assert_eq!(peak.blocks[&(DeviceId(0), FREE_CACHE)], held(6, 1));
        });
    }
}
