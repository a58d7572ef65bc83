//! The C library's `dlsym`, `dlvsym` and `dlopen`, which this library interposes.

use super::elf;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicUsize, Ordering};
use once_cell::race::OnceNonZeroUsize;

pub type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
pub type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
pub type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

static DLSYM: OnceNonZeroUsize = OnceNonZeroUsize::new();
static DLVSYM: OnceNonZeroUsize = OnceNonZeroUsize::new();
static DLOPEN: OnceNonZeroUsize = OnceNonZeroUsize::new();
/// Read for each native stack: an atomic with a relaxed load.
static FIND_OBJECT: AtomicUsize = AtomicUsize::new(0);
static DLMOPEN: OnceNonZeroUsize = OnceNonZeroUsize::new();
static DLCLOSE: OnceNonZeroUsize = OnceNonZeroUsize::new();

/// Resolved by the first caller; 0 if the process has none, which a later call looks up again. Racing
/// threads find the same address.
#[inline]
fn cached(cache: &OnceNonZeroUsize, name: &[u8]) -> usize {
    cache.get_or_try_init(|| find_anywhere(name).ok_or(())).map_or(0, NonZeroUsize::get)
}

/// Before glibc 2.34 these are libdl's. A process may get it after its start: a module of the C library's
/// name services brings it, and calls this library's `dlopen`.
#[cold]
fn find_anywhere(name: &[u8]) -> Option<NonZeroUsize> {
    type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    /// The loader's sign for a call of `dlopen`.
    const DLOPEN: c_int = c_int::MIN;
    let found = find(name);
    if found.is_some() {
        return found;
    }
    let open = elf::c_library_function(b"__libc_dlopen_mode")?;
    // SAFETY: the C library's own `dlopen`, which these versions have; the handle stays open.
    let function = unsafe {
        let open = core::mem::transmute::<usize, Open>(open);
        let handle = open(c"libdl.so.2".as_ptr(), libc::RTLD_NOW | DLOPEN);
        if handle.is_null() {
            return None;
        }
        elf::Object::of_handle(handle).function(name)
    };
    function.and_then(NonZeroUsize::new)
}

/// Finds the first object after this library that defines it, so that another interposer keeps its
/// place in the chain.
#[cold]
fn find(name: &[u8]) -> Option<NonZeroUsize> {
    elf::function_after_us(name).and_then(NonZeroUsize::new)
}

/// Address of the real `dlsym`; 0 if the process has none.
pub fn real_dlsym() -> usize {
    cached(&DLSYM, b"dlsym")
}

/// Address of the real `dlvsym`; 0 if the process has none.
pub fn real_dlvsym() -> usize {
    cached(&DLVSYM, b"dlvsym")
}

/// The real look-up. RTLD_NEXT searches the objects after this library, since the function sees this
/// library as its caller.
///
/// # Safety
/// The contract of `dlsym`.
pub unsafe fn dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    match real_dlsym() {
        0 => core::ptr::null_mut(),
        // SAFETY: the C library's function of that name, with arguments that fulfil its contract (see
        // above).
        real => unsafe { core::mem::transmute::<usize, Dlsym>(real)(handle, name.as_ptr()) },
    }
}

/// The real look-up with a version.
///
/// # Safety
/// The contract of `dlvsym`.
pub unsafe fn dlvsym(handle: *mut c_void, name: &CStr, version: *const c_char) -> *mut c_void {
    match real_dlvsym() {
        0 => core::ptr::null_mut(),
        // SAFETY: the C library's function of that name, with arguments that fulfil its contract (see
        // above).
        real => unsafe {
            core::mem::transmute::<usize, Dlvsym>(real)(handle, name.as_ptr(), version)
        },
    }
}

/// Address of the real `dlopen`; 0 if the process has none.
pub fn real_dlopen() -> usize {
    cached(&DLOPEN, b"dlopen")
}

/// Address of the real `dlmopen`; 0 if the process has none.
pub fn real_dlmopen() -> usize {
    cached(&DLMOPEN, b"dlmopen")
}

/// The real `dlclose`. -1: the process has none.
///
/// # Safety
/// The contract of `dlclose`.
pub unsafe fn dlclose(handle: *mut c_void) -> c_int {
    type Dlclose = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;
    match cached(&DLCLOSE, b"dlclose") {
        0 => -1,
        // SAFETY: the C library's function of that name; the caller fulfils its contract.
        real => unsafe { core::mem::transmute::<usize, Dlclose>(real)(handle) },
    }
}

/// The real `dlopen`. A failure leaves no text for the program's `dlerror`.
pub fn dlopen(name: &CStr, flags: c_int) -> *mut c_void {
    let handle = match real_dlopen() {
        0 => core::ptr::null_mut(),
        // SAFETY: the C library's function of that name, with a C string.
        real => unsafe { core::mem::transmute::<usize, Dlopen>(real)(name.as_ptr(), flags) },
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

/// Whether AddressSanitizer's runtime is loaded as a library after this one; it must be first. Not by
/// `dlsym`: a failed look-up calls malloc and replaces the program's `dlerror`.
pub fn has_sanitizer_after_us() -> bool {
    elf::function_after_us(b"__asan_init").is_some()
}

pub type FindObject = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// The real `_dl_find_object`; glibc has it from 2.35 on.
#[inline]
pub fn find_object() -> Option<FindObject> {
    const NONE: usize = 1;
    let mut known = FIND_OBJECT.load(Ordering::Relaxed);
    if known == 0 {
        known = find(b"_dl_find_object").map_or(NONE, NonZeroUsize::get);
        FIND_OBJECT.store(known, Ordering::Relaxed);
    }
    // SAFETY: the function of that name.
    (known > NONE).then(|| unsafe { core::mem::transmute::<usize, FindObject>(known) })
}

/// The C library's functions by which a thread ends.
#[derive(Clone, Copy)]
pub enum ThreadEnd {
    PthreadExit,
    SetCancelType,
}

const THREAD_ENDS: [&[u8]; 2] = [b"pthread_exit", b"pthread_setcanceltype"];
static ENDS: [OnceNonZeroUsize; 2] = [const { OnceNonZeroUsize::new() }; 2];

/// Address of the real function.
pub fn thread_end(which: ThreadEnd) -> usize {
    cached(&ENDS[which as usize], THREAD_ENDS[which as usize])
}

/// Resolves all of them in advance, as far as they are there.
pub fn warm() {
    let names: [&[u8]; 5] = [b"dlsym", b"dlvsym", b"dlopen", b"dlmopen", b"dlclose"];
    let caches = [&DLSYM, &DLVSYM, &DLOPEN, &DLMOPEN, &DLCLOSE];
    let found = elf::functions_after_us(names).into_iter();
    let ends = elf::functions_after_us(THREAD_ENDS).into_iter();
    for (cache, found) in caches.into_iter().zip(found).chain(ENDS.iter().zip(ends)) {
        if let Some(found) = found.and_then(NonZeroUsize::new) {
            // A call before this one found the same address.
            let _ = cache.set(found);
        }
    }
    find_object();
}

/// Whether this address lies in this library.
pub fn is_ours(address: usize) -> bool {
    static OURS: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let handle_at = |address: usize| NonZeroUsize::new(elf::handle_at(address) as usize);
    let ours = OURS.get_or_try_init(|| handle_at(find as *const () as usize).ok_or(()));
    ours.is_ok() && handle_at(address) == ours.ok()
}
