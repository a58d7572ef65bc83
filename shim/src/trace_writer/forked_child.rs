//! The windows of the tail in forked children.
//!
//! A child does not get the mappings: they would keep the lock on the tail after the process has ended.
//! A child that is forked inside of an append (from a signal handler) would store to them, so before
//! `fork` returns there, empty pages are put in their place.

use crate::runtime::forked;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A range that children do not get. Never freed, since its mapping stays too.
struct Range {
    memory: *mut u8,
    bytes: usize,
    next: *mut Range,
}

static RANGES: AtomicPtr<Range> = AtomicPtr::new(null_mut());

/// Leaves this mapping of the recorder's out of children that are forked from now on.
pub fn leave_out(memory: *mut u8, bytes: usize) {
    let range = Box::into_raw(Box::new(Range { memory, bytes, next: null_mut() }));
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
    // Last: no child may lack the pages that are not in the list.
    // SAFETY: changes what a fork does with a mapping of the recorder's.
    unsafe { libc::madvise(memory.cast(), bytes, libc::MADV_DONTFORK) };
}

unsafe extern "C" fn put_empty_pages() {
    // A child of a child has its parent's empty pages: they are left alone, since something is there.
    const NOREPLACE: i32 = 0x10_0000;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | NOREPLACE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let mut next = RANGES.load(Ordering::Acquire);
    // SAFETY: ranges are never freed. Only unmapped addresses are given pages.
    while let Some(range) = unsafe { next.as_ref() } {
        let wanted: *mut c_void = range.memory.cast();
        // SAFETY: as above; a kernel before 4.17 may choose another place, which is given back.
        unsafe {
            let at = libc::mmap(wanted, range.bytes, access, flags, -1, 0);
            if at != libc::MAP_FAILED && at != wanted {
                libc::munmap(at, range.bytes);
            }
        }
        next = range.next;
    }
}
