//! errno as the program and the driver left it.

use crate::runtime::tls::thread_pointer;
use core::ffi::c_int;

/// This thread's errno. It stays on its thread, since a raw pointer is not `Send`.
#[derive(Clone, Copy)]
pub struct Here(*mut c_int);

/// Finds this thread's errno. Later reads through the result are cheaper.
#[inline]
pub fn here() -> Here {
    // SAFETY: has no arguments, and gives the address of this thread's errno.
    Here(unsafe { libc::__errno_location() })
}

/// Where a thread's errno is, from its thread pointer: the same for all threads, since the C library is loaded at start-up.
pub fn offset() -> usize {
    here().address().wrapping_sub(thread_pointer())
}

/// What errno is now, until this is dropped: then it is that again.
pub struct Kept {
    here: Here,
    value: c_int,
}

impl Kept {
    /// # Safety
    /// `offset` is [`offset`]: the caller has it at hand, and the C library's function is another line of the cache.
    #[inline(always)]
    pub unsafe fn at(offset: usize) -> Kept {
        let here = Here(thread_pointer().wrapping_add(offset) as *mut c_int);
        Kept { here, value: here.get() }
    }
}

impl Drop for Kept {
    #[inline(always)]
    fn drop(&mut self) {
        self.here.set(self.value);
    }
}

impl Here {
    #[inline]
    pub fn get(self) -> c_int {
        // SAFETY: this thread's own, there as long as it runs.
        unsafe { self.0.read() }
    }

    #[inline]
    pub fn set(self, value: c_int) {
        // SAFETY: this thread's own, there as long as it runs.
        unsafe { self.0.write(value) }
    }

    /// The address, which is the same for all calls on a thread.
    pub fn address(self) -> usize {
        self.0 as usize
    }
}

#[inline]
pub fn get() -> c_int {
    here().get()
}

#[inline]
pub fn set(value: c_int) {
    here().set(value);
}

#[cfg(all(test, not(miri)))] // whose thread pointer is a variable
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_at_one_offset() {
        let offset = offset();
        let keeps = move || {
            set(5);
            // SAFETY: it is.
            let kept = unsafe { Kept::at(offset) };
            set(6);
            drop(kept);
            get()
        };
        assert_eq!((keeps(), std::thread::spawn(keeps).join().unwrap()), (5, 5));
    }
}
