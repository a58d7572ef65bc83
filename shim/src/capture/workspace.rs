//! Buffers and caches for captures, on pages that the recorder maps itself. The first threads have a
//! workspace each, others take one of the shared workspaces for the time of a capture. Nothing has to
//! be freed when a thread ends: its workspace goes to the next thread with the same thread pointer. A
//! signal handler that captures takes a shared one.

use super::native::Walker;
use super::native::walk_log::WalkLog;
use super::python::walk::Group;
use crate::capture::native;
use crate::capture::python::frame_cache::FrameCache;
use crate::capture::python::walk;
use crate::runtime::hash_table;
use crate::runtime::tls::thread_pointer;
use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, compiler_fence};
use vramtrace_format::stackspec::DEEPEST;
use vramtrace_format::{Join, StackId};

const GROUPS: usize = 256;
/// Stacks that a workspace remembers, without access to the common table.
const RECENT: usize = 8192;
/// Workspaces of one thread each, how many of them are tried, and the number of shared ones.
const OWN: usize = 32;
const TRIED: usize = 4;
const SHARED: usize = 32;

/// What the capture of a repeated Python stack uses comes first.
#[repr(C)]
pub struct Workspace {
    pub frame_cache: FrameCache,
    pub recent: Recent,
    pub walker: Walker,
    /// At the walker's last check: how many libraries had replaced others, and how many were opened.
    pub changes: (u32, u32),
    pub walk_log: WalkLog,
    pub native: [native::Frame; DEEPEST],
    pub python: [walk::Frame; DEEPEST],
    pub groups: [Group; GROUPS],
    pub joins: [Join; DEEPEST + 1],
}

impl Workspace {
    /// The return addresses of the native frames in the buffer.
    pub fn addresses(&self, frames: usize) -> impl Iterator<Item = usize> + '_ {
        self.native[..frames].iter().map(|frame| frame.address)
    }
}

pub struct Recent([(u64, StackId); RECENT]);

impl Recent {
    #[inline]
    pub fn get(&self, fingerprint: u64) -> Option<StackId> {
        let (known, id) = self.0[fingerprint as usize % RECENT];
        (known == fingerprint).then_some(id)
    }

    #[inline]
    pub fn put(&mut self, fingerprint: u64, id: StackId) {
        self.0[fingerprint as usize % RECENT] = (fingerprint, id);
    }
}

#[repr(C, align(64))]
struct Place {
    /// The thread pointer of the only thread that uses this workspace; 0: none yet, or it is shared.
    owner: AtomicUsize,
    busy: AtomicBool,
    work: UnsafeCell<Workspace>,
}

pub struct Workspaces {
    own: [AtomicPtr<Place>; OWN],
    shared: [AtomicPtr<Place>; SHARED],
}

// SAFETY: a place is used by the thread that has set its flag; a thread's own place by that thread alone.
unsafe impl Send for Workspaces {}
// SAFETY: a place is used by the thread that has set its flag; a thread's own place by that thread
// alone.
unsafe impl Sync for Workspaces {}

impl Default for Workspaces {
    fn default() -> Self {
        Workspaces {
            own: [const { AtomicPtr::new(null_mut()) }; OWN],
            shared: [const { AtomicPtr::new(null_mut()) }; SHARED],
        }
    }
}

impl Workspaces {
    /// Takes a free workspace for this thread until the guard is dropped.
    #[inline]
    pub fn take(&self) -> Option<Taken<'_>> {
        let me = thread_pointer();
        let place = self.own[home(me) % OWN].load(Ordering::Acquire);
        // SAFETY: made below, and never freed.
        if let Some(place) = unsafe { place.as_ref() }
            && place.owner.load(Ordering::Relaxed) == me
            && let Some(taken) = own(place)
        {
            return Some(taken);
        }
        self.find(me)
    }

    #[inline(never)]
    fn find(&self, me: usize) -> Option<Taken<'_>> {
        let first = home(me);
        for at in first..first + TRIED {
            let place = get(&self.own[at % OWN])?;
            let free = |owner| owner == 0 || owner == me;
            let order = (Ordering::Acquire, Ordering::Relaxed);
            let found = place.owner.compare_exchange(0, me, order.0, order.1);
            if free(found.unwrap_or_else(|owner| owner)) {
                // Its only other user can be this thread, in a call that a signal interrupted.
                match own(place) {
                    Some(taken) => return Some(taken),
                    None => break,
                }
            }
        }
        (first..first + SHARED).find_map(|at| {
            let place = get(&self.shared[at % SHARED])?;
            // `then`, not `then_some`: dropping an unused guard would clear another thread's flag.
            #[allow(clippy::unnecessary_lazy_evaluations)]
            (!place.busy.swap(true, Ordering::Acquire)).then(|| Taken { place })
        })
    }
}

#[inline(always)]
fn home(thread: usize) -> usize {
    (hash_table::spread(thread as u64) >> 32) as usize
}

/// This thread's own workspace, unless it is in use: a signal handler may have interrupted a capture.
#[inline(always)]
fn own(place: &Place) -> Option<Taken<'_>> {
    if place.busy.load(Ordering::Relaxed) {
        return None;
    }
    place.busy.store(true, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    Some(Taken { place })
}

fn get(slot: &AtomicPtr<Place>) -> Option<&Place> {
    let mut place = slot.load(Ordering::Acquire);
    if place.is_null() {
        place = make(slot)?;
    }
    // SAFETY: never freed.
    Some(unsafe { &*place })
}

#[cold]
fn make(slot: &AtomicPtr<Place>) -> Option<*mut Place> {
    const WALKER_AT: usize = offset_of!(Place, work) + offset_of!(Workspace, walker);
    let fresh: *mut Place = hash_table::pages(size_of::<Place>()).ok()?.cast();
    // SAFETY: zero pages, on which all but the walker is valid; it is made in place of them.
    unsafe { fresh.wrapping_byte_add(WALKER_AT).cast::<Walker>().write(Walker::default()) };
    match slot.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(fresh),
        // The pages of the thread that lost a race at the first use are leaked.
        Err(winner) => Some(winner),
    }
}

pub struct Taken<'a> {
    place: &'a Place,
}

impl Deref for Taken<'_> {
    type Target = Workspace;
    fn deref(&self) -> &Workspace {
        // SAFETY: this guard's thread has set the flag, so no one else uses the workspace.
        unsafe { &*self.place.work.get() }
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Workspace {
        // SAFETY: this guard's thread has set the flag, so no one else uses the workspace.
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
        assert_eq!(held.len(), SHARED);
        held.pop();
        assert!(all.take().is_some());
    }

    #[test]
    fn no_two_threads_have_the_same() {
        let all = Workspaces::default();
        let held = std::sync::Mutex::new(std::collections::HashSet::new());
        std::thread::scope(|scope| {
            for _ in 0..OWN + SHARED / 2 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let Some(taken) = all.take() else { continue };
                        let place = &raw const *taken.place as usize;
                        assert!(held.lock().unwrap().insert(place));
                        assert!(held.lock().unwrap().remove(&place));
                    }
                });
            }
        });
    }
}
