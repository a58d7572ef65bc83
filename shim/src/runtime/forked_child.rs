//! Mappings of the recorder's that forked children do not get: windows of the tail, segments, locked files.
//!
//! A child that kept them would keep the lock, or the segment, by which others see that the process lives. A child that is
//! forked inside of a store to them (from a signal handler) stores once more, so before `fork` returns there, empty
//! pages are put in their place.

use crate::runtime::forked;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Addresses that stay the recorder's. Never freed.
pub struct Range {
    pub memory: *mut c_void,
    bytes: usize,
    /// The kernel leaves out what is there. False: a child has it, and must replace it.
    left_out: AtomicBool,
    next: *mut Range,
}

// SAFETY: what changes once it is registered is the atomic.
unsafe impl Sync for Range {}

static RANGES: AtomicPtr<Range> = AtomicPtr::new(null_mut());

/// Leaves this mapping of the recorder's out of children that are forked from now on.
pub fn leave_out(memory: *mut u8, bytes: usize) {
    register(memory.cast(), bytes, true);
    // Last: no child may lack the pages that are not in the list.
    is_left_out(memory.cast(), bytes);
}

/// The kernel leaves a mapping of the recorder's out of children from now on. False: it does not.
fn is_left_out(memory: *mut c_void, bytes: usize) -> bool {
    // SAFETY: changes what a fork does with it, and nothing in this process.
    unsafe { libc::madvise(memory, bytes, libc::MADV_DONTFORK) == 0 }
}

/// Addresses for a mapping that no child may get, not even one that is forked while it is made. `None`: errno says why.
pub fn reserve(bytes: usize) -> Option<&'static Range> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping, at a place that the kernel chooses.
    match unsafe { libc::mmap(null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) } {
        libc::MAP_FAILED => None,
        at => Some(register(at, bytes, false)),
    }
}

impl Range {
    /// Calls `map`, which puts a mapping at these addresses, in place of what is there. Called by one thread at a time.
    pub fn put<R>(&self, map: impl FnOnce(*mut c_void) -> R) -> R {
        self.left_out.store(false, Ordering::Release);
        let mapped = map(self.memory);
        self.left_out.store(is_left_out(self.memory, self.bytes), Ordering::Release);
        mapped
    }
}

/// Every range, the newest first.
fn ranges() -> impl Iterator<Item = &'static Range> {
    // SAFETY: null, or a range, which is never freed.
    let at = |range: *mut Range| unsafe { range.as_ref() };
    core::iter::successors(at(RANGES.load(Ordering::Acquire)), move |range| at(range.next))
}

fn register(memory: *mut c_void, bytes: usize, left_out: bool) -> &'static Range {
    let left_out = AtomicBool::new(left_out);
    let range = Box::leak(Box::new(Range { memory, bytes, left_out, next: null_mut() }));
    let order = (Ordering::AcqRel, Ordering::Relaxed);
    loop {
        range.next = RANGES.load(Ordering::Relaxed);
        let first: *mut Range = range;
        if RANGES.compare_exchange_weak(range.next, first, order.0, order.1).is_ok() {
            break;
        }
    }
    if range.next.is_null() {
        forked::in_child(put_empty_pages);
    }
    range
}

extern "C" fn put_empty_pages() {
    // A child of a child has its parent's empty pages: they are left alone, since something is there.
    const NOREPLACE: i32 = 0x10_0000;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    for range in ranges() {
        let wanted = range.memory;
        let place = match range.left_out.swap(true, Ordering::AcqRel) {
            true => NOREPLACE,
            false => libc::MAP_FIXED,
        };
        // SAFETY: only unmapped addresses are given pages, and those of the recorder's own mapping.
        let at = unsafe { libc::mmap(wanted, range.bytes, access, flags | place, -1, 0) };
        if at != libc::MAP_FAILED && at != wanted {
            // SAFETY: a kernel before 4.17 chose another place, which nobody else uses.
            unsafe { libc::munmap(at, range.bytes) };
        }
    }
}
