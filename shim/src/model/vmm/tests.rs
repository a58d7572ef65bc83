//! What the random sequences of `model_test.rs` have not: calls that are under way at once, imports, multicast objects.

use super::*;
use vramtrace_format::{DeviceId, SiteId, StackId};

const GPU: DeviceId = DeviceId(0);

fn state() -> State {
    State::default()
}

fn create(state: &mut State, handle: u64) -> u64 {
    state.created(handle, What::Device, GPU, 10).0
}

fn map(state: &mut State, handle: u64, address: u64) {
    let object = state.hold_handle(handle).expect("a known handle");
    let settled = state.held_by_mapping(Mapping::new(address, 10, 0, object), StackId(0));
    assert!(settled.ended.is_empty());
}

/// Releases with success; returns whether the object ended.
fn release(state: &mut State, handle: u64) -> bool {
    let dropped = state.begin_release(handle).expect("a known handle");
    finish(state, dropped)
}

fn unmap(state: &mut State, address: u64, size: u64) -> bool {
    let dropped = state.begin_unmap(address, size);
    finish(state, dropped)
}

fn finish(state: &mut State, dropped: Dropped) -> bool {
    let ended = dropped.ended.len();
    let settled = state.settle(dropped, true);
    assert_eq!(settled.ended.len(), ended);
    ended > 0
}

#[test]
fn a_refused_unmap_puts_everything_back() {
    let mut s = state();
    let number = create(&mut s, 1);
    map(&mut s, 1, 100);
    release(&mut s, 1);
    let dropped = s.begin_unmap(103, 4);
    assert!(dropped.ended.is_empty());
    let settled = s.settle(dropped, false);
    assert_eq!(settled.remapped.len(), 1);
    assert_eq!(s.references().collect::<Vec<_>>(), [(number, 1)]);
    let dropped = s.begin_unmap(100, 10);
    assert_eq!(dropped.ended, [number]);
    assert_eq!(s.settle(dropped, false).revived, [number]);
    assert!(unmap(&mut s, 100, 10));
}

#[test]
fn bytes_are_free_when_the_slower_of_two_calls_has_returned() {
    let mut s = state();
    let number = create(&mut s, 1);
    map(&mut s, 1, 100);
    let slow = s.begin_release(1).expect("known");
    let fast = s.begin_unmap(100, 10);
    assert_eq!(fast.ended, [number]);
    assert!(s.settle(fast, true).ended.is_empty());
    assert_eq!(s.settle(slow, true).ended.len(), 1);
}

#[test]
fn a_retain_under_way_keeps_it_from_ending() {
    let mut s = state();
    create(&mut s, 1);
    map(&mut s, 1, 100);
    let object = s.hold_address(100).expect("mapped");
    assert!(!release(&mut s, 1));
    assert!(!unmap(&mut s, 100, 10));
    s.held_by_handle(object, 1);
    assert!(release(&mut s, 1));
}

#[test]
fn reused_handles_are_new_objects() {
    let mut s = state();
    let first = create(&mut s, 1);
    map(&mut s, 1, 100);
    release(&mut s, 1);
    let second = create(&mut s, 1);
    assert_ne!(first, second);
    assert!(release(&mut s, 1));
    assert!(unmap(&mut s, 100, 10));
    // A handle given again without a release that we saw: the old object ends.
    let third = create(&mut s, 1);
    let (_, stale) = s.created(1, What::Device, GPU, 10);
    assert_eq!(stale.ended.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [third]);
}

#[test]
fn an_import_seen_twice_is_one_object_with_two_handles() {
    let mut s = state();
    let number = s.imported(5, GPU);
    assert_eq!(s.imported(5, GPU), number);
    assert!(!release(&mut s, 5));
    assert!(release(&mut s, 5));
}

#[test]
fn a_multicast_bind_holds_the_memory_until_unbound_or_destroyed() {
    let mut s = state();
    let group = s.created(50, What::Multicast, GPU, 0).0;
    for (handle, offset) in [(1, 0), (2, 10)] {
        create(&mut s, handle);
        let held = s.hold_handle(handle).expect("known");
        s.held_by_tie(Owner::Multicast(group), Region::span(0, offset, 10), held);
        assert!(!release(&mut s, handle));
    }
    let dropped = s.begin_untie(Owner::Multicast(group), Some(Region::span(0, 0, 10)));
    assert!(finish(&mut s, dropped));
    let dropped = s.begin_release(50).expect("known");
    assert_eq!(dropped.ended, [group]);
    // The group itself, and what was bound to it.
    assert_eq!(s.settle(dropped, true).ended.len(), 2);
}

#[test]
fn a_bind_by_address_holds_each_object_of_the_range() {
    let mut s = state();
    for handle in 1..=2 {
        create(&mut s, handle);
        map(&mut s, handle, handle * 10);
    }
    assert_eq!(s.hold_range(15, 10).unwrap(), [(1, 0, 5), (2, 5, 5)]);
}

#[test]
fn a_free_is_announced_where_the_driver_can_agree() {
    let mut state: State = State::default();
    drop(state.space.reserve(100, 20, SiteId(1), StackId(2)));
    assert!(state.begin_free(100, 10).is_none(), "another size");
    assert!(state.begin_free(110, 10).is_none(), "another address");
    state.created(1, What::Device, DeviceId(0), 20);
    let object = state.hold_handle(1).expect("created");
    let _ = state.held_by_mapping(Mapping::new(100, 20, 0, object), StackId(3));
    assert!(state.begin_free(100, 20).is_none(), "mapped");
    state.object_mut(object).expect("mapped").maker = StackId(7);
    let dropped = state.begin_unmap(100, 20);
    let _ = state.settle(dropped, true);
    let owners: Vec<u32> = state.space.asleep().map(|piece| piece.owner.stack.0).collect();
    assert_eq!(owners, [7]);
    assert_eq!((state.space.asleep_on(DeviceId(0)), state.space.ever_slept), (20, true));
    let freed = state.begin_free(100, 20).expect("nothing is mapped");
    assert_eq!((state.space.reservations().count(), state.space.asleep().count()), (0, 0));
    assert_eq!(state.space.asleep_on(DeviceId(0)), 0);
    state.space.restore(&freed);
    assert_eq!((state.space.reservations().count(), state.space.asleep().count()), (1, 1));
    assert!(state.space.free(100).is_some() && state.space.free(100).is_none());
}
