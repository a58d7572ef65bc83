//! Reads memory that may not be there, without a fault.

use crate::runtime::errno;
use core::ffi::{c_long, c_void};

/// The eight bytes at this address. `None`: they cannot be read. System calls: for cold paths.
///
/// The kernel copies them. For code that runs, and data of the loader: where that call is forbidden, as in some containers, a
/// page that exists is read directly. Valgrind answers the calls that other libraries use for this itself, with a crash or
/// a warning.
pub fn read_word(address: usize) -> Option<u64> {
    match copied(address) {
        Ok(word) => word.map(u64::from_ne_bytes),
        Err(Forbidden) => {
            let last = address.checked_add(size_of::<u64>() - 1)?;
            let there = exists(address & !4095) && exists(last & !4095);
            // SAFETY: both pages exist, and by the contract above they can be read.
            there
                .then(|| unsafe { (address as *const [u8; 8]).read_volatile() })
                .map(u64::from_ne_bytes)
        }
    }
}

/// The kernel copies no memory for this process.
pub struct Forbidden;

/// These bytes as the kernel copies them. `Ok(None)`: not all of them can be read.
pub fn copied<const N: usize>(address: usize) -> Result<Option<[u8; N]>, Forbidden> {
    let kept = errno::get();
    let mut bytes = [0u8; N];
    let place = libc::iovec { iov_base: address as *mut c_void, iov_len: N };
    let copied = match copy(&mut bytes, &[place]) {
        -1 if errno::get() != libc::EFAULT => Err(Forbidden),
        read => Ok((read == N as i64).then_some(bytes)),
    };
    errno::set(kept);
    copied
}

/// Copies what can be read at these places, up to the first that cannot, and returns how many bytes. -1: errno says why.
///
/// The call is made directly: a sanitizer's runtime has its own version of the C library's function, which does not work before
/// it is initialized.
pub(super) fn copy(into: &mut [u8], places: &[libc::iovec]) -> c_long {
    let (process, number) = (std::process::id(), libc::SYS_process_vm_readv);
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let (places, count) = (places.as_ptr(), places.len());
    // SAFETY: there is room for what the kernel copies; it reads what it can.
    unsafe { libc::syscall(number, process, &raw const local, 1usize, places, count, 0usize) }
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
        assert_eq!((read_word(page), read_word(page + 4088)), (Some(0), Some(0)));
        // SAFETY: our own page.
        unsafe { ((page + 4081) as *mut [u8; 8]).write(*b"unequal!") };
        assert_eq!(read_word(page + 4081), Some(u64::from_ne_bytes(*b"unequal!")));
        // SAFETY: our own page.
        unsafe { libc::mprotect((page + 4096) as *mut c_void, 4096, libc::PROT_NONE) };
        assert!(read_word(page + 4088).is_some());
        assert_eq!(read_word(page + 4096), None, "no access");
        assert_eq!(read_word(page + 4092), None, "half of it");
        for address in [0, 8, 4096, usize::MAX - 7, 1 << 63] {
            assert_eq!(read_word(address), None, "{address:x}");
        }
    }
}
