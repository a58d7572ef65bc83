//! Whether an address can be read, without a fault.

use crate::runtime::errno;
use core::ffi::c_void;

/// Whether the eight bytes at this address can be read. System calls: for cold paths.
///
/// The kernel copies them. Where that call is forbidden, as in some containers, the page is only known to exist, which a
/// page without access does too. Valgrind answers the calls that other libraries use for this itself, with a crash or a
/// warning.
pub fn can_read_word(address: usize) -> bool {
    const WORD: usize = size_of::<u64>();
    let kept = errno::get();
    let mut word = 0u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: WORD };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: WORD };
    let one = 1usize;
    // SAFETY: there is room for what the kernel copies; it reads what it can. Made directly: a sanitizer's runtime has its
    // own version of the C library's function, which does not work before it is initialized.
    let read = unsafe {
        let process = libc::syscall(libc::SYS_getpid);
        libc::syscall(
            libc::SYS_process_vm_readv,
            process,
            &raw const local,
            one,
            &raw const remote,
            one,
            0usize,
        )
    };
    let can = match read {
        -1 if errno::get() != libc::EFAULT => exists(address & !4095),
        read => read == WORD as i64,
    };
    errno::set(kept);
    can
}

fn exists(page: usize) -> bool {
    let mut residence = 0u8;
    // SAFETY: asks for one page, with room for the answer.
    unsafe { libc::syscall(libc::SYS_mincore, page, 1usize, &raw mut residence) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_exist() {
        let page = crate::runtime::hash_table::pages(4096).unwrap() as usize;
        assert!(exists(page));
        assert!(!exists(4096) && !exists(1 << 46));
    }

    #[test]
    fn words_that_can_and_cannot_be_read() {
        let page = crate::runtime::hash_table::pages(2 * 4096).unwrap() as usize;
        assert!(can_read_word(page) && can_read_word(page + 4088));
        // SAFETY: our own page.
        unsafe { libc::mprotect((page + 4096) as *mut c_void, 4096, libc::PROT_NONE) };
        assert!(can_read_word(page + 4088));
        assert!(!can_read_word(page + 4096), "no access");
        assert!(!can_read_word(page + 4092), "half of it");
        for address in [0, 8, 4096, usize::MAX - 7, 1 << 63] {
            assert!(!can_read_word(address), "{address:x}");
        }
    }
}
