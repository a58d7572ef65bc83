//! The functions of libc10.so by which PyTorch's allocator reports each block, and each request on
//! which it gave up, to its profiler. This library interposes them and forwards each call, so that the
//! profiler works as before.
//!
//! PyTorch calls them with a lock of its allocator held. So nothing here waits for the loader or for
//! the GIL, and nothing calls the driver. NVML is read at the next driver call.

use crate::driver::api::{Api, Home};
use crate::driver::depth;
use crate::driver::pointers;
use crate::hooks::call::after_call;
use crate::hooks::process::state::{self, Process};
use crate::hooks::process::timed;
use crate::interpose::linked::LinkedFunctions;
use crate::runtime::found::copied;
use crate::runtime::mapped_modules::{Loaded, holding};
use crate::runtime::{clock, elf::Object, errno, loader, panic_boundary};
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Runs a hook of this family. A process that has no state yet uses no GPU: nothing is recorded.
#[inline]
pub fn run(api: Api, hook: impl FnOnce(&'static Process)) {
    let Some(process) = state::existing() else { return };
    let Some(depth) = depth::enter() else { return };
    depth.settle();
    let errno = depth.errno();
    let kept = errno.get();
    let outcome = panic_boundary::catch(|| {
        let began = if depth.is_sampled() { clock::mono_ns() } else { 0 };
        process.usage.test_panic(api);
        hook(process);
        after_call::after_block(process);
        if began != 0 {
            timed::ended(process, began);
        }
    });
    if let Err(payload) = outcome {
        state::panicked(api, payload);
    }
    errno.set(kept);
    depth.leave();
}

/// The functions, in the order of [`index`]. The first ones report blocks.
static FUNCTIONS: LinkedFunctions<3> = LinkedFunctions::new([
    "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
    "_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE",
    "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE",
]);

#[inline(always)]
pub(super) const fn index(api: Api) -> usize {
    match api {
        Api::_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE => 0,
        Api::_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE => 1,
        _ => 2,
    }
}

/// The function that would have been called by the code at `caller` without the library.
#[inline]
pub fn real(api: Api, caller: usize) -> Option<usize> {
    FUNCTIONS.real(index(api), caller, || pointers::known(api).map(|real| real as usize))
}

/// The same for a caller that is not at hand, which is kept there; 0: there is none.
#[cold]
#[inline(never)]
pub(super) fn find(api: Api, caller: usize) -> usize {
    let found = real(api, caller);
    if let Some((library, [first, second, _])) = FUNCTIONS.known_caller(caller) {
        copied(|| state::hot().reports.set(library, [first, second]));
    }
    found.unwrap_or(0)
}

/// Where samples are recorded: calls of this library may pass.
pub fn may_pass(api: Api, caller: usize) {
    let allocator = &state::hot().allocator;
    if !allocator.is_known(index(api))
        && let Some((library, real)) = FUNCTIONS.known_caller(caller)
    {
        pass(index(api), library, real[index(api)]);
    }
}

/// From now on calls of this function of the allocator's by this library may pass.
pub(super) fn pass(function: usize, library: Range<usize>, real: usize) {
    copied(|| state::hot().allocator.set(function, library, real));
}

/// The libraries that have called these functions.
pub fn callers() -> impl Iterator<Item = Loaded> {
    FUNCTIONS.callers().filter_map(holding)
}

/// For C libraries in which the owner of an address cannot be found without a lock: finds PyTorch by
/// its name, at a time when the loader may be called.
pub fn find_library() {
    if loader::find_object().is_none() {
        depth::inside(|| pointers::find(Home::Torch));
    }
}

/// A function that is exported in front of the library of a usual name.
pub struct Interposed {
    linked: LinkedFunctions<1>,
    name: &'static str,
    library: &'static CStr,
    /// Where it is, for callers that are not linked to it; 0: not known.
    by_name: AtomicUsize,
}

impl Interposed {
    pub const fn new(name: &'static str, library: &'static CStr) -> Interposed {
        let linked = LinkedFunctions::new([name]);
        Interposed { linked, name, library, by_name: AtomicUsize::new(0) }
    }

    /// The function that the code at `caller` would have called without the export.
    #[inline]
    pub fn real(&self, caller: usize) -> Option<usize> {
        self.linked.real(0, caller, || self.by_name())
    }

    /// The same for a library that is linked to it and has called before: neither a lock nor the loader.
    #[inline(always)]
    pub fn known(&self, caller: usize) -> Option<usize> {
        self.linked.known(0, caller).filter(|real| *real != 0)
    }

    /// Where such a library is, and its function.
    pub fn known_caller(&self, caller: usize) -> Option<(Range<usize>, usize)> {
        self.linked.known_caller(caller).map(|(library, [real])| (library, real))
    }

    /// Whether this library has a function of the name.
    pub fn is_in(&self, object: &Object) -> bool {
        object.function(self.name.as_bytes()).is_some()
    }

    /// The loader is asked: not for functions that are called below PyTorch's lock.
    #[cold]
    fn by_name(&self) -> Option<usize> {
        let kept = self.by_name.load(Ordering::Relaxed);
        if kept != 0 {
            return Some(kept);
        }
        let errno = errno::get();
        let open = || loader::dlopen(self.library, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        let handle = depth::inside(open);
        errno::set(errno);
        if handle.is_null() {
            return None;
        }
        // SAFETY: `dlopen` returned the handle, and it is never closed.
        let object = unsafe { Object::of_handle(handle) };
        let found = object.function(self.name.as_bytes())?;
        self.by_name.store(found, Ordering::Relaxed);
        Some(found)
    }
}
