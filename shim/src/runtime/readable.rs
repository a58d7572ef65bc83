//! Whether an address can be read, without a fault.

use core::ffi::{c_int, c_void};

/// Whether the eight bytes at this address can be read, as far as the kernel tells. A system call: for cold paths.
///
/// The kernel copies the new mask of `rt_sigprocmask` before it looks at what to do with it. An unknown `how` changes
/// nothing: the error is EFAULT if the copy failed, else EINVAL. Containers allow this call, unlike process_vm_readv.
pub fn can_read_word(address: usize) -> bool {
    const UNKNOWN_HOW: c_int = c_int::MAX;
    let errno = crate::runtime::errno::get();
    // SAFETY: the kernel reads at most a word at any address, and writes nothing.
    let answer = unsafe {
        let nothing = core::ptr::null_mut::<c_void>();
        libc::syscall(libc::SYS_rt_sigprocmask, UNKNOWN_HOW, address as *const c_void, nothing, 8)
    };
    let failed = answer != 0 && crate::runtime::errno::get() == libc::EFAULT;
    crate::runtime::errno::set(errno);
    address != 0 && !failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_exist_and_pages_that_cannot_be_read() {
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
