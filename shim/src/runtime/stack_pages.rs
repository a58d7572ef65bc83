//! Finds the stack that an address lies on, without the C library: the kernel knows the signal stack,
//! and the gap between two stacks cannot be read.

use crate::runtime::stack_bounds::{PAGE, mapped_pages};
use core::ops::Range;
use core::ptr::{null, null_mut};

/// This thread's alternate signal stack, if it has one.
pub fn signal_stack() -> Option<Range<usize>> {
    let mut stack = libc::stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: a query with room for the answer; nothing is changed.
    unsafe { libc::sigaltstack(null(), &mut stack) };
    let start = stack.ss_sp as usize;
    (stack.ss_flags & libc::SS_DISABLE == 0).then(|| start..start + stack.ss_size)
}

/// A word of this stack, whose frame may have ended.
///
/// # Safety
/// The page of `at` can be read, and `at` is aligned.
#[inline]
pub unsafe fn word_of_ended_frame(at: usize) -> usize {
    #[cfg(not(sanitized))]
    // SAFETY: the caller's contract. Only this thread writes to the stack.
    unsafe {
        (at as *const usize).read_volatile()
    }
    // AddressSanitizer would report what a load of such a word is: it does not see this one.
    #[cfg(sanitized)]
    // SAFETY: the caller's contract; a load, nothing else.
    unsafe {
        let word;
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("mov {}, [{}]", out(reg) word, in(reg) at, options(nostack, readonly, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("ldr {}, [{}]", out(reg) word, in(reg) at, options(nostack, readonly, preserves_flags));
        word
    }
}

/// Whether every page from `low` to `high` can be read, and is not too far away.
pub fn are_joined(low: usize, high: usize) -> bool {
    /// Most pages of one system call.
    const PAGES: usize = 64;
    const MOST: usize = 32 << 20;
    let (first, end) = (low & !(PAGE - 1), high & !(PAGE - 1));
    high - low <= MOST
        && (first..=end).step_by(PAGES * PAGE).all(|page| {
            let count = ((end - page) / PAGE + 1).min(PAGES);
            mapped_pages::<PAGES>(page, count) == count
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_void;

    #[test]
    fn a_gap_parts_two_stacks() {
        let page = crate::runtime::hash_table::pages(5 * 4096).unwrap() as usize;
        assert!(are_joined(page + 100, page + 4 * 4096));
        assert!(are_joined(page, page));
        // SAFETY: our own page.
        unsafe { libc::mprotect((page + 2 * 4096) as *mut c_void, 4096, libc::PROT_NONE) };
        assert!(!are_joined(page + 100, page + 4 * 4096));
        assert!(are_joined(page + 100, page + 2 * 4096 - 1));
    }
}
