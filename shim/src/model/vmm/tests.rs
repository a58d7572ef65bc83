//! The orders in which programs create, map, release and unmap.

use super::*;
use vramtrace_format::{DeviceId, StackId};

const GPU: DeviceId = DeviceId(0);

fn state() -> State<()> {
    State::default()
}

fn create(state: &mut State<()>, handle: u64) -> u64 {
    state.created(handle, What::Device, GPU, 10).0
}

fn map(state: &mut State<()>, handle: u64, address: u64) {
    let object = state.hold_handle(handle).expect("a known handle");
    let settled = state.held_by_mapping(Mapping::new(address, 10, 0, object), StackId(0));
    assert!(settled.ended.is_empty());
}

/// Releases with success; returns whether the object ended.
fn release(state: &mut State<()>, handle: u64) -> bool {
    let dropped = state.begin_release(handle).expect("a known handle");
    finish(state, dropped)
}

fn unmap(state: &mut State<()>, address: u64, size: u64) -> bool {
    let dropped = state.begin_unmap(address, size);
    finish(state, dropped)
}

fn finish(state: &mut State<()>, dropped: Dropped) -> bool {
    let ended = dropped.ended.len();
    let settled = state.settle(dropped, true);
    assert_eq!(settled.ended.len(), ended);
    ended > 0
}

fn retain(state: &mut State<()>, address: u64, handle: u64) {
    let object = state.hold_address(address).expect("mapped");
    state.held_by_handle(object, handle);
}

#[test]
fn nccl_frees_retain_release_unmap_release() {
    let mut s = state();
    create(&mut s, 1);
    map(&mut s, 1, 100);
    retain(&mut s, 105, 1);
    assert!(!release(&mut s, 1));
    assert!(!unmap(&mut s, 100, 10));
    assert!(release(&mut s, 1));
    assert!(s.begin_release(1).is_none());
}

#[test]
fn nccl_inspects_with_retain_and_release() {
    let mut s = state();
    create(&mut s, 1);
    map(&mut s, 1, 100);
    for handle in [1, 9] {
        retain(&mut s, 100, handle);
        assert!(!release(&mut s, handle));
    }
    assert!(!release(&mut s, 1));
    assert!(unmap(&mut s, 100, 10));
}

#[test]
fn released_first_it_lives_until_the_last_of_two_maps() {
    let mut s = state();
    create(&mut s, 1);
    map(&mut s, 1, 100);
    map(&mut s, 1, 200);
    assert!(!release(&mut s, 1));
    assert!(!unmap(&mut s, 200, 10));
    assert!(unmap(&mut s, 100, 10));
}

#[test]
fn one_unmap_over_several_maps_ends_each() {
    let mut s = state();
    for handle in 1..=3 {
        create(&mut s, handle);
        map(&mut s, handle, handle * 10);
        release(&mut s, handle);
    }
    let dropped = s.begin_unmap(10, 30);
    assert_eq!(dropped.ended, [1, 2, 3]);
    assert_eq!(s.settle(dropped, true).ended.len(), 3);
}

#[test]
fn a_partial_unmap_keeps_the_rest_alive() {
    let mut s = state();
    create(&mut s, 1);
    map(&mut s, 1, 100);
    assert!(!release(&mut s, 1));
    assert!(!unmap(&mut s, 103, 4));
    assert!(!unmap(&mut s, 100, 3));
    assert!(unmap(&mut s, 107, 3));
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
fn a_refused_release_keeps_the_handle() {
    let mut s = state();
    let number = create(&mut s, 1);
    let dropped = s.begin_release(1).expect("known");
    assert_eq!(dropped.ended, [number]);
    assert_eq!(s.settle(dropped, false).revived, [number]);
    assert!(release(&mut s, 1));
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
fn a_failed_map_may_be_what_ends_it() {
    let mut s = state();
    let number = create(&mut s, 1);
    let held = s.hold_handle(1).expect("known");
    assert!(!release(&mut s, 1));
    let settled = s.drop_hold(held);
    assert_eq!(settled.ended.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [number]);
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
