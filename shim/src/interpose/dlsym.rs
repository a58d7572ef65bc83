//! What `dlsym` and `dlvsym` answer.
//!
//! Both ask a filter and, when it declines, JUMP to the real function with everything as the
//! caller left it: the real one sees the caller's return address, on which RTLD_NEXT and
//! RTLD_DEFAULT depend. A wrapper that CALLS it makes a plugin's `dlsym(RTLD_NEXT, "malloc")` find
//! the plugin's own malloc, for ever.
//!
//! The filter neither allocates nor locks for names that are not the table's, and knows exact
//! names only.

use crate::interpose::trampoline::Verdict;
use crate::runtime::elf;
use crate::runtime::elf::Object;
use crate::runtime::{errno, loader};
use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;

/// The functions that look-ups are to find in place of a vendor's, and where the two lie.
pub trait HookTable {
    /// A function of the table.
    type Id: Copy;

    /// Whether a name that begins with these two bytes can be in the table.
    fn may_begin_with(start: [u8; 2]) -> bool;
    /// Exact names only. Neither allocates nor locks.
    fn by_name(name: &[u8]) -> Option<Self::Id>;
    /// The real function, where its library was found.
    fn real(id: Self::Id) -> Option<*mut c_void>;
    /// The hook for what a look-up of this name found, where it is the vendor's own function;
    /// anything else as it is.
    fn replacement(id: Self::Id, found: *mut c_void) -> *mut c_void;
    /// Whether this is a library of the vendor: those look up their own names.
    fn is_vendor_library(object: &Object) -> bool;
    /// The exported `dlsym` and `dlvsym` themselves.
    fn exported() -> Exported;
}

/// Addresses of the exported look-ups.
#[derive(Clone, Copy)]
pub struct Exported {
    pub dlsym: usize,
    pub dlvsym: usize,
}

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
        match self.version {
            // SAFETY: the handle is the program's, of which it must know that it is valid, or ours.
            None => unsafe { loader::dlsym(handle, self.name) },
            // SAFETY: as above; the version is the program's C string.
            Some(version) => unsafe { loader::dlvsym(handle, self.name, version) },
        }
    }
}

fn answer(answer: *mut c_void) -> Verdict {
    Verdict { jump: 0, answer }
}

/// Every look-up of the process passes here: two letters decide nearly all.
///
/// # Safety
/// The arguments of a look-up by the program: the name is null or a C string.
#[inline]
pub unsafe fn resolve<T: HookTable>(
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
    let start = unsafe { [*name as u8, if *name == 0 { 0 } else { *name.add(1) as u8 }] };
    if start != *b"dl" && !T::may_begin_with(start) {
        return plain.real();
    }
    // SAFETY: as above.
    named::<T>(&Look { name: unsafe { CStr::from_ptr(name) }, ..plain })
}

#[cold]
fn named<T: HookTable>(look: &Look) -> Verdict {
    match look.name.to_bytes() {
        b"dlsym" => door(look, loader::real_dlsym(), T::exported().dlsym),
        b"dlvsym" => door(look, loader::real_dlvsym(), T::exported().dlvsym),
        name => match T::by_name(name) {
            Some(id) => {
                let kept = errno::get();
                let verdict = function::<T>(look, id);
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
    // An interposer in front of us, though, has us as the next one, whatever version of the C
    // library's it asks for.
    let has_us_behind = || elf::behind(look.caller, look.name.to_bytes()) == Some(ours);
    let has_its_own = |object: &Object| object.function(b"dlsym").is_some() && !has_us_behind();
    // The real search, as if the caller were we.
    let natural = elf::object_at(look.caller)
        .is_some_and(|object| has_its_own(&object) || is_in_front(look, &object));
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
fn function<T: HookTable>(look: &Look, id: T::Id) -> Verdict {
    if loader::is_ours(look.caller) || is_vendor::<T>(look.caller) {
        return look.real();
    }
    let found = match look.handle {
        libc::RTLD_DEFAULT => match look.up(look.handle) {
            found if loader::is_ours(found as usize) => beyond_us::<T>(look, id),
            found => found,
        },
        libc::RTLD_NEXT => beyond_us::<T>(look, id),
        handle => match look.up(handle) {
            // The program's own handle leads to our export, whether or not there is a driver.
            found if loader::is_ours(found as usize) => beyond_us::<T>(look, id),
            found => found,
        },
    };
    answer(if found.is_null() { found } else { T::replacement(id, found) })
}

/// Whether RTLD_NEXT leads the caller to us by itself: the program does, as we are preloaded.
fn is_in_front(look: &Look, caller: &Object) -> bool {
    look.handle == libc::RTLD_NEXT && caller.path().is_empty()
}

/// What the search finds when our own exports are taken away: in the global scope, else in the
/// caller's own.
fn beyond_us<T: HookTable>(look: &Look, id: T::Id) -> *mut c_void {
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
    match T::real(id) {
        Some(real) if !global.is_null() => real,
        // So that the error text is there.
        _ if global.is_null() => look.up(libc::RTLD_NEXT),
        _ => null_mut(),
    }
}

/// A vendor's library looks up its own names, already while it starts.
fn is_vendor<T: HookTable>(caller: usize) -> bool {
    elf::object_at(caller).is_some_and(|object| T::is_vendor_library(&object))
}
