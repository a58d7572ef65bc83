//! What a capture works with: buffers and caches, on pages of our own. Not a thread's but the
//! process's: a thread takes a free one, mostly the same, and gives it back; so nothing has to be
//! done when a thread ends, and a signal's handler that captures takes another one.

use super::native::{self, Walker};
use super::python::quick::Quick;
use super::python::walk::{self, Group};
use crate::table;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use vramtrace_format::stackspec::DEEPEST;
use vramtrace_format::{Join, StackId};

const GROUPS: usize = 256;
/// Stacks that are known without a look into the common table.
const RECENT: usize = 8192;
const COUNT: usize = 64;

pub struct Workspace {
    pub walker: Walker,
    /// Libraries that took the place of others, and libraries that were opened, when the walker
    /// last looked.
    pub changes: (u32, u32),
    pub native: [native::Frame; DEEPEST],
    pub quick: Quick,
    pub python: [walk::Frame; DEEPEST],
    pub groups: [Group; GROUPS],
    pub joins: [Join; DEEPEST + 1],
    pub recent: Recent,
}

pub struct Recent([(u64, StackId); RECENT]);

impl Recent {
    #[inline]
    pub fn get(&self, print: u64) -> Option<StackId> {
        let (known, id) = self.0[print as usize % RECENT];
        (known == print).then_some(id)
    }

    #[inline]
    pub fn put(&mut self, print: u64, id: StackId) {
        self.0[print as usize % RECENT] = (print, id);
    }
}

struct Place {
    busy: AtomicBool,
    work: UnsafeCell<Workspace>,
}

pub struct Workspaces([AtomicPtr<Place>; COUNT]);

// SAFETY: a place is used by whoever has set its flag.
unsafe impl Send for Workspaces {}
unsafe impl Sync for Workspaces {}

impl Default for Workspaces {
    fn default() -> Self {
        Workspaces([const { AtomicPtr::new(null_mut()) }; COUNT])
    }
}

impl Workspaces {
    /// A free one, for this thread until the guard is dropped.
    #[inline]
    pub fn take(&self) -> Option<Taken<'_>> {
        let first = (table::spread(thread_pointer() as u64) >> 32) as usize;
        (first..first + COUNT).find_map(|at| {
            let slot = &self.0[at % COUNT];
            let mut place = slot.load(Ordering::Acquire);
            if place.is_null() {
                place = make(slot)?;
            }
            // SAFETY: made below, and never freed.
            let place = unsafe { &*place };
            // Lazily: a guard made in vain would clear the flag of whoever has it.
            #[allow(clippy::unnecessary_lazy_evaluations)]
            (!place.busy.swap(true, Ordering::Acquire)).then(|| Taken { place })
        })
    }
}

#[cold]
fn make(slot: &AtomicPtr<Place>) -> Option<*mut Place> {
    let fresh: *mut Place = table::pages(size_of::<Place>()).ok()?.cast();
    // SAFETY: zero pages, on which all but the walker is valid; it is made in place of them.
    unsafe { (&raw mut (*(*fresh).work.get()).walker).write(Walker::new()) };
    match slot.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(fresh),
        // The loser's pages stay: a race at the first use.
        Err(winner) => Some(winner),
    }
}

#[inline(always)]
fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: reads the thread pointer.
    unsafe {
        core::arch::asm!("mov {pointer}, qword ptr fs:[0]", pointer = out(reg) pointer,
            options(nostack, pure, readonly));
    }
    pointer
}

pub struct Taken<'a> {
    place: &'a Place,
}

impl Deref for Taken<'_> {
    type Target = Workspace;
    fn deref(&self) -> &Workspace {
        // SAFETY: the flag is ours.
        unsafe { &*self.place.work.get() }
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Workspace {
        // SAFETY: the flag is ours.
        unsafe { &mut *self.place.work.get() }
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.place.busy.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_the_same_again() {
        let all = Workspaces::default();
        let first = all.take().unwrap();
        let second = all.take().unwrap();
        assert!(!std::ptr::eq(first.place, second.place));
        let place: *const Place = first.place;
        drop(first);
        assert!(std::ptr::eq(all.take().unwrap().place, place));
        let mut held: Vec<_> = std::iter::from_fn(|| all.take()).collect();
        assert_eq!(held.len(), COUNT - 1);
        held.pop();
        assert!(all.take().is_some());
    }

    #[test]
    fn recent_ones() {
        let all = Workspaces::default();
        let mut work = all.take().unwrap();
        assert_eq!(work.recent.get(77), None);
        work.recent.put(77, StackId(5));
        assert_eq!(work.recent.get(77), Some(StackId(5)));
        assert_eq!(work.recent.get(77 + RECENT as u64), None);
    }
}
