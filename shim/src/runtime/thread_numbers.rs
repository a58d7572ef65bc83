//! Small numbers of threads, for cells that a thread has to itself.
//!
//! The first [`OWN`] threads get the numbers below it. A later one takes the number of a thread that has
//! ended, if it finds one; else it gets a number that says only that it has none of its own. Whether a
//! thread has ended is queried from the kernel, since a thread's end must run nothing of this library: a
//! destructor would change the order of the program's. This is done at a thread's first use only.
//!
//! In a forked child the numbers begin anew, with those of its one thread. A child that a raw `clone` made goes on with numbers
//! that nobody has had: it has another pid than the owners.

use crate::runtime::forked;
use crate::runtime::thread_slot::{lives, tid};
use crate::runtime::tls::thread_cells;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed};

/// Numbers below this have one thread each.
pub const OWN: usize = 64;
/// Owners that a new thread looks at, at most.
const LOOKS: u32 = 8;

thread_cells! {
    /// This thread's number, from 1; 0 = none yet.
    fn own_number() -> &Cell<u32>, 4 bytes of the block at 40
}

/// The next number that nobody has had.
static NEXT: AtomicU32 = AtomicU32::new(0);
/// The process whose threads these are.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Where the next thread begins to look.
static TURN: AtomicU32 = AtomicU32::new(0);
/// The kernel's numbers of the threads; 0 = not known.
static OWNERS: [AtomicU32; OWN] = [const { AtomicU32::new(0) }; OWN];

/// This thread's number.
#[inline(always)]
pub fn number() -> usize {
    let mut number = own_number().get();
    if number == 0 {
        number = next_number() + 1;
        own_number().set(number);
    }
    number as usize - 1
}

#[cold]
fn next_number() -> u32 {
    let process = std::process::id();
    if PROCESS.compare_exchange(0, process, Relaxed, Relaxed).is_ok() {
        forked::in_child(begin_anew);
    }
    // A child that shares its parent's memory asks for itself: its threads end without the parent.
    let is_owner = PROCESS.load(Relaxed) == process;
    if is_owner
        && NEXT.load(Relaxed) >= OWN as u32
        && let Some(taken) = (0..LOOKS).find_map(|_| take())
    {
        return taken;
    }
    let more = |next: u32| Some(if next == u32::MAX - 1 { OWN as u32 } else { next + 1 });
    let fresh = NEXT.fetch_update(Relaxed, Relaxed, more).unwrap_or(OWN as u32);
    if let Some(owner) = OWNERS.get(fresh as usize).filter(|_| is_owner) {
        owner.store(tid() as u32, Relaxed);
    }
    fresh
}

/// Takes the next number, if its thread has ended.
fn take() -> Option<u32> {
    let number = TURN.fetch_add(1, Relaxed) % OWN as u32;
    let owner = &OWNERS[number as usize];
    let known = owner.load(Relaxed);
    let has_ended = known != 0 && !lives(known as i32);
    let taken = || owner.compare_exchange(known, tid() as u32, Acquire, Relaxed).is_ok();
    (has_ended && taken()).then_some(number)
}

extern "C" fn begin_anew() {
    own_number().set(0);
    NEXT.store(0, Relaxed);
    OWNERS.iter().for_each(|owner| owner.store(0, Relaxed));
    PROCESS.store(std::process::id(), Relaxed);
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use testkit::in_child;

    fn new_thread() -> usize {
        std::thread::spawn(number).join().unwrap()
    }

    #[test]
    fn the_numbers_of_ended_threads_are_taken_again_and_those_of_living_ones_are_not() {
        let own = number();
        let held = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let number = number();
                held.wait();
                held.wait();
                number
            });
            held.wait();
            let others: Vec<usize> = (0..20 * OWN).map(|_| new_thread()).collect();
            held.wait();
            let other = other.join().unwrap();
            assert!(others.iter().all(|number| *number != own && *number != other));
            assert!(others[2 * OWN..].iter().any(|number| *number < OWN), "{others:?}");
        });
    }

    #[test]
    fn a_forked_child_has_all_numbers() {
        number();
        let forked = in_child(|| {
            let own = number();
            let others: Vec<usize> = (0..2 * OWN).map(|_| new_thread()).collect();
            own < OWN && others.iter().all(|number| *number != own && *number < OWN)
        });
        assert_eq!(forked, Ok(true));
    }
}
