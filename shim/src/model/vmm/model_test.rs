//! Random sequences against the plainest models there are: a list of references, and what is known
//! of each unit of addresses.

use super::{Mapping, Owner, Region, Settled, State, What};
use testkit::address_model::AddressModel;
use vramtrace_format::{DeviceId, SiteId, StackId};

/// xorshift64*: the test must repeat exactly from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }
}

/// Every unit of the small address space names the object that it shows; handles, and ties, are
/// plain lists. An object lives while its number is found anywhere.
struct Model {
    handles: Vec<(u64, u64)>,
    space: AddressModel,
    ties: Vec<(u64, u64)>,
}

impl Model {
    fn lives(&self, object: u64) -> bool {
        self.handles.iter().any(|(_, o)| *o == object)
            || self.space.shows(object)
            || self.ties.iter().any(|(_, o)| *o == object)
    }
}

const SPACE: u64 = 64;
const HANDLES: u64 = 6;
/// Reservations have this many units, and begin at their multiples.
const RESERVED: u64 = 16;
/// Bytes of a unit.
const UNIT: u64 = 4096;

fn run(seed: u64, steps: u32) {
    let mut random = Random(seed | 1);
    let mut state: State = State::default();
    let space = AddressModel::new(SPACE as usize, UNIT);
    let mut model = Model { handles: Vec::new(), space, ties: Vec::new() };
    let mut all: Vec<u64> = Vec::new();
    let mut freed: Vec<u64> = Vec::new();
    for step in 0..steps {
        let handle = random.below(HANDLES);
        let address = random.below(SPACE - 1);
        let size = 1 + random.below((SPACE - address).min(16));
        let done = random.below(4) != 0;
        let range = address as usize..(address + size) as usize;
        let before: Vec<u64> = all.iter().copied().filter(|o| model.lives(*o)).collect();
        let (at, bytes) = (model.space.address(address as usize), size * UNIT);
        let slot = (address / RESERVED * RESERVED) as usize;
        let slot = slot..slot + RESERVED as usize;
        let slot_at = model.space.address(slot.start);
        let settled = match random.below(12) {
            0 => {
                if model.handles.iter().any(|(h, _)| *h == handle) {
                    continue;
                }
                let (object, stale) = state.created(handle, What::Device, DeviceId(0), bytes);
                state.object_mut(object).expect("it was made").maker = StackId(object as u32);
                model.space.created(object, size);
                all.push(object);
                model.handles.push((handle, object));
                stale
            }
            1 | 2 => {
                let Some(dropped) = state.begin_release(handle) else {
                    assert!(!model.handles.iter().any(|(h, _)| *h == handle));
                    continue;
                };
                if done {
                    let at = model.handles.iter().position(|(h, _)| *h == handle);
                    model.handles.remove(at.expect("the model has the handle"));
                }
                state.settle(dropped, done)
            }
            3 => {
                let Some(object) = state.hold_handle(handle) else { continue };
                // Within one reservation, as the driver wants it.
                let size = size.min(RESERVED - address % RESERVED);
                if done {
                    model.space.map(address as usize, object, 0, size);
                    let mapping = Mapping::new(at, size * UNIT, 0, object);
                    state.held_by_mapping(mapping, StackId(0))
                } else {
                    state.drop_hold(object)
                }
            }
            4 => {
                let dropped = state.begin_unmap(at, bytes);
                if done {
                    model.space.unmap(range);
                }
                state.settle(dropped, done)
            }
            5 => {
                let held = state.hold_address(at);
                let shown = model.space.units[address as usize].mapped;
                assert_eq!(held, shown.map(|(object, _)| object));
                let Some(object) = held else { continue };
                let known = model.handles.iter().find(|(_, o)| *o == object).map(|(h, _)| *h);
                let free = (0..HANDLES).find(|n| !model.handles.iter().any(|(h, _)| h == n));
                match known.or(free) {
                    Some(handle) if done => {
                        model.handles.push((handle, object));
                        state.held_by_handle(object, handle)
                    }
                    _ => state.drop_hold(object),
                }
            }
            6 | 7 => {
                if model.space.reservation(slot.start).is_some() {
                    continue;
                }
                drop(state.space.reserve(slot_at, RESERVED * UNIT, SiteId(0), StackId(9)));
                model.space.reserve(slot);
                Settled::default()
            }
            8 => {
                let freed = state.begin_free(slot_at, RESERVED * UNIT);
                let known = model.space.reservation(slot.start).is_some();
                assert_eq!(freed.is_some(), known && !model.space.is_mapped(slot.clone()));
                match freed {
                    Some(freed) if !done => state.space.restore(&freed),
                    Some(_) => model.space.free(&slot),
                    None => continue,
                }
                Settled::default()
            }
            // Sleeps, or wakes where it has a large object.
            9 => {
                let dropped = state.begin_unmap(slot_at, RESERVED * UNIT);
                if done {
                    model.space.unmap(slot);
                }
                state.settle(dropped, done)
            }
            10 => {
                let Some(object) = state.hold_handle(handle) else { continue };
                let size = state.object(object).map_or(0, |one| one.size);
                if size < RESERVED * UNIT {
                    state.drop_hold(object)
                } else {
                    model.space.map(slot.start, object, 0, RESERVED);
                    let mapping = Mapping::new(slot_at, RESERVED * UNIT, 0, object);
                    state.held_by_mapping(mapping, StackId(0))
                }
            }
            _ => {
                let owner = Owner::Array(random.below(3));
                let Owner::Array(array) = owner else { unreachable!() };
                if let Some(object) = state.hold_handle(handle) {
                    state.held_by_tie(owner, Region::span(0, step.into(), 1), object);
                    model.ties.push((array, object));
                    continue;
                }
                let dropped = state.begin_untie(owner, None);
                if done {
                    model.ties.retain(|(a, _)| *a != array);
                }
                state.settle(dropped, done)
            }
        };
        for (number, _) in &settled.ended {
            assert!(before.contains(number) && !model.lives(*number), "seed {seed} step {step}");
            model.space.ended(*number);
            freed.push(*number);
        }
        for object in before {
            assert!(model.lives(object) || freed.contains(&object), "seed {seed} step {step}");
        }
        for object in &all {
            let known = state.object(*object).is_some();
            assert_eq!(known, model.lives(*object), "seed {seed} step {step} object {object}");
        }
        model.space.check(&state.space, &format!("seed {seed} step {step}"));
    }
    assert!(!freed.is_empty(), "seed {seed} freed nothing");
}

#[test]
fn random_sequences_agree_with_the_plainest_models() {
    for seed in 1..=200 {
        run(seed, 300);
    }
}
