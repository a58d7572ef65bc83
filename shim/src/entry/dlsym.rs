//! `dlsym` and `dlvsym`, ours.
//!
//! Both ask a filter and, when it declines, JUMP to the real function with everything as the
//! caller left it: the real one sees the caller's return address, on which RTLD_NEXT and
//! RTLD_DEFAULT depend. A wrapper that CALLS it makes a plugin's `dlsym(RTLD_NEXT, "malloc")` find
//! the plugin's own malloc, for ever.
//!
//! The filter neither allocates nor locks for names that are not the table's, and knows exact
//! names only.

use super::api::{Api, Home};
use super::doorway::{Verdict, doorway};
use super::elf::{self, Object};
use super::{errno, loader, real};
use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;

/// One look-up.
struct Look<'a> {
    handle: *mut c_void,
    name: &'a CStr,
    version: Option<*const c_char>,
    caller: usize,
}

impl Look<'_> {
    /// Jump to the real function.
    fn real(&self) -> Verdict {
        let jump = match self.version {
            None => loader::real_dlsym(),
            Some(_) => loader::real_dlvsym(),
        };
        Verdict { jump, answer: null_mut() }
    }

    /// The real look-up from our place; RTLD_NEXT means behind us.
    fn up(&self, handle: *mut c_void) -> *mut c_void {
        unsafe {
            match self.version {
                None => loader::dlsym(handle, self.name),
                Some(version) => loader::dlvsym(handle, self.name, version),
            }
        }
    }
}

/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    doorway!(filter)
}

/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    doorway!(filter_versioned)
}

extern "C" fn filter(handle: *mut c_void, name: *const c_char, _: usize, caller: usize) -> Verdict {
    judge(handle, name, None, caller)
}

extern "C" fn filter_versioned(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> Verdict {
    judge(handle, name, Some(version), caller)
}

fn answer(answer: *mut c_void) -> Verdict {
    Verdict { jump: 0, answer }
}

/// Every look-up of the process passes here: two letters decide nearly all.
#[inline]
fn judge(
    handle: *mut c_void,
    name: *const c_char,
    version: Option<*const c_char>,
    caller: usize,
) -> Verdict {
    let plain = Look { handle, name: c"", version, caller };
    if name.is_null() {
        return plain.real();
    }
    let start = unsafe { (*name as u8, if *name == 0 { 0 } else { *name.add(1) as u8 }) };
    match start {
        (b'c', b'u') | (b'n', b'v') | (b'd', b'l') => {
            let look = Look { name: unsafe { CStr::from_ptr(name) }, ..plain };
            named(&look)
        }
        _ => plain.real(),
    }
}

#[cold]
fn named(look: &Look) -> Verdict {
    match look.name.to_bytes() {
        b"dlsym" => door(look, loader::real_dlsym(), dlsym as *const () as usize),
        b"dlvsym" => door(look, loader::real_dlvsym(), dlvsym as *const () as usize),
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

/// Somebody looks for `dlsym` itself. Who finds the C library's is to get ours, except another
/// interposer: behind its own `dlsym` it needs the real one, or the two would call each other.
fn door(look: &Look, real: usize, ours: usize) -> Verdict {
    if look.handle == libc::RTLD_DEFAULT || loader::is_ours(look.caller) {
        return look.real();
    }
    // The real search, as if the caller were we: what an interposer in front of us finds.
    let natural = elf::object_at(look.caller)
        .is_some_and(|object| object.function(b"dlsym").is_some() || is_in_front(look, &object));
    if natural {
        return look.real();
    }
    if look.handle == libc::RTLD_NEXT {
        return answer(ours as *mut c_void);
    }
    let found = look.up(look.handle);
    answer(if found as usize == real { ours as *mut c_void } else { found })
}

/// A name of the table: the real look-up first, then our hook for what it found. What is not the
/// driver's own (a wrapper library's function of the same name) is handed out as it is.
fn function(look: &Look, api: Api) -> Verdict {
    if loader::is_ours(look.caller) || is_driver(look.caller) {
        return look.real();
    }
    let found = match look.handle {
        libc::RTLD_DEFAULT => match look.up(look.handle) {
            found if loader::is_ours(found as usize) => beyond_us(look, api),
            found => found,
        },
        libc::RTLD_NEXT => beyond_us(look, api),
        handle => match look.up(handle) {
            // The program's own handle leads to our export, whether or not there is a driver.
            found if loader::is_ours(found as usize) => beyond_us(look, api),
            found => found,
        },
    };
    answer(replacement(api, found))
}

/// Whether RTLD_NEXT leads the caller to us by itself: the program does, as we are preloaded.
fn is_in_front(look: &Look, caller: &Object) -> bool {
    look.handle == libc::RTLD_NEXT && caller.path().is_empty()
}

/// What the search finds when our own exports are taken away: in the global scope, else in the
/// caller's own.
fn beyond_us(look: &Look, api: Api) -> *mut c_void {
    let caller = elf::object_at(look.caller);
    // An interposer that looks for what is behind itself must not find itself.
    let callers_own = |found: *mut c_void| {
        look.handle == libc::RTLD_NEXT
            && caller.is_some_and(|caller| caller.contains(found as usize))
    };
    let usable = |found: *mut c_void| match found.is_null() {
        true => false,
        false => !loader::is_ours(found as usize) && !callers_own(found),
    };
    let global = look.up(libc::RTLD_NEXT);
    if usable(global) {
        return global;
    }
    if let Some(caller) = caller {
        let own = look.up(caller.handle());
        if usable(own) {
            return own;
        }
    }
    match real::known(api) {
        Some(real) if !global.is_null() => real,
        // So that the error text is there.
        _ if global.is_null() => look.up(libc::RTLD_NEXT),
        _ => null_mut(),
    }
}

/// Our hook for the real function, anything else as it is.
fn replacement(api: Api, found: *mut c_void) -> *mut c_void {
    if found.is_null() || !real::adopt_at(api.home(), found) {
        return found;
    }
    if real::known(api) == Some(found) {
        return real::hook(api);
    }
    real::at(found as usize).map_or(found, real::hook)
}

/// The driver looks up its own names, already while it starts.
fn is_driver(caller: usize) -> bool {
    elf::object_at(caller)
        .is_some_and(|object| [Home::Cuda, Home::Nvml].iter().any(|home| home.is_in(&object)))
}
