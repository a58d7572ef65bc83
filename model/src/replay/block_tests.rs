//! Both levels: a framework's blocks on driver memory.

use proptest::prelude::*;
use vramtrace_format::physical::MIB;
use vramtrace_format::{BlockChange, DeviceId, Event, Kind, Purpose, Space, StackId, Stamped};

use super::state::Inconsistencies;
use super::*;
use crate::replay::ReplayResult;
use crate::testing::{SECOND, TraceBuilder, listed};
use crate::trace::Trace;

const A: u64 = 0x7f00_0000_0000;
const B: u64 = 0x7f10_0000_0000;
const GPU: DeviceId = DeviceId(0);

fn read(builder: &TraceBuilder) -> ReplayResult {
    let trace = Trace::of(builder);
    trace.replay(&trace.definitions().0, &mut ())
}

fn sums(state: &State) -> &CacheSums {
    &state.devices[&GPU].cache
}

#[test]
fn blocks_are_in_no_sum_of_driver_memory() {
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Device, A, 20 * MIB);
    t.alloc(SECOND, Kind::Device, B, 2 * MIB);
    t.alloc(2 * SECOND, Kind::Block, A, 4 * MIB);
    t.alloc(3 * SECOND, Kind::Block, A + 6 * MIB, MIB);
    t.free(4 * SECOND, Space::Block, A);
    let state = read(&t).state;
    let device = &state.devices[&GPU];
    assert_eq!((device.live_bytes, device.live_allocations), (22 * MIB, 2));
    assert_eq!((device.allocations, device.frees), (2, 0));
    assert_eq!(device.kind(Kind::Block), &KindSums::default());
    assert_eq!(state.live.len(), 2);
    let cache = sums(&state);
    assert_eq!((cache.allocated, cache.reserved, cache.blocks), (MIB, 20 * MIB, 1));
    assert_eq!((cache.allocations, cache.frees, cache.free()), (2, 1, 19 * MIB));
    assert_eq!((cache.peak_allocated.bytes, cache.peak_allocated.time_ns), (5 * MIB, 3 * SECOND));
    assert_eq!((cache.peak_reserved.bytes, cache.peak_reserved.time_ns), (20 * MIB, 2 * SECOND));
    assert_eq!(cache.fragmentation(), Some(0.75));
    let segments = state.segments();
    assert_eq!(segments.len(), 1, "the other allocation never held a block");
    let holes: Vec<_> = segments[0].holes().collect();
    assert_eq!(holes, [(A, 6 * MIB), (A + 7 * MIB, 13 * MIB)]);
    assert_eq!(segments[0].largest_hole(), 13 * MIB);
    assert!(segments[0].is_pinned_by_one());
    assert_eq!(segments[0].allocation(&state).unwrap().1.size, 20 * MIB);
    assert_eq!(state.inconsistencies, Inconsistencies::default());
}

#[test]
fn adjacent_mappings_are_one_segment_and_a_neighbour_of_another_size_is_not() {
    let mut t = TraceBuilder::new();
    for page in 0..3 {
        t.mapped(SECOND, A + page * 20 * MIB, 20 * MIB, page + 1);
    }
    // Mapped right behind by somebody else.
    t.mapped(SECOND, A + 60 * MIB, 8 * MIB, 9);
    t.alloc(2 * SECOND, Kind::Block, A, 30 * MIB);
    let state = read(&t).state;
    assert_eq!(sums(&state).reserved, 60 * MIB, "the third page is of the same size");
    let segments = state.segments();
    assert_eq!((segments.len(), segments[0].bytes), (1, 60 * MIB));
    assert_eq!(segments[0].objects(&state).count(), 3);
    // A page that continues it, then one out of the middle goes.
    t.unmap(3 * SECOND, A + 60 * MIB, 8 * MIB);
    t.mapped(3 * SECOND, A + 60 * MIB, 20 * MIB, 10);
    assert_eq!(sums(&read(&t).state).reserved, 80 * MIB);
    t.unmap(4 * SECOND, A + 40 * MIB, 20 * MIB);
    let state = read(&t).state;
    assert_eq!((sums(&state).reserved, sums(&state).peak_reserved.bytes), (60 * MIB, 80 * MIB));
    let extents: Vec<_> = state.segments().iter().map(|s| (s.start, s.bytes)).collect();
    assert_eq!(extents, [(A, 40 * MIB), (A + 60 * MIB, 20 * MIB)]);
}

#[test]
fn blocks_end_with_the_memory_below_them() {
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Device, A, 20 * MIB);
    t.mapped(SECOND, B, 20 * MIB, 1);
    t.alloc(SECOND, Kind::Block, A, MIB);
    t.alloc(SECOND, Kind::Block, A + MIB, MIB);
    t.alloc(SECOND, Kind::Block, B, MIB);
    t.free(2 * SECOND, Space::Device, A);
    let state = read(&t).state;
    assert_eq!((sums(&state).allocated, sums(&state).reserved), (MIB, 20 * MIB));
    assert_eq!(state.inconsistencies.blocks_without_memory, 2);
    t.unmap(3 * SECOND, B, 20 * MIB);
    let state = read(&t).state;
    assert_eq!((sums(&state).allocated, sums(&state).reserved), (0, 0));
    assert_eq!(state.live.blocks().count(), 0);
}

#[test]
fn blocks_on_memory_that_no_call_showed() {
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Block, A, MIB);
    t.alloc(SECOND, Kind::Block, A + MIB, 3 * MIB);
    t.free(2 * SECOND, Space::Block, A);
    let state = read(&t).state;
    let cache = sums(&state);
    assert_eq!((cache.allocated, cache.outside, cache.reserved), (3 * MIB, 3 * MIB, 0));
    assert_eq!(state.cache.outside().collect::<Vec<_>>(), [(A + MIB, 3 * MIB)]);
    assert!(state.segments().is_empty());
    // Its memory is recorded late.
    t.alloc(3 * SECOND, Kind::Device, A, 20 * MIB);
    let state = read(&t).state;
    let cache = sums(&state);
    assert_eq!((cache.allocated, cache.outside, cache.reserved), (3 * MIB, 0, 20 * MIB));
}

#[test]
fn a_checkpoint_tells_blocks_in_any_order() {
    let mut t = TraceBuilder::new();
    t.lose();
    let block = t.allocation(Kind::Block, 0, A + 21 * MIB, MIB);
    let other = t.allocation(Kind::Block, 0, B, MIB);
    let segment = t.allocation(Kind::Device, 0, B, 2 * MIB);
    let page = |page: u64| {
        let (address, size, offset, object) = (A + page * 20 * MIB, 20 * MIB, 0, page + 1);
        let (owner, stack) = Default::default();
        listed(0, Event::Map { address, size, offset, object, owner, stack })
    };
    let (id, site, stack, allocations, frees) = (1, block.site, StackId(0), 7, 5);
    let entries = [
        listed(SECOND, Event::Alloc(block)),
        listed(SECOND, Event::Alloc(other)),
        page(0),
        page(1),
        listed(SECOND, Event::Alloc(segment)),
        Event::StateTotals { id, site, stack, allocations, frees },
    ];
    t.state(5 * SECOND, Purpose::Checkpoint, &entries);
    t.free(6 * SECOND, Space::Block, B);
    let state = read(&t).state;
    let cache = sums(&state);
    assert_eq!((cache.allocated, cache.outside), (MIB, 0));
    assert_eq!(cache.reserved, 42 * MIB, "with the page of which no block was reported");
    assert_eq!((cache.allocations, cache.frees), (7, 6));
    assert_eq!(cache.peak_reserved.bytes, 42 * MIB);
}

#[test]
fn the_frameworks_own_totals_are_compared() {
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Device, A, 20 * MIB);
    t.alloc(SECOND, Kind::Block, A, MIB);
    let totals = |allocated, reserved| Event::CacheState { device: GPU, allocated, reserved };
    t.event(SECOND, totals(MIB, 20 * MIB));
    assert_eq!(sums(&read(&t).state).disagreements, 0);
    t.event(SECOND, totals(MIB, 22 * MIB));
    t.event(SECOND, totals(2 * MIB, 20 * MIB));
    let state = read(&t).state;
    assert_eq!(sums(&state).disagreements, 2);
    assert_eq!(sums(&state).reported_by_torch.unwrap().allocated, 2 * MIB);
}

#[test]
fn requests_that_the_framework_gave_up() {
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Device, B, 20 * MIB);
    t.alloc(SECOND, Kind::Block, B, 12 * MIB);
    t.out_of_memory(4 * SECOND, 12 * MIB);
    let state = read(&t).state;
    assert_eq!(sums(&state).ooms, 1);
    assert!(sums(&state).ended_in_oom());
    assert_eq!(sums(&state).last_oom.unwrap().size, 12 * MIB);
    // The program caught it.
    t.alloc(5 * SECOND, Kind::Block, B + 13 * MIB, MIB);
    assert!(!sums(&read(&t).state).ended_in_oom());
}

#[test]
fn imported_traces_say_more_of_a_block() {
    let mut t = TraceBuilder::new();
    let change = |change| Event::BlockChange { address: A, change };
    t.alloc(SECOND, Kind::Device, A, 20 * MIB);
    t.alloc(SECOND, Kind::Block, A, MIB);
    t.free(2 * SECOND, Space::Block, A);
    t.event(2 * SECOND, change(BlockChange::Pending));
    let state = read(&t).state;
    assert_eq!((sums(&state).allocated, state.cache.pending[&A].size), (0, MIB));
    t.event(3 * SECOND, change(BlockChange::Reusable));
    assert!(read(&t).state.cache.pending.is_empty());
}

/// A segment of the model.
#[derive(Clone, Debug)]
struct Part {
    start: u64,
    pages: u64,
    mapped: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Segment { slot: u64, mapped: bool, pages: u64 },
    Drop { slot: u64 },
    Block { slot: u64, at: u64, size: u64 },
    Free { pick: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..12u64, any::<bool>(), 1..4u64)
            .prop_map(|(slot, mapped, pages)| Step::Segment { slot, mapped, pages }),
        1 => (0..12u64).prop_map(|slot| Step::Drop { slot }),
        8 => (0..12u64, 0..60u64, 1..30u64)
            .prop_map(|(slot, at, size)| Step::Block { slot, at, size }),
        5 => any::<usize>().prop_map(|pick| Step::Free { pick }),
    ]
}

const PAGE_SIZE: u64 = 20 * MIB;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    /// Sums, segments and holes equal those of a model that adds everything up anew.
    #[test]
    fn both_levels_equal_a_naive_model(steps in proptest::collection::vec(step(), 1..120)) {
        let mut t = TraceBuilder::new();
        let mut parts: Vec<(Part, bool)> = Vec::new();
        let mut blocks: Vec<(u64, u64)> = Vec::new();
        let (mut object, mut peaks) = (0, (0, 0));
        for step in steps {
            match step {
                Step::Segment { slot, mapped, pages } => {
                    // Far apart: runs of different slots never meet.
                    let start = A + slot * (1 << 40);
                    if parts.iter().any(|(part, _)| part.start == start) {
                        continue;
                    }
                    if mapped {
                        for page in 0..pages {
                            object += 1;
                            t.mapped(SECOND, start + page * PAGE_SIZE, PAGE_SIZE, object);
                        }
                    } else {
                        t.alloc(SECOND, Kind::Device, start, pages * PAGE_SIZE);
                    }
                    parts.push((Part { start, pages, mapped }, false));
                }
                Step::Drop { slot } => {
                    let start = A + slot * (1 << 40);
                    let Some(at) = parts.iter().position(|(part, _)| part.start == start) else {
                        continue;
                    };
                    let (part, _) = parts.remove(at);
                    let bytes = part.pages * PAGE_SIZE;
                    blocks.retain(|(address, _)| !(start..start + bytes).contains(address));
                    match part.mapped {
                        true => t.unmap(SECOND, start, bytes),
                        false => t.free(SECOND, Space::Device, start),
                    }
                }
                Step::Block { slot, at, size } => {
                    let start = A + slot * (1 << 40);
                    let Some((part, held)) =
                        parts.iter_mut().find(|(part, _)| part.start == start) else { continue };
                    let (address, size) = (start + at * MIB, size * MIB);
                    let free = blocks.iter().all(|(b, s)| address + size <= *b || b + s <= address);
                    if address + size > start + part.pages * PAGE_SIZE || !free {
                        continue;
                    }
                    *held = true;
                    t.alloc(SECOND, Kind::Block, address, size);
                    blocks.push((address, size));
                }
                Step::Free { pick } => {
                    if blocks.is_empty() {
                        continue;
                    }
                    let (address, _) = blocks.swap_remove(pick % blocks.len());
                    t.free(SECOND, Space::Block, address);
                }
            }
            let allocated: u64 = blocks.iter().map(|(_, size)| size).sum();
            let held = parts.iter().filter(|(_, held)| *held);
            let reserved: u64 = held.map(|(part, _)| part.pages * PAGE_SIZE).sum();
            peaks = (allocated.max(peaks.0), reserved.max(peaks.1));
        }
        let state = read(&t).state;
        let none = CacheSums::default();
        let cache = state.devices.get(&GPU).map_or(&none, |device| &device.cache);
        let allocated: u64 = blocks.iter().map(|(_, size)| size).sum();
        parts.retain(|(_, held)| *held);
        parts.sort_by_key(|(part, _)| part.start);
        let reserved: u64 = parts.iter().map(|(part, _)| part.pages * PAGE_SIZE).sum();
        prop_assert_eq!((cache.allocated, cache.reserved), (allocated, reserved));
        prop_assert_eq!((cache.peak_allocated.bytes, cache.peak_reserved.bytes), peaks);
        prop_assert_eq!((cache.blocks, cache.outside), (blocks.len() as u64, 0));
        let segments = state.segments();
        prop_assert_eq!(segments.len(), parts.len());
        for (segment, (part, _)) in segments.iter().zip(&parts) {
            prop_assert_eq!((segment.start, segment.bytes), (part.start, part.pages * PAGE_SIZE));
            // Blocks and holes tile it.
            let mut tiles: Vec<(u64, u64)> = segment.holes().collect();
            prop_assert_eq!(segment.largest_hole(), tiles.iter().map(|t| t.1).max().unwrap_or(0));
            tiles.extend(segment.blocks.iter().map(|block| (block.address, block.bytes)));
            tiles.sort_unstable();
            let mut at = segment.start;
            for (start, bytes) in tiles {
                prop_assert_eq!(start, at);
                at += bytes;
            }
            prop_assert_eq!(at, segment.end());
            for block in &segment.blocks {
                prop_assert!(blocks.contains(&(block.address, block.bytes)));
            }
        }
        let placed: usize = segments.iter().map(|segment| segment.blocks.len()).sum();
        prop_assert_eq!(placed, blocks.len());
    }
}

/// What an observer hears, in order.
#[derive(Default)]
struct Heard(Vec<(&'static str, u64)>);

impl Observer for Heard {
    fn on_alloc(&mut self, _: &Stamped, key: Key, _: &Live, _: AllocCause) {
        self.0.push(("alloc", key.number));
    }

    fn on_block_alloc(&mut self, _: &Stamped, address: u64, _: &Live, _: AllocCause) {
        self.0.push(("block", address));
    }

    fn on_block_free(&mut self, _: &Stamped, address: u64, _: &Live, _: FreeCause) {
        self.0.push(("freed", address));
    }

    fn on_segment(&mut self, _: &Stamped, key: Key, _: &Live) {
        self.0.push(("segment", key.number));
    }
}

#[test]
fn observers_hear_of_blocks_apart_and_of_segments_when_they_become_one() {
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Device, A, 20 * MIB);
    t.mapped(SECOND, B, 2 * MIB, 7);
    t.alloc(SECOND, Kind::Block, A, MIB);
    t.alloc(SECOND, Kind::Block, A + MIB, MIB);
    t.alloc(SECOND, Kind::Block, B, MIB);
    t.mapped(SECOND, B + 2 * MIB, 2 * MIB, 8);
    t.free(SECOND, Space::Block, A);
    let trace = Trace::of(&t);
    let mut heard = Heard::default();
    trace.replay(&trace.definitions().0, &mut heard);
    let expected = [
        ("alloc", A),
        ("alloc", 7),
        ("segment", A),
        ("block", A),
        ("block", A + MIB),
        ("segment", 7),
        ("block", B),
        ("alloc", 8),
        ("segment", 8),
        ("freed", A),
    ];
    assert_eq!(heard.0, expected);
}
