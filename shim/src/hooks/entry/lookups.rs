//! The exported `dlsym` and `dlvsym`: look-ups of the table's names find the hooks.
//!
//! Both call a filter and, if it does not handle the name, JUMP to the real function with registers and
//! stack unchanged: it then sees the caller's return address, on which RTLD_NEXT and RTLD_DEFAULT
//! depend. With a wrapper that CALLS the real function, a plugin's `dlsym(RTLD_NEXT, "malloc")` would
//! find the plugin's own malloc and recurse forever.
//!
//! The filter neither allocates nor locks for names that are not the table's, and knows exact
//! names only.

use crate::driver::api::{Api, Home};
use crate::driver::pointers;
use crate::hooks::entry::exports;
use crate::hooks::process::second_driver;
use crate::runtime::elf;
use crate::runtime::elf::Object;
use crate::runtime::errno;
use crate::runtime::loader::{self, Real};
use crate::runtime::trampoline::{Verdict, trampoline};
use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;

/// # Safety
/// The contract of the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    trampoline!(filter)
}

/// # Safety
/// The contract of the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    trampoline!(filter_versioned)
}

extern "C" fn filter(handle: *mut c_void, name: *const c_char, _: usize, caller: usize) -> Verdict {
    // SAFETY: the arguments of the program's own look-up.
    unsafe { resolve(handle, name, None, caller) }
}

extern "C" fn filter_versioned(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> Verdict {
    // SAFETY: the arguments of the program's own look-up.
    unsafe { resolve(handle, name, Some(version), caller) }
}

/// One look-up.
struct Look<'a> {
    handle: *mut c_void,
    name: &'a CStr,
    version: Option<*const c_char>,
    caller: usize,
}

impl Look<'_> {
    /// The verdict to jump to the real function.
    fn real(&self) -> Verdict {
        let jump = match self.version {
            None => loader::real(Real::Dlsym),
            Some(_) => loader::real(Real::Dlvsym),
        };
        Verdict { jump, answer: null_mut() }
    }

    /// The real look-up, made from this library: RTLD_NEXT searches the libraries after it.
    fn real_result(&self, handle: *mut c_void) -> *mut c_void {
        match self.version {
            // SAFETY: the handle is one of the constants, or the program's, which `dlsym` requires to
            // be valid.
            None => unsafe { loader::dlsym(handle, self.name) },
            // SAFETY: the same handle; the version is the program's C string.
            Some(version) => unsafe { loader::dlvsym(handle, self.name, version) },
        }
    }
}

fn answer(answer: *mut c_void) -> Verdict {
    Verdict { jump: 0, answer }
}

/// Every look-up of the process comes here; the name's first two letters decide nearly all of them.
///
/// # Safety
/// The arguments of a look-up by the program: the name is null or a C string.
#[inline]
unsafe fn resolve(
    handle: *mut c_void,
    name: *const c_char,
    version: Option<*const c_char>,
    caller: usize,
) -> Verdict {
    let plain = Look { handle, name: c"", version, caller };
    if name.is_null() {
        return plain.real();
    }
    // SAFETY: not null, so that it is a C string: its second byte is there unless the first ends it.
    let byte = |at: usize| unsafe { *name.cast::<u8>().wrapping_add(at) };
    let start = [byte(0), if byte(0) == 0 { 0 } else { byte(1) }];
    if ![*b"cu", *b"nv", *b"dl"].contains(&start) {
        return plain.real();
    }
    // SAFETY: not null, so the name is a C string (see above).
    named(&Look { name: unsafe { CStr::from_ptr(name) }, ..plain })
}

#[cold]
fn named(look: &Look) -> Verdict {
    match look.name.to_bytes() {
        b"dlsym" => dlsym_itself(look, loader::real(Real::Dlsym), dlsym as *const ()),
        b"dlvsym" => dlsym_itself(look, loader::real(Real::Dlvsym), dlvsym as *const ()),
        name => match Api::from_name(name) {
            Some(api) => {
                let kept = errno::get();
                let verdict = function(look, api);
                errno::set(kept);
                verdict
            }
            None => look.real(),
        },
    }
}

/// A look-up of `dlsym` itself. If it would find the C library's, it gets ours; except for another
/// interposer, which needs the real one behind its own `dlsym`, or the two would call each other.
fn dlsym_itself(look: &Look, real: usize, ours: *const ()) -> Verdict {
    let ours = ours as usize;
    if look.handle == libc::RTLD_DEFAULT || loader::is_ours(look.caller) {
        return look.real();
    }
    // But an interposer in front of this library has ours as its next one, whatever symbol version it
    // requests.
    let has_us_behind = || elf::function_after(look.caller, look.name.to_bytes()) == Some(ours);
    let has_its_own = |object: &Object| object.function(b"dlsym").is_some() && !has_us_behind();
    // Whether this library comes after the caller in the search order, so that RTLD_NEXT finds it. That is
    // so for the program itself, since this library is preloaded.
    let is_next_after =
        |caller: &Object| look.handle == libc::RTLD_NEXT && caller.path().is_empty();
    // The real search, as if the caller were we.
    let natural = elf::object_at(look.caller)
        .is_some_and(|object| has_its_own(&object) || is_next_after(&object));
    if natural {
        return look.real();
    }
    if look.handle == libc::RTLD_NEXT {
        return answer(ours as *mut c_void);
    }
    let found = look.real_result(look.handle);
    answer(if found as usize == real { ours as *mut c_void } else { found })
}

/// A name of the table: makes the real look-up and replaces its result by our hook. A function that is
/// not the driver's own (of a wrapper library with the same name) is returned unchanged.
fn function(look: &Look, api: Api) -> Verdict {
    if loader::is_ours(look.caller) || is_vendor(look.caller) {
        return look.real();
    }
    let found = match look.handle {
        libc::RTLD_NEXT => without_our_exports(look, api),
        handle => match look.real_result(handle) {
            // The program's own handle, and RTLD_DEFAULT, find our export, whether or not there is a driver.
            found if loader::is_ours(found as usize) => without_our_exports(look, api),
            found => found,
        },
    };
    answer(if found.is_null() { found } else { replacement(api, found) })
}

/// What the search would find without our exports: in the global scope, else in the caller's own.
fn without_our_exports(look: &Look, api: Api) -> *mut c_void {
    let caller = elf::object_at(look.caller);
    // An interposer that searches for the function behind its own must not find its own.
    let callers_own = |found| {
        look.handle == libc::RTLD_NEXT && caller.is_some_and(|caller| caller.contains(found))
    };
    let usable = |found: *mut c_void| {
        let at = found as usize;
        at != 0 && !loader::is_ours(at) && !callers_own(at)
    };
    let global = look.real_result(libc::RTLD_NEXT);
    if usable(global) {
        return global;
    }
    if let Some(caller) = caller {
        let own = look.real_result(caller.handle());
        if usable(own) {
            return own;
        }
    }
    match global.is_null() {
        // Makes a failing look-up, so that `dlerror` has its text.
        true => look.real_result(libc::RTLD_NEXT),
        false => pointers::known(api).unwrap_or(null_mut()),
    }
}

/// A vendor's library looks up its own names, already while it starts.
fn is_vendor(caller: usize) -> bool {
    elf::object_at(caller)
        .is_some_and(|object| Home::Cuda.is_in(&object) || Home::Nvml.is_in(&object))
}

/// The hook, if `found` is the vendor's own function of this name; otherwise `found`.
fn replacement(api: Api, found: *mut c_void) -> *mut c_void {
    if !pointers::adopt_at(api.home(), found) {
        return found;
    }
    match pointers::at(found, |other| u8::from(other != api)) {
        Some(api) => exports::replacement(api),
        None => second_driver::replacement(api, found),
    }
}
