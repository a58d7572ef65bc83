//! Catches this library's panics, and lets all other unwinding pass.
//!
//! A thread that is cancelled inside the driver (`pthread_cancel`, `pthread_exit` from a signal
//! handler), or a C++ exception out of a callback, unwinds through our frames to the program's.
//! `catch_unwind` would catch these too, and end the process. So the frame around a hook is written in
//! assembly with a personality function that catches Rust exceptions only. Others run the destructors
//! of the hook's frames (depth guard, reservations) and continue to the caller.
//!
//! The driver's functions are `extern "C-unwind"` for the same reason. A `longjmp` across a driver call
//! runs no destructors; the depth guard detects that (`driver/depth.rs`).

use core::ffi::{c_int, c_void};
use core::mem::{ManuallyDrop, MaybeUninit};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

unsafe extern "C-unwind" {
    fn _Unwind_RaiseException(exception: *mut c_void) -> c_int;
}
unsafe extern "C" {
    safe fn _Unwind_GetLanguageSpecificData(context: &Context) -> usize;
    fn _Unwind_SetGR(context: &mut Context, register: c_int, value: usize);
    fn _Unwind_SetIP(context: &mut Context, address: usize);
}

/// The unwinder's, of the frame at which it is.
#[repr(C)]
pub struct Context([u8; 0]);

/// As `catch_unwind`, for panics of this library alone.
#[inline]
pub fn catch<R>(body: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    let mut result = MaybeUninit::uninit();
    catch_word(|| {
        result.write(body());
        0
    })?;
    // SAFETY: the work ended, and so has written it.
    Ok(unsafe { result.assume_init() })
}

/// The same for work whose result is a word: it stays in a register.
#[inline]
pub fn catch_word(body: impl FnOnce() -> usize) -> Result<usize, Box<dyn Any + Send>> {
    // SAFETY: once.
    let Outcome { value, exception } = unsafe { shielded(&mut ManuallyDrop::new(body)) };
    if exception.is_null() {
        return Ok(value);
    }
    // SAFETY: it was returned just now.
    Err(unsafe { payload(exception) })
}

unsafe extern "C-unwind" fn work<F: FnOnce() -> usize>(body: &mut ManuallyDrop<F>) -> usize {
    // SAFETY: `shielded` calls this once.
    unsafe { ManuallyDrop::take(body)() }
}

/// The payload of an exception. The exception is raised again so that `std` catches it and its count of
/// panics is correct.
///
/// # Safety
/// A Rust exception that [`personality`] has handed to a landing pad.
#[cold]
pub unsafe fn payload(exception: *mut c_void) -> Box<dyn Any + Send> {
    // SAFETY: a Rust exception that `std` has not caught yet.
    let again = AssertUnwindSafe(|| unsafe { _Unwind_RaiseException(exception) });
    match catch_unwind(again) {
        Err(payload) => payload,
        Ok(_) => Box::new("an unwinding that went wrong"),
    }
}

/// How the work ended.
#[repr(C)]
struct Outcome {
    /// What it returned.
    value: usize,
    /// Null, or the exception that ended it.
    exception: *mut c_void,
}

/// Calls [`work`]. `landing` continues it after an exception.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn shielded<F: FnOnce() -> usize>(body: &mut ManuallyDrop<F>) -> Outcome {
    core::arch::naked_asm!(
        ".cfi_startproc",
        // Relative to here, four bytes.
        ".cfi_personality 0x1b, {personality}",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "call {work}",
        "xor edx, edx",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
        personality = sym personality,
        work = sym work::<F>,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn shielded<F: FnOnce() -> usize>(body: &mut ManuallyDrop<F>) -> Outcome {
    core::arch::naked_asm!(
        ".cfi_startproc",
        // Relative to here, four bytes.
        ".cfi_personality 0x1b, {personality}",
        "stp x29, x30, [sp, -16]!",
        ".cfi_adjust_cfa_offset 16",
        ".cfi_rel_offset x29, 0",
        ".cfi_rel_offset x30, 8",
        "mov x29, sp",
        "bl {work}",
        "mov x1, xzr",
        "ldp x29, x30, [sp], 16",
        ".cfi_adjust_cfa_offset -16",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "ret",
        ".cfi_endproc",
        personality = sym personality,
        work = sym work::<F>,
    )
}

/// The landing pad for a caught exception: in the frame of [`shielded`] after its call, with the
/// exception in the second result register.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn landing() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "endbr64",
        "pop rbp",
        ".cfi_def_cfa_offset 8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn landing() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        // `bti j`: the unwinder gets here by a branch.
        "hint 36",
        "ldp x29, x30, [sp], 16",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "ret",
        ".cfi_endproc",
    )
}

const SEARCH: c_int = 1;
const HANDLER_FRAME: c_int = 4;
const FORCED: c_int = 8;
const HANDLER_FOUND: c_int = 6;
const INSTALL_CONTEXT: c_int = 7;
const GO_ON: c_int = 8;
/// DWARF number of the second result register: rdx, x1.
const RESULT: c_int = 1;
/// Rust's exception class; versions of `std` write its bytes in either order.
const RUST: [u64; 2] = [u64::from_ne_bytes(*b"MOZ\0RUST"), u64::from_ne_bytes(*b"TSUR\0ZOM")];

/// The personality function of the Itanium C++ ABI: the unwinder calls it for each frame.
///
/// # Safety
/// The unwinder's arguments.
pub unsafe extern "C" fn personality(
    _version: c_int,
    actions: c_int,
    class: u64,
    exception: *mut c_void,
    context: &mut Context,
) -> c_int {
    if !RUST.contains(&class) || actions & FORCED != 0 {
        return GO_ON;
    }
    if actions & SEARCH != 0 {
        return HANDLER_FOUND;
    }
    if actions & HANDLER_FRAME == 0 {
        return GO_ON;
    }
    // Another naked function may have another landing pad.
    let own = _Unwind_GetLanguageSpecificData(context);
    let pad = if own == 0 { landing as *const () as usize } else { own };
    // SAFETY: the register in which the landing pad finds the exception.
    unsafe { _Unwind_SetGR(context, RESULT, exception as usize) };
    // SAFETY: the landing pad of the frame.
    unsafe { _Unwind_SetIP(context, pad) };
    INSTALL_CONTEXT
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn results_and_panics_come_back() {
        let text = String::from("kept");
        assert_eq!(catch(|| text.len()).unwrap(), 4);
        for _ in 0..3 {
            let payload = catch(|| -> u8 { std::panic::resume_unwind(Box::new(7u32)) });
            assert_eq!(*payload.unwrap_err().downcast::<u32>().unwrap(), 7);
            assert!(!std::thread::panicking(), "std counts it as caught");
        }
    }

    #[test]
    fn shields_nest_and_drops_run() {
        struct Dropped<'a>(&'a Cell<u32>);
        impl Drop for Dropped<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let drops = Cell::new(0);
        let outer = catch(|| {
            let _one = Dropped(&drops);
            let inner = catch(|| {
                let _two = Dropped(&drops);
                std::panic::resume_unwind(Box::new("inner"))
            });
            assert!(inner.is_err_and(|payload: Box<dyn Any + Send>| payload.is::<&str>()));
            std::panic::resume_unwind(Box::new("outer"))
        });
        let outer: Result<(), _> = outer;
        assert!(outer.is_err());
        assert_eq!(drops.get(), 2);
    }

    /// A foreign exception that nobody catches: the search walks past the shield to the end.
    #[test]
    fn a_foreign_exception_is_not_ours() {
        #[repr(C, align(16))]
        struct Exception {
            class: u64,
            rest: [u64; 7],
        }
        let mut foreign = Exception { class: u64::from_be_bytes(*b"TESTTEST"), rest: [0; 7] };
        let at: *mut c_void = (&raw mut foreign).cast();
        // On a thread of C's making: std's own frames would catch it.
        extern "C-unwind" fn thread(at: *mut c_void) -> *mut c_void {
            const END_OF_STACK: c_int = 5;
            // SAFETY: the exception of below, which outlives this thread.
            let came_back = catch(|| unsafe { _Unwind_RaiseException(at) }).ok();
            // On aarch64, the function of libgcc 12 loses its result: it restores x0 when it returns.
            let is_lost = cfg!(target_arch = "aarch64") && came_back.is_some();
            (is_lost || came_back == Some(END_OF_STACK)) as usize as *mut c_void
        }
        // SAFETY: both functions have the same ABI but for unwinding, which `catch` ends. The thread is
        // joined before `foreign` goes.
        unsafe {
            let start: extern "C" fn(*mut c_void) -> *mut c_void =
                core::mem::transmute(thread as *const ());
            let mut id = 0;
            assert_eq!(libc::pthread_create(&mut id, std::ptr::null(), start, at), 0);
            let mut good = std::ptr::null_mut();
            libc::pthread_join(id, &mut good);
            assert_eq!(good as usize, 1);
        }
    }
}
