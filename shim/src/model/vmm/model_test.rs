//! Random sequences against the plainest model there is: a list of references.

use super::{Mapping, Owner, Region, State, What};
use vramtrace_format::DeviceId;

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

/// Every byte of the small address space names the object that it shows; handles, and ties, are
/// plain lists. An object lives while its number is found anywhere.
#[derive(Default)]
struct Model {
    handles: Vec<(u64, u64)>,
    bytes: Vec<Option<u64>>,
    ties: Vec<(u64, u64)>,
}

impl Model {
    fn lives(&self, object: u64) -> bool {
        self.handles.iter().any(|(_, o)| *o == object)
            || self.bytes.contains(&Some(object))
            || self.ties.iter().any(|(_, o)| *o == object)
    }
}

const SPACE: u64 = 64;
const HANDLES: u64 = 6;

fn run(seed: u64, steps: u32) {
    let mut random = Random(seed | 1);
    let mut state: State<()> = State::default();
    let mut model = Model { bytes: vec![None; SPACE as usize], ..Model::default() };
    let mut all: Vec<u64> = Vec::new();
    let mut gone: Vec<u64> = Vec::new();
    for step in 0..steps {
        let handle = random.below(HANDLES);
        let address = random.below(SPACE - 1);
        let size = 1 + random.below((SPACE - address).min(16));
        let done = random.below(4) != 0;
        let range = address as usize..(address + size) as usize;
        let before: Vec<u64> = all.iter().copied().filter(|o| model.lives(*o)).collect();
        let settled = match random.below(7) {
            0 => {
                if model.handles.iter().any(|(h, _)| *h == handle) {
                    continue;
                }
                let (object, stale) = state.created(handle, What::Device, DeviceId(0), size);
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
                if done {
                    model.bytes[range].fill(Some(object));
                    state.held_by_mapping(Mapping { address, size, offset: 0, object })
                } else {
                    state.let_go(object)
                }
            }
            4 => {
                let dropped = state.begin_unmap(address, size);
                if done {
                    model.bytes[range].fill(None);
                }
                state.settle(dropped, done)
            }
            5 => {
                let held = state.hold_address(address);
                assert_eq!(held, model.bytes[address as usize]);
                let Some(object) = held else { continue };
                let known = model.handles.iter().find(|(_, o)| *o == object).map(|(h, _)| *h);
                let free = (0..HANDLES).find(|n| !model.handles.iter().any(|(h, _)| h == n));
                match known.or(free) {
                    Some(handle) if done => {
                        model.handles.push((handle, object));
                        state.held_by_handle(object, handle)
                    }
                    _ => state.let_go(object),
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
        for (number, _) in &settled.gone {
            assert!(before.contains(number) && !model.lives(*number), "seed {seed} step {step}");
            gone.push(*number);
        }
        for object in before {
            assert!(model.lives(object) || gone.contains(&object), "seed {seed} step {step}");
        }
        for object in &all {
            let known = state.object(*object).is_some();
            assert_eq!(known, model.lives(*object), "seed {seed} step {step} object {object}");
        }
        for (at, byte) in model.bytes.iter().enumerate() {
            let at = at as u64;
            let shown = state.mappings().find(|m| m.address <= at && at < m.address + m.size);
            assert_eq!(shown.map(|m| m.object), *byte, "seed {seed} step {step}");
        }
    }
    assert!(!gone.is_empty(), "seed {seed} freed nothing");
}

#[test]
fn random_sequences_agree_with_a_plain_list_of_references() {
    for seed in 1..=200 {
        run(seed, 300);
    }
}
