//! Mappings, reservations and sleeping ranges: a test for each rule.

use super::*;

fn mapping(address: u64, size: u64, offset: u64, object: u64) -> Mapping {
    Mapping::new(address, size, offset, object)
}

fn owner(stack: u64) -> Owner {
    Owner { stack: StackId(stack as u32), device: DeviceId(0) }
}

/// Maps an object whose size is the whole address space. [`take`] takes its number as the stack that created it.
fn put(space: &mut AddressSpace, mapping: Mapping, by: u32) -> Vec<Mapping> {
    space.put(mapping, StackId(by), u64::MAX).pieces
}

fn take(space: &mut AddressSpace, address: u64, size: u64) -> Taken {
    space.take(address, size, owner)
}

fn reserve(space: &mut AddressSpace, address: u64, size: u64) {
    assert!(space.reserve(address, size, SiteId(0), StackId(99)).is_empty());
}

fn asleep(space: &AddressSpace) -> Vec<(u64, u64, u32)> {
    space.asleep().map(|piece| (piece.address, piece.size, piece.owner.stack.0)).collect()
}

#[test]
fn any_address_inside_finds_its_mapping() {
    let mut space = AddressSpace::default();
    put(&mut space, mapping(100, 10, 0, 1), 0);
    assert_eq!(space.at(99), None);
    assert_eq!(space.at(100), space.at(109));
    assert_eq!(space.at(110), None);
}

#[test]
fn one_take_covers_several_and_splits_at_its_ends() {
    let mut space = AddressSpace::default();
    let all = [mapping(0, 10, 5, 1), mapping(10, 10, 0, 2), mapping(20, 10, 0, 3)];
    for each in all {
        put(&mut space, each, 0);
    }
    let taken = take(&mut space, 5, 20);
    assert_eq!(taken.whole, all);
    assert_eq!(taken.rest, [mapping(0, 5, 5, 1), mapping(25, 5, 5, 3)]);
    let cut = [mapping(5, 5, 10, 1), mapping(10, 10, 0, 2), mapping(20, 5, 0, 3)];
    assert_eq!(taken.cut, cut);
    assert!(taken.slept.is_empty(), "nothing was reserved");
    assert_eq!(space.at(4).map(|m| m.object), Some(1));
    assert_eq!(space.at(5), None);
    assert_eq!(space.at(25), Some(mapping(25, 5, 5, 3)));
    space.put_back(&taken);
    assert_eq!(space.mappings().copied().collect::<Vec<_>>(), all);
}

#[test]
fn a_hole_in_the_middle() {
    let mut space = AddressSpace::default();
    put(&mut space, mapping(0, 30, 0, 1), 0);
    let taken = take(&mut space, 10, 10);
    assert_eq!(taken.rest, [mapping(0, 10, 0, 1), mapping(20, 10, 20, 1)]);
    assert!(take(&mut space, 10, 10).whole.is_empty());
}

#[test]
fn the_end_of_the_address_space_and_nothing() {
    let mut space = AddressSpace::default();
    put(&mut space, mapping(u64::MAX - 10, 10, 0, 1), 0);
    assert!(take(&mut space, 0, 0).whole.is_empty());
    assert_eq!(take(&mut space, 0, u64::MAX).whole.len(), 1);
}

#[test]
fn what_is_unmapped_in_a_whole_reservation_wakes_with_its_owner() {
    let mut space = AddressSpace::default();
    reserve(&mut space, 100, 20);
    put(&mut space, mapping(100, 10, 0, 1), 50);
    put(&mut space, mapping(110, 10, 0, 2), 50);
    // One after the other: it stays whole.
    assert_eq!(take(&mut space, 110, 10).slept.len(), 1);
    assert_eq!(take(&mut space, 100, 10).slept.len(), 1);
    assert_eq!(asleep(&space), [(100, 10, 1), (110, 10, 2)]);
    assert_eq!(space.unbacked(), [(100, 120)]);
    // One larger object brings both back.
    let pieces = put(&mut space, mapping(100, 20, 0, 3), 60);
    let woken = |stack: u64| Some(Woken { owner: owner(stack), by: StackId(60) });
    assert_eq!(pieces[0], Mapping { woken: woken(1), ..mapping(100, 10, 0, 3) });
    assert_eq!(pieces[1], Mapping { woken: woken(2), ..mapping(110, 10, 10, 3) });
    assert!(asleep(&space).is_empty());
    // The next unmap keeps the owners.
    let taken = take(&mut space, 105, 10);
    assert_eq!(asleep(&space), [(105, 5, 1), (110, 5, 2)]);
    space.put_back(&taken);
    assert!(asleep(&space).is_empty());
    assert_eq!(space.mappings().copied().collect::<Vec<_>>(), pieces);
}

#[test]
fn a_reservation_with_a_hole_gives_back_what_is_unmapped() {
    let mut space = AddressSpace::default();
    reserve(&mut space, 100, 100);
    put(&mut space, mapping(100, 50, 0, 1), 0);
    assert!(take(&mut space, 100, 50).slept.is_empty());
    let pieces = put(&mut space, mapping(100, 50, 0, 2), 0);
    assert_eq!(pieces[0].woken, None, "it is its maker's");
}

#[test]
fn the_same_object_at_the_same_place_was_never_brought_back() {
    let mut space = AddressSpace::default();
    reserve(&mut space, 100, 20);
    put(&mut space, mapping(100, 20, 0, 1), 0);
    take(&mut space, 104, 8);
    assert_eq!(put(&mut space, mapping(104, 8, 4, 1), 60)[0].woken, None);
    take(&mut space, 104, 8);
    assert!(put(&mut space, mapping(104, 8, 0, 1), 60)[0].woken.is_some());
}

#[test]
fn a_freed_reservation_forgets_and_a_refused_free_does_not() {
    let mut space = AddressSpace::default();
    reserve(&mut space, 100, 20);
    put(&mut space, mapping(100, 20, 0, 1), 0);
    take(&mut space, 100, 20);
    let freed = space.free(100).expect("reserved");
    assert!(asleep(&space).is_empty() && space.free(100).is_none());
    space.restore(&freed);
    assert_eq!(asleep(&space), [(100, 20, 1)]);
    assert!(space.reservation_at(119).expect("restored").is_whole());
    space.free(100);
    reserve(&mut space, 100, 20);
    assert_eq!(put(&mut space, mapping(100, 20, 0, 2), 0)[0].woken, None);
}

#[test]
fn a_placeholder_backs_nothing_and_leaves_what_is_asleep() {
    let mut space = AddressSpace::default();
    reserve(&mut space, 0, 30);
    let page = |space: &mut AddressSpace, at, object| {
        space.put(mapping(at, 10, 0, object), StackId(0), 10)
    };
    for at in [0, 10, 20] {
        let put = page(&mut space, at, 1);
        assert_eq!(put.is_placeholder_now, at == 10);
    }
    assert!(space.is_placeholder(1));
    assert_eq!(space.unbacked(), [(0, 30)]);
    assert!(take(&mut space, 10, 10).slept.is_empty(), "nothing was there");
    assert!(!page(&mut space, 10, 2).is_placeholder_now);
    assert_eq!(take(&mut space, 10, 10).slept.len(), 1);
    page(&mut space, 10, 1);
    assert_eq!(space.at(10).and_then(|m| m.woken).map(|w| w.owner), Some(owner(2)));
    take(&mut space, 10, 10);
    let put = page(&mut space, 10, 3);
    assert_eq!(put.pieces[0].woken.map(|woken| woken.owner), Some(owner(2)));
    // In two reservations an object shows no more than it has.
    reserve(&mut space, 100, 10);
    page(&mut space, 100, 2);
    assert!(!space.is_placeholder(2));
}
