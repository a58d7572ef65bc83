//! Memory that is unmapped and mapped again: rules one by one.

use vramtrace_format::physical::MIB;
use vramtrace_format::{DeviceId, Event, Kind, Purpose, SiteId, Space, StackId};

use super::*;
use crate::testing::{SECOND, TraceBuilder, listed, reserved};
use crate::trace::Trace;

const A: u64 = 0x7f00_0000_0000;
const GPU: DeviceId = DeviceId(0);

fn read(builder: &TraceBuilder) -> State {
    let trace = Trace::of(builder);
    trace.replay(&trace.definitions().0, &mut ()).state
}

fn cache(state: &State) -> &CacheSums {
    &state.devices[&GPU].cache
}

fn reserve(t: &mut TraceBuilder, address: u64, size: u64) {
    t.event(SECOND, reserved(address, size, 9));
}

fn map(t: &mut TraceBuilder, address: u64, size: u64, object: u64) {
    t.alloc_by(SECOND, Kind::Vmm, object, size, object as u32);
    t.event(
        SECOND,
        Event::Map { address, size, offset: 0, object, owner: StackId(0), stack: StackId(60) },
    );
}

fn unmap(t: &mut TraceBuilder, address: u64, size: u64, object: u64) {
    t.event(SECOND, Event::Unmap { address, size, stack: StackId(50) });
    t.free(SECOND, Space::Vmm, object);
}

/// A region of 20 MiB with blocks of 6 and 4 MiB, made by object 1.
fn region() -> TraceBuilder {
    let mut t = TraceBuilder::new();
    reserve(&mut t, A, 20 * MIB);
    map(&mut t, A, 20 * MIB, 1);
    t.alloc_by(SECOND, Kind::Block, A, 6 * MIB, 5);
    t.alloc_by(SECOND, Kind::Block, A + 8 * MIB, 4 * MIB, 6);
    t
}

#[test]
fn blocks_live_on_while_they_sleep_and_have_their_owner_when_they_wake() {
    let mut t = region();
    unmap(&mut t, A, 20 * MIB, 1);
    let state = read(&t);
    let sums = cache(&state);
    assert_eq!((sums.allocated, sums.paused, sums.resident()), (10 * MIB, 10 * MIB, 0));
    assert_eq!((sums.reserved, sums.reserved_paused), (20 * MIB, 20 * MIB));
    assert_eq!((sums.free(), sums.free_resident()), (10 * MIB, 0));
    assert_eq!((state.devices[&GPU].live_bytes, sums.blocks), (0, 2));
    let segments = state.segments();
    assert_eq!((segments.len(), segments[0].bytes, segments[0].paused), (1, 20 * MIB, 20 * MIB));
    map(&mut t, A, 20 * MIB, 2);
    let state = read(&t);
    let sums = cache(&state);
    assert_eq!((sums.paused, sums.reserved_paused, sums.reserved), (0, 0, 20 * MIB));
    let mapping = state.space.at(A).unwrap();
    let woken = mapping.woken.unwrap();
    assert_eq!((woken.owner.stack, woken.by), (StackId(1), StackId(60)));
    assert_eq!(state.inconsistencies, Default::default());
}

#[test]
fn residency_is_bytes() {
    let mut t = region();
    // Of the first block 2 MiB, and all of the second.
    t.unmap(SECOND, A + 4 * MIB, 12 * MIB);
    let state = read(&t);
    assert_eq!((cache(&state).paused, cache(&state).reserved_paused), (6 * MIB, 12 * MIB));
    let paused: Vec<u64> = state.segments()[0].blocks.iter().map(|block| block.paused).collect();
    assert_eq!(paused, [2 * MIB, 4 * MIB]);
    assert_eq!(state.devices[&GPU].live_bytes, 20 * MIB, "the object is not gone");
}

#[test]
fn a_free_while_paused_ends_the_block_and_changes_no_sum_of_the_driver() {
    let mut t = region();
    unmap(&mut t, A, 20 * MIB, 1);
    t.free(SECOND, Space::Block, A);
    let state = read(&t);
    assert_eq!((cache(&state).allocated, cache(&state).paused), (4 * MIB, 4 * MIB));
    assert_eq!((cache(&state).reserved, state.devices[&GPU].live_bytes), (20 * MIB, 0));
    // A block that is made while it sleeps has no memory either.
    t.alloc_by(SECOND, Kind::Block, A + 12 * MIB, 2 * MIB, 6);
    assert_eq!(cache(&read(&t)).paused, 6 * MIB);
    map(&mut t, A, 20 * MIB, 2);
    let state = read(&t);
    assert_eq!((cache(&state).allocated, cache(&state).paused), (6 * MIB, 0));
    assert_eq!(state.inconsistencies, Default::default());
}

#[test]
fn a_freed_reservation_ends_its_blocks_and_its_address_revives_none() {
    let mut t = region();
    unmap(&mut t, A, 20 * MIB, 1);
    t.event(SECOND, Event::AddressFree { address: A, size: 20 * MIB });
    let state = read(&t);
    assert_eq!((cache(&state).allocated, cache(&state).reserved), (0, 0));
    assert_eq!(state.inconsistencies.blocks_without_memory, 2);
    reserve(&mut t, A, 20 * MIB);
    map(&mut t, A, 20 * MIB, 2);
    let state = read(&t);
    assert_eq!((cache(&state).allocated, cache(&state).reserved), (0, 0));
    assert_eq!(state.space.at(A).unwrap().woken, None);
}

#[test]
fn a_refused_unmap_is_as_if_it_had_not_been() {
    let mut t = region();
    unmap(&mut t, A, 20 * MIB, 1);
    let space = Space::Vmm;
    t.event(SECOND, Event::FreeFailed { key: 1, space });
    t.map(SECOND, A, 20 * MIB, 1);
    let state = read(&t);
    assert_eq!((cache(&state).paused, state.devices[&GPU].live_bytes), (0, 20 * MIB));
    assert_eq!(state.space.at(A).unwrap().woken, None);
}

#[test]
fn without_reservations_blocks_end_with_what_is_unmapped_below_them() {
    let mut t = TraceBuilder::new();
    map(&mut t, A, 20 * MIB, 1);
    t.alloc_by(SECOND, Kind::Block, A, 6 * MIB, 5);
    t.alloc_by(SECOND, Kind::Block, A + 8 * MIB, 4 * MIB, 6);
    t.unmap(SECOND, A + 8 * MIB, 12 * MIB);
    let state = read(&t);
    // The first part stays mapped.
    assert_eq!((cache(&state).allocated, cache(&state).reserved), (6 * MIB, 8 * MIB));
    assert_eq!((cache(&state).paused, state.inconsistencies.blocks_without_memory), (0, 1));
    assert_eq!(state.space.at(A).unwrap().size, 8 * MIB);
}

#[test]
fn a_placeholder_backs_no_block() {
    let mut t = TraceBuilder::new();
    reserve(&mut t, A, 20 * MIB);
    t.alloc_by(SECOND, Kind::Vmm, 1, 10 * MIB, 1);
    for address in [A, A + 10 * MIB] {
        t.map(SECOND, address, 10 * MIB, 1);
        t.alloc_by(SECOND, Kind::Block, address, 4 * MIB, 5);
    }
    let state = read(&t);
    assert_eq!((cache(&state).allocated, cache(&state).paused), (8 * MIB, 8 * MIB));
    assert_eq!(state.devices[&GPU].live_bytes, 10 * MIB, "it counts once");
    // Mapped once more in another reservation, an object is no placeholder.
    let mut t = region();
    reserve(&mut t, 2 * A, 20 * MIB);
    t.map(SECOND, 2 * A, 20 * MIB, 1);
    assert_eq!(cache(&read(&t)).paused, 0);
}

#[test]
fn a_checkpoint_knows_what_sleeps_and_whose_it_is() {
    let mut t = TraceBuilder::new();
    t.lose();
    let (site, device, size) = (SiteId(0), GPU, 20 * MIB);
    let reserve = |address, asleep, stack| {
        let stack = StackId(stack);
        Event::AddressReserve { asleep, device, address, size, site, stack }
    };
    let (address, offset, object) = (2 * A, 0, 7);
    let (owner, stack) = (StackId(3), StackId(60));
    let entries = [
        reserve(A, false, 9),
        reserve(2 * A, false, 9),
        reserve(A, true, 1),
        Event::Map { address, size, offset, object, owner, stack },
        Event::Alloc(t.allocation(Kind::Block, 0, A, 4 * MIB)),
        Event::Alloc(t.allocation(Kind::Vmm, 0, 7, size)),
    ];
    t.state(SECOND, Purpose::Checkpoint, &entries.map(|entry| listed(0, entry)));
    let state = read(&t);
    let sums = cache(&state);
    assert_eq!((sums.allocated, sums.paused), (4 * MIB, 4 * MIB));
    assert_eq!((sums.reserved, sums.reserved_paused), (20 * MIB, 20 * MIB));
    let woken = state.space.at(2 * A).unwrap().woken.unwrap();
    assert_eq!((woken.owner.stack, woken.by), (StackId(3), StackId(60)));
    map(&mut t, A, 20 * MIB, 8);
    let state = read(&t);
    assert_eq!(cache(&state).paused, 0);
    assert_eq!(state.space.at(A).unwrap().woken.unwrap().owner.stack, StackId(1));
}
