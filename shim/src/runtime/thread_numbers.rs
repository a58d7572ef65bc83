//! Small numbers of threads, for cells that a thread has to itself.
//!
//! The first [`OWN`] threads get the numbers below it. A later one takes the number of a thread that has
//! ended, if it finds one; else it gets a number that says only that it has none of its own. Whether a
//! thread has ended is queried from the kernel, since a thread's end must run nothing of this library: a
//! destructor would change the order of the program's. This is done at a thread's first use only.
//!
//! In a forked child one thread goes on, with its number. The owners are on a page that the kernel empties
//! there, and a number without an owner is never taken: so after a raw `clone` too no two threads have one
//! number. After `fork` the others are free.

use crate::runtime::forked;
use crate::runtime::hash_table::{pages, unmap};
use crate::runtime::tls::thread_block;
use once_cell::race::OnceRef;
use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers below this have one thread each.
pub const OWN: usize = 64;
/// Owners that a new thread looks at, at most.
const LOOKS: u32 = 8;
const PAGE: usize = 1 << 16;
/// The owner of a number that is free.
const NOBODY: u32 = u32::MAX;

thread_block! {
    /// This thread's number, from 1; 0 = none yet.
    fn own_number() -> *mut u32, 4 bytes of the block at 40
}

/// The next number that nobody has had.
static NEXT: AtomicU32 = AtomicU32::new(0);
static OWNERS: OnceRef<Owners> = OnceRef::new();

/// On a page that is zero in a forked child.
struct Owners {
    process: AtomicU32,
    /// Where the next thread begins to look.
    turn: AtomicU32,
    /// The kernel's numbers of the threads; 0 = not known.
    threads: [AtomicU32; OWN],
}

/// This thread's number.
#[inline(always)]
pub fn number() -> usize {
    let address = own_number();
    // SAFETY: the word is this thread's own.
    unsafe {
        if *address == 0 {
            *address = next_number() + 1;
        }
        *address as usize - 1
    }
}

#[cold]
fn next_number() -> u32 {
    // SAFETY: the handler stores to a page and a word of this library only.
    let owners = owners(|| unsafe { forked::in_child(only_this_thread) });
    // A child that shares its parent's memory asks for itself: its threads end without the parent.
    let owners = owners.filter(|owners| owners.process.load(Ordering::Relaxed) == process());
    let more = |next: u32| Some(if next == u32::MAX - 1 { OWN as u32 } else { next + 1 });
    if NEXT.load(Ordering::Relaxed) >= OWN as u32
        && let Some(taken) = owners.and_then(Owners::take)
    {
        return taken;
    }
    let fresh = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).unwrap_or(OWN as u32);
    if let Some(owner) = owners.and_then(|owners| owners.threads.get(fresh as usize)) {
        owner.store(thread(), Ordering::Relaxed);
    }
    fresh
}

impl Owners {
    /// Takes the number of a thread that has ended.
    fn take(&self) -> Option<u32> {
        for _ in 0..LOOKS {
            let number = self.turn.fetch_add(1, Ordering::Relaxed) % OWN as u32;
            let owner = &self.threads[number as usize];
            let known = owner.load(Ordering::Relaxed);
            let order = (Ordering::Acquire, Ordering::Relaxed);
            if has_ended(known) && owner.compare_exchange(known, thread(), order.0, order.1).is_ok()
            {
                return Some(number);
            }
        }
        None
    }
}

/// The page, made by the first caller, which calls `made` then. `None`: the kernel gives none.
fn owners(made: impl FnOnce()) -> Option<&'static Owners> {
    if let Some(known) = OWNERS.get() {
        return Some(known);
    }
    let fresh = pages(PAGE).ok()?;
    // SAFETY: the page is this function's own.
    let wiped = unsafe { libc::madvise(fresh.cast(), PAGE, libc::MADV_WIPEONFORK) == 0 };
    // SAFETY: zero bytes are valid, and the page is never given back once it is shared.
    let owners: &Owners = unsafe { &*fresh.cast() };
    owners.process.store(process(), Ordering::Relaxed);
    if !wiped || OWNERS.set(owners).is_err() {
        unmap(fresh, PAGE);
        return None;
    }
    made();
    Some(owners)
}

/// In a forked child: the numbers of all other threads are free.
unsafe extern "C" fn only_this_thread() {
    let Some(owners) = owners(|| ()) else { return };
    // SAFETY: the word is this thread's own.
    let own = unsafe { *own_number() };
    for (number, owner) in (1..).zip(&owners.threads) {
        owner.store(if number == own { thread() } else { NOBODY }, Ordering::Relaxed);
    }
    // Not the numbers that nobody has had: `take` finds those that are free first.
    NEXT.store(OWN as u32, Ordering::Relaxed);
    owners.process.store(process(), Ordering::Relaxed);
}

fn has_ended(owner: u32) -> bool {
    match owner {
        0 => false,
        NOBODY => true,
        // SAFETY: signal 0 is not sent.
        _ => unsafe {
            libc::syscall(libc::SYS_tgkill, process(), owner, 0) == -1
                && *libc::__errno_location() == libc::ESRCH
        },
    }
}

fn process() -> u32 {
    std::process::id()
}

fn thread() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
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
    fn a_forked_child_keeps_one_number_and_takes_the_others() {
        let own = number();
        let forked = in_child(|| {
            let others: Vec<usize> = (0..OWN).map(|_| new_thread()).collect();
            number() == own && others.iter().all(|number| *number != own && *number < OWN)
        });
        assert_eq!(forked, Ok(true));
    }
}
