//! The functions of the C library that this library interposes, `dlsym` and `dlopen` among them.

use super::elf;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::num::NonZeroUsize;
use core::ptr::null_mut;
use once_cell::race::OnceNonZeroUsize;

/// One of these functions.
#[derive(Clone, Copy)]
pub enum Real {
    Dlsym,
    Dlvsym,
    Dlopen,
    Dlmopen,
    Dlclose,
    PthreadExit,
    SetCancelType,
    Exit,
}

const NAMES: [&[u8]; 8] = [
    b"dlsym",
    b"dlvsym",
    b"dlopen",
    b"dlmopen",
    b"dlclose",
    b"pthread_exit",
    b"pthread_setcanceltype",
    b"_exit",
];
static REAL: [OnceNonZeroUsize; NAMES.len()] = [const { OnceNonZeroUsize::new() }; NAMES.len()];

/// Address of the real function: in the first object after this library that defines it, so that another interposer keeps
/// its place in the chain. Looked up by the first caller; 0 if the process has none, which a later call looks up again.
/// Racing threads find the same address.
#[inline]
pub fn real(which: Real) -> usize {
    let found =
        REAL[which as usize].get_or_try_init(|| find_anywhere(NAMES[which as usize]).ok_or(()));
    found.map_or(0, NonZeroUsize::get)
}

/// Before glibc 2.34 some of these are libdl's. A process may get it after its start: a module of the C library's
/// name services brings it, and calls this library's `dlopen`.
#[cold]
fn find_anywhere(name: &[u8]) -> Option<NonZeroUsize> {
    type Open = extern "C" fn(*const c_char, c_int) -> *mut c_void;
    /// The loader's sign for a call of `dlopen`.
    const DLOPEN: c_int = c_int::MIN;
    let in_libdl = || {
        let open = elf::c_library_function(b"__libc_dlopen_mode")?;
        // SAFETY: the C library's own `dlopen`, which these versions have.
        let open = unsafe { transmute::<usize, Open>(open) };
        let library = open(c"libdl.so.2".as_ptr(), libc::RTLD_NOW | DLOPEN);
        // SAFETY: NULL, or a handle that stays open.
        unsafe { elf::Object::opened(library) }?.function(name)
    };
    elf::function_after_us(name).or_else(in_libdl).and_then(NonZeroUsize::new)
}

/// The real look-up. RTLD_NEXT searches the objects after this library, since the function sees this
/// library as its caller.
///
/// # Safety
/// The contract of `dlsym`.
pub unsafe fn dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    type Dlsym = extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    match real(Real::Dlsym) {
        0 => null_mut(),
        // SAFETY: the C library's function of that name; the caller fulfils its contract.
        real => unsafe { transmute::<usize, Dlsym>(real)(handle, name.as_ptr()) },
    }
}

/// The real look-up with a version.
///
/// # Safety
/// The contract of `dlvsym`.
pub unsafe fn dlvsym(handle: *mut c_void, name: &CStr, version: *const c_char) -> *mut c_void {
    type Dlvsym = extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
    match real(Real::Dlvsym) {
        0 => null_mut(),
        // SAFETY: the C library's function of that name; the caller fulfils its contract.
        real => unsafe { transmute::<usize, Dlvsym>(real)(handle, name.as_ptr(), version) },
    }
}

/// The real `dlclose`. -1: the process has none.
///
/// # Safety
/// The contract of `dlclose`.
pub unsafe fn dlclose(handle: *mut c_void) -> c_int {
    type Dlclose = extern "C-unwind" fn(*mut c_void) -> c_int;
    match real(Real::Dlclose) {
        0 => -1,
        // SAFETY: the C library's function of that name; the caller fulfils its contract.
        real => unsafe { transmute::<usize, Dlclose>(real)(handle) },
    }
}

/// The real `dlopen`. A failure leaves no text for the program's `dlerror`.
pub fn dlopen(name: &CStr, flags: c_int) -> *mut c_void {
    type Dlopen = extern "C" fn(*const c_char, c_int) -> *mut c_void;
    let handle = match real(Real::Dlopen) {
        0 => null_mut(),
        // SAFETY: the C library's function of that name, with a C string.
        real => unsafe { transmute::<usize, Dlopen>(real)(name.as_ptr(), flags) },
    };
    if handle.is_null() {
        clear_error();
    }
    handle
}

/// Clears the error text that a failed look-up left for `dlerror`, by one that succeeds.
pub fn clear_error() {
    // SAFETY: a handle that is always valid.
    unsafe { dlsym(libc::RTLD_DEFAULT, c"dlsym") };
}

pub type FindObject = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// The real `_dl_find_object`; glibc has it from 2.35 on.
#[inline]
pub fn find_object() -> Option<FindObject> {
    const NONE: NonZeroUsize = NonZeroUsize::MIN;
    static KNOWN: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let find = || elf::function_after_us(b"_dl_find_object").and_then(NonZeroUsize::new);
    let known = KNOWN.get_or_init(|| find().unwrap_or(NONE));
    // SAFETY: the function of that name.
    (known != NONE).then(|| unsafe { transmute::<usize, FindObject>(known.get()) })
}

/// Address of the C library's `clone`, even if an object before it defines one.
pub fn clone() -> Option<usize> {
    static CLONE: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let find = || elf::c_library_function(b"clone").and_then(NonZeroUsize::new).ok_or(());
    CLONE.get_or_try_init(find).ok().map(NonZeroUsize::get)
}

/// Looks all of them up in advance, as far as they are there.
pub fn warm() {
    for (place, found) in REAL.iter().zip(elf::functions_after_us(NAMES)) {
        if let Some(found) = found.and_then(NonZeroUsize::new) {
            // A call before this one found the same address.
            let _ = place.set(found);
        }
    }
    find_object();
    clone();
}

/// Whether this address lies in this library.
pub fn is_ours(address: usize) -> bool {
    static OURS: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let handle_at = |address: usize| NonZeroUsize::new(elf::handle_at(address) as usize);
    let ours = OURS.get_or_try_init(|| handle_at(warm as *const () as usize).ok_or(()));
    ours.is_ok() && handle_at(address) == ours.ok()
}
