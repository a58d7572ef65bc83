//! `dlopen`, `dlmopen` and `dlclose`. The first two are interposed to notice libraries whose calls cannot be hooked, and
//! that addresses may belong to new libraries. A library opened with RTLD_DEEPBIND prefers its own
//! dependencies to our exports, and one in another namespace does not see our exports at all. Both
//! functions jump to the real one, so that search paths and namespace are those of the program's
//! caller. `dlclose` does not depend on its caller: it waits for those who read a library ([`found`]).

use crate::runtime::escapes::{Escape, escaped};
use crate::runtime::found;
use crate::runtime::loader::{self, Real};
use crate::runtime::trampoline::{Verdict, trampoline};
use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};

static OPENED: AtomicU32 = AtomicU32::new(0);

/// How often a library was, or is now being, opened in this process.
#[inline]
pub fn opened() -> u32 {
    OPENED.load(Ordering::Acquire)
}

extern "C" fn opening(_: *const c_char, flags: c_int) -> Verdict {
    opened_in(libc::LM_ID_BASE, flags, Real::Dlopen)
}

extern "C" fn opening_apart(space: c_long, _: *const c_char, flags: c_int) -> Verdict {
    opened_in(space, flags, Real::Dlmopen)
}

fn opened_in(space: c_long, flags: c_int, real: Real) -> Verdict {
    OPENED.fetch_add(1, Ordering::Release);
    if space != libc::LM_ID_BASE {
        escaped(Escape::Namespace);
    } else if flags & libc::RTLD_DEEPBIND != 0 {
        escaped(Escape::DeepBind);
    }
    found::before_change();
    Verdict { jump: loader::real(real), answer: null_mut() }
}

/// # Safety
/// The contract of the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    trampoline!(opening)
}

/// # Safety
/// The contract of the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlmopen(space: c_long, name: *const c_char, flags: c_int) -> *mut c_void {
    trampoline!(opening_apart)
}

/// # Safety
/// The contract of the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dlclose(handle: *mut c_void) -> c_int {
    // SAFETY: the program's own call.
    found::close(|| unsafe { loader::dlclose(handle) })
}
