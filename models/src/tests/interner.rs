//! Stacks and their numbers.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::few_switches;
use super::window::{put, read, window};
use crate::capture::definitions::DefinitionLocation;
use crate::capture::native::Frame;
use crate::capture::stack_interner::{Stack, StackInterner};
use crate::room::Room;
use crate::runtime::lock::Lock;
use crate::{Definition, StackFlags, StackId};

type Interner = Arc<Lock<UnsafeCell<StackInterner>>>;

/// The same as the recorder's `Capture::intern`: under the lock, with the definition written to a window.
fn intern(interner: &Interner, fingerprint: u64, definitions: &Room) -> StackId {
    let frames = [Frame { address: fingerprint as usize, low: 0 }];
    let (flags, forward) = (StackFlags::default(), StackId(0));
    let stack = Stack { flags, native: &frames, python: &[], joins: &[], forward };
    let define = |definition: &Definition| {
        let Definition::Stack { id, .. } = definition else { unreachable!("stacks alone") };
        let place = put(definitions, id.0.into(), 2)?;
        Some(DefinitionLocation::At(8 * place.at as u64))
    };
    let held = interner.lock();
    // SAFETY: no other thread is in the critical section; loom would report it.
    let found =
        held.with_mut(|interner| unsafe { (*interner).stack(fingerprint, &stack, None, define) });
    found.id
}

/// Each thread interns its stacks and records an event with each number. The definition of each event that
/// can be read is in the file; each stack is defined once, and has one number.
#[track_caller]
fn check(stacks: [&'static [u64]; 2], most: usize) {
    few_switches(most, move || {
        let interner = Arc::new(Lock::new(UnsafeCell::new(StackInterner::new(1 << 20))));
        let (defined, definitions) = window(8 + 8);
        let (recorded, events) = window(8 + 8);
        let threads = stacks.map(|stacks| {
            let interner = interner.clone();
            thread::spawn(move || {
                let numbered = stacks.iter().map(|fingerprint| {
                    let id = intern(&interner, *fingerprint, definitions);
                    assert_ne!(id, StackId(0));
                    put(events, id.0.into(), 2).unwrap();
                    (*fingerprint, id.0)
                });
                numbered.collect::<Vec<_>>()
            })
        });
        for event in read(recorded, false) {
            assert!(read(defined, false).contains(&event), "{event} is recorded and not defined");
        }
        let mut numbers: Vec<(u64, u32)> =
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut fingerprints: Vec<u64> = stacks.concat();
        fingerprints.sort_unstable();
        fingerprints.dedup();
        assert!(numbers.iter().map(|(fingerprint, _)| *fingerprint).eq(fingerprints));
        let mut ids: Vec<u64> = numbers.iter().map(|(_, id)| u64::from(*id)).collect();
        ids.sort_unstable();
        assert!(ids.is_sorted_by(|one, next| one < next), "different stacks have one number: {ids:?}");
        assert_eq!(read(defined, false), ids, "each once, in the order of their numbers");
    });
}

#[test]
fn the_same_stack_is_defined_once_and_before_its_number_is_used() {
    check([&[9], &[9]], 3);
}

#[test]
fn different_stacks_have_different_numbers() {
    check([&[9, 10], &[10]], 2);
}
