//! The real functions of libcuda and libnvidia-ml.
//!
//! Filled from the libraries' own symbol tables, all at once, when a name of the table is first
//! looked up with success or called. No lock: racing threads store the same values.

use super::api::{Api, Home};
use crate::runtime::elf;
use crate::runtime::elf::Object;
use crate::runtime::{errno, loader};
use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function for each line of the table; null: not known, or there is none.
type Functions = [AtomicPtr<c_void>; Api::COUNT];

static REAL: Functions = [const { AtomicPtr::new(null_mut()) }; Api::COUNT];

/// Those of a second file of the same driver: see [`adopt_inner`].
static INNER: Functions = [const { AtomicPtr::new(null_mut()) }; Api::COUNT];

/// Each library's object, once found; it is never unloaded then.
static OBJECTS: [AtomicPtr<c_void>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];

impl Home {
    pub fn library(self) -> &'static CStr {
        match self {
            Home::Cuda => c"libcuda.so.1",
            Home::Nvml => c"libnvidia-ml.so.1",
            Home::Torch => c"libc10.so",
        }
    }

    /// A function by which the library is recognised.
    fn witness(self) -> &'static CStr {
        match self {
            Home::Cuda => c"cuDriverGetVersion",
            Home::Nvml => c"nvmlInit_v2",
            Home::Torch => c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
        }
    }

    /// One file may have both names, of which the loader keeps the first: so it must have one of the
    /// two names and define that function.
    pub fn is_in(self, object: &Object) -> bool {
        let named = match self {
            Home::Cuda | Home::Nvml => {
                object.is_named("libcuda.so") || object.is_named("libnvidia-ml.so")
            }
            Home::Torch => object.is_named("libc10"),
        };
        named && object.function(self.witness().to_bytes()).is_some()
    }

    /// Its object, if it was found in the process.
    pub fn object(self) -> Option<Object> {
        // SAFETY: NULL, or an object that was adopted: it stays.
        unsafe { Object::opened(OBJECTS[self as usize].load(Ordering::Acquire)) }
    }

    /// Whether its object was found in the process.
    pub fn is_found(self) -> bool {
        !OBJECTS[self as usize].load(Ordering::Acquire).is_null()
    }
}

/// The real function of an export. Opens the library if it is not open.
#[inline]
pub fn function(api: Api) -> Option<*mut c_void> {
    known(api).or_else(|| open(api))
}

#[cold]
fn open(api: Api) -> Option<*mut c_void> {
    let kept = errno::get();
    if !find(api.home()) {
        // A program that is linked to the library has it open. One that calls the export without it (a
        // weak reference, a plugin) would otherwise have no function to call.
        let handle =
            crate::driver::depth::inside(|| loader::dlopen(api.home().library(), libc::RTLD_NOW));
        // SAFETY: NULL, or a handle of `dlopen` that is never closed.
        unsafe { Object::opened(handle) }.map(|object| adopt(api.home(), object));
    }
    errno::set(kept);
    known(api)
}

/// The real function if its library was found and has it.
#[inline]
pub fn known(api: Api) -> Option<*mut c_void> {
    let real = REAL[api as usize].load(Ordering::Acquire);
    (!real.is_null()).then_some(real)
}

/// Looks for the library after this one in the global scope, or loaded under its usual name, and fills
/// the tables. `false`: it is not loaded.
#[cold]
pub fn find(home: Home) -> bool {
    if home.is_found() {
        return true;
    }
    // SAFETY: a handle that is always valid, and a C string.
    let found = unsafe { loader::dlsym(libc::RTLD_NEXT, home.witness()) };
    if !found.is_null() && adopt_at(home, found) {
        return true;
    }
    loader::clear_error();
    let handle = loader::dlopen(home.library(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
    // SAFETY: NULL, or a handle of `dlopen` that is never closed.
    unsafe { Object::opened(handle) }.is_some_and(|object| adopt(home, object))
}

/// A look-up found this function: if it is in the library, the tables are filled from that object.
pub fn adopt_at(home: Home, found: *mut c_void) -> bool {
    home.is_found() || elf::object_at(found as usize).is_some_and(|object| adopt(home, object))
}

/// Fills the tables from this object, if it is the home's.
#[cold]
fn adopt(home: Home, object: Object) -> bool {
    if !home.is_in(&object) {
        return false;
    }
    fill(&REAL, home, &object);
    OBJECTS[home as usize].store(object.handle(), Ordering::Release);
    true
}

/// Stores the functions that the object has, and keeps it loaded.
fn fill(functions: &Functions, home: Home, object: &Object) {
    for &api in Api::ALL.iter().filter(|api| api.home() == home) {
        if let Some(address) = object.function(api.name().as_bytes()) {
            functions[api as usize].store(address as *mut c_void, Ordering::Release);
        }
    }
    loader::dlopen(object.path(), libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
}

/// The driver itself returned this function, which is in another file: the driver is a small library
/// that opens the real one (WSL2, compatibility packages). Both are one driver: functions of the inner
/// one get the same hooks, which call the outer one where it has the function.
#[cold]
pub fn adopt_inner(found: *mut c_void) -> bool {
    // There is room for one.
    static ADOPTED: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let Some(object) = of_other_driver(found) else { return false };
    let (none, inner) = (null_mut(), object.handle());
    let before = ADOPTED.compare_exchange(none, inner, Ordering::Relaxed, Ordering::Relaxed);
    if before.is_err_and(|before| before != inner) {
        return false;
    }
    fill(&INNER, Home::Cuda, &object);
    for (real, inner) in REAL.iter().zip(&INNER) {
        let (inner, success) = (inner.load(Ordering::Acquire), Ordering::Release);
        let _ = real.compare_exchange(null_mut(), inner, success, Ordering::Relaxed);
    }
    true
}

/// The driver in which this function lies, if it is not the one whose calls are followed.
pub fn of_other_driver(found: *mut c_void) -> Option<Object> {
    let object = elf::object_at(found as usize)?;
    let followed = OBJECTS[Home::Cuda as usize].load(Ordering::Acquire);
    (!followed.is_null() && followed != object.handle() && Home::Cuda.is_in(&object))
        .then_some(object)
}

/// The entry point whose real function this is. The driver's linker may have folded identical code: of several names of one
/// function the first with the lowest `rank`.
pub fn at(function: *mut c_void, rank: impl Fn(Api) -> u8) -> Option<Api> {
    let is_it = |real: &AtomicPtr<c_void>| real.load(Ordering::Acquire) == function;
    let all = Api::ALL.iter().copied();
    all.filter(|api| [&REAL, &INNER].into_iter().any(|functions| is_it(&functions[*api as usize])))
        .min_by_key(|api| rank(*api))
}
