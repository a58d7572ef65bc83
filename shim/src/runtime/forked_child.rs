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
    // SAFETY: changes what a fork does with a mapping of the recorder's.
    unsafe { libc::madvise(memory.cast(), bytes, libc::MADV_DONTFORK) };
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
        // SAFETY: changes what a fork does with a mapping of the recorder's.
        let done = unsafe { libc::madvise(self.memory, self.bytes, libc::MADV_DONTFORK) } == 0;
        self.left_out.store(done, Ordering::Release);
        mapped
    }
}

fn register(memory: *mut c_void, bytes: usize, left_out: bool) -> &'static Range {
    let left_out = AtomicBool::new(left_out);
    let range = Box::into_raw(Box::new(Range { memory, bytes, left_out, next: null_mut() }));
    let mut first = RANGES.load(Ordering::Relaxed);
    loop {
        // SAFETY: nobody else has seen it.
        unsafe { (*range).next = first };
        match RANGES.compare_exchange_weak(first, range, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(other) => first = other,
        }
    }
    if first.is_null() {
        // SAFETY: makes system calls only.
        unsafe { forked::in_child(put_empty_pages) };
    }
    // SAFETY: never freed, and not changed any more but for the atomic.
    unsafe { &*range }
}

unsafe extern "C" fn put_empty_pages() {
    // A child of a child has its parent's empty pages: they are left alone, since something is there.
    const NOREPLACE: i32 = 0x10_0000;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let mut next = RANGES.load(Ordering::Acquire);
    // SAFETY: ranges are never freed. Only unmapped addresses are given pages, and those of the recorder's own mapping.
    while let Some(range) = unsafe { next.as_ref() } {
        let wanted = range.memory;
        let place = match range.left_out.swap(true, Ordering::AcqRel) {
            true => NOREPLACE,
            false => libc::MAP_FIXED,
        };
        // SAFETY: as above; a kernel before 4.17 may choose another place, which is given back.
        unsafe {
            let at = libc::mmap(wanted, range.bytes, access, flags | place, -1, 0);
            if at != libc::MAP_FAILED && at != wanted {
                libc::munmap(at, range.bytes);
            }
        }
        next = range.next;
    }
}
