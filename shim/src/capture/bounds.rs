//! Where this thread's stack ends.

use std::ffi::c_void;
use std::mem::MaybeUninit;

core::arch::global_asm!(
    ".pushsection .tbss.vramtrace_stack,\"awT\",@nobits",
    ".globl vramtrace_stack",
    ".hidden vramtrace_stack",
    ".type vramtrace_stack, @object",
    ".size vramtrace_stack, 16",
    ".balign 16",
    "vramtrace_stack:",
    ".zero 16",
    ".popsection",
);

/// Kept for each thread. A thread has one stack for life, in a forked child too.
#[repr(C)]
struct Known {
    low: usize,
    /// 0: not looked up yet.
    high: usize,
}

#[inline(always)]
fn known() -> *mut Known {
    let address: *mut Known;
    // SAFETY: reads the thread pointer and a link-time offset.
    unsafe {
        core::arch::asm!(
            "mov {address}, qword ptr fs:[0]",
            "add {address}, qword ptr [rip + vramtrace_stack@GOTTPOFF]",
            address = out(reg) address,
            options(nostack, pure, readonly),
        );
    }
    address
}

/// Stack that a capture wants below it.
const ROOM: usize = 96 << 10;

/// Where the stack on which `sp` lies ends: everything between can be read. `None`: unknown, or too
/// little is left to work on.
#[inline]
pub fn high(sp: usize) -> Option<usize> {
    // SAFETY: this thread's own.
    let (low, high) = unsafe { ((*known()).low, (*known()).high) };
    if (low..high).contains(&sp) {
        return (sp - low > ROOM).then_some(high);
    }
    look(sp, high == 0)
}

#[cold]
fn look(sp: usize, first: bool) -> Option<usize> {
    if first && let Some((low, high)) = of_thread(sp) {
        // SAFETY: this thread's own.
        unsafe { *known() = Known { low, high } };
        if (low..high).contains(&sp) {
            return (sp - low > ROOM).then_some(high);
        }
    }
    // A stack that the program made: a fiber's, or the one for signals.
    mapped_from(sp)
}

/// Of the stack that this thread began on.
fn of_thread(sp: usize) -> Option<(usize, usize)> {
    unsafe extern "C" {
        /// Where the main thread's stack was when the program began.
        static __libc_stack_end: *const c_void;
    }
    // The C library reads a file to answer for the main thread, so not that way.
    const NEAR: usize = 64 << 20;
    // SAFETY: set by the loader, constant.
    let end = unsafe { __libc_stack_end } as usize;
    if sp < end && end - sp < NEAR {
        let mut limit = MaybeUninit::<libc::rlimit>::uninit();
        // SAFETY: room for the answer.
        let limit = unsafe {
            match libc::getrlimit(libc::RLIMIT_STACK, limit.as_mut_ptr()) {
                0 => limit.assume_init().rlim_cur as usize,
                _ => 8 << 20,
            }
        };
        return Some((end.saturating_sub(limit.min(NEAR)), end));
    }
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut start, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are made, read and destroyed here.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let result = libc::pthread_attr_getstack(attributes.as_ptr(), &mut start, &mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (result == 0 && size != 0).then_some((start as usize, start as usize + size))
    }
}

/// The end of the mapped pages from `sp` on, as far as is worth looking.
fn mapped_from(sp: usize) -> Option<usize> {
    const PAGE: usize = 4096;
    const PAGES: usize = 64;
    let first = sp & !(PAGE - 1);
    let mut byte = [0u8; PAGES];
    let remote: [libc::iovec; PAGES] = std::array::from_fn(|n| libc::iovec {
        iov_base: (first + n * PAGE) as *mut c_void,
        iov_len: 1,
    });
    let local = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: PAGES };
    // SAFETY: the kernel reads what it can, and says how much that was.
    let read = unsafe {
        libc::process_vm_readv(libc::getpid(), &local, 1, remote.as_ptr(), PAGES as u64, 0)
    };
    // The page that holds `sp` is there in any case.
    Some(first + PAGE * usize::try_from(read).unwrap_or(0).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_its_own() {
        let here = 0u8;
        let mine = high(&raw const here as usize).unwrap();
        let theirs = std::thread::spawn(|| {
            let here = 0u8;
            let at = &raw const here as usize;
            let high = high(at).unwrap();
            assert!(high > at && high - at < 16 << 20);
            high
        });
        assert_ne!(mine, theirs.join().unwrap());
    }

    #[test]
    fn a_stack_of_the_programs_own() {
        let page = crate::table::pages(3 * 4096).unwrap() as usize;
        unsafe { libc::mprotect((page + 2 * 4096) as *mut c_void, 4096, libc::PROT_NONE) };
        assert_eq!(mapped_from(page + 100), Some(page + 2 * 4096));
    }
}
