//! The functions of PyTorch's libraries that this library exports in front of them. Each call goes on to the real function, so
//! that PyTorch works as before: its profiler gets each block, and each request on which the allocator gave up.
//!
//! PyTorch calls most of them with a lock of its allocator held. So nothing here waits for the loader or for
//! the GIL, and nothing calls the driver. NVML is read at the next driver call. The loader is asked for a function by its name
//! only where the caller is linked to no library that has it: for those that report blocks in cuInit, for others at the call.

use crate::driver::api::{Api, Home};
use crate::driver::depth;
use crate::hooks::call::beside;
use crate::hooks::families::torch_nodes::NUMBER;
use crate::hooks::families::torch_requests::DIVISIONS_OF_CUDA;
use crate::hooks::families::torch_streams::SET_CURRENT;
use crate::hooks::process::hot_page::{PASSING, REPORTING};
use crate::hooks::process::state::{self, Process};
use crate::interpose::linked::LinkedFunction;
use crate::runtime::found::copied;
use crate::runtime::mapped_modules::{Loaded, holding};
use crate::runtime::{elf::Object, errno, loader};

/// The functions, in the order of [`index`].
static LINKED: [LinkedFunction; Api::COUNT - FIRST] =
    [const { LinkedFunction::without_callers() }; Api::COUNT - FIRST];

const FIRST: usize = Api::_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE as usize;
/// Those that report blocks, and requests that got none.
const REPORTS: [Api; 3] = [
    Api::_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE,
    Api::_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE,
    Api::_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE,
];

/// The place of the function in its section of the table, which is the last one.
#[inline(always)]
pub(super) const fn index(api: Api) -> usize {
    api as usize - FIRST
}

/// Runs a hook of this family. A process that has no state yet uses no GPU: nothing is recorded.
#[inline]
pub fn run(api: Api, hook: impl FnOnce(&'static Process)) {
    beside(api.name(), |process| {
        if let Some(process) = process {
            process.usage.test_panic(api);
            hook(process);
        }
    });
}

/// The function that would have been called by the code at `caller` without the library.
#[inline]
pub fn real(api: Api, caller: usize) -> Option<usize> {
    let (linked, name) = (&LINKED[index(api)], api.name());
    linked.real(name, caller, || if REPORTS.contains(&api) { None } else { by_name(api) })
}

/// The same for a library that is linked to it and has called before: neither a lock nor the loader.
#[inline(always)]
pub fn known(api: Api, caller: usize) -> Option<usize> {
    LINKED[index(api)].known(caller).map(|known| known.real)
}

/// The function that reports blocks, for a caller that is not at hand, which is kept there; 0: there is none.
#[cold]
#[inline(never)]
pub(super) fn find(api: Api, caller: usize) -> usize {
    let (found, function) = (real(api, caller), index(api));
    if let Some(known) = LINKED[function].known(caller) {
        let library = &state::hot().reports.library;
        copied(|| library.set(function, known.library.clone(), known.real));
    }
    found.unwrap_or(0)
}

/// Where samples are recorded: calls of this library may pass.
pub fn may_pass(caller: usize) {
    let allocator = &state::hot().allocator;
    for (function, linked) in LINKED.iter().enumerate().take(PASSING) {
        if !allocator.is_known(function)
            && let Some(known) = linked.known(caller)
        {
            copied(|| allocator.set(function, known.library.clone(), known.real));
        }
    }
}

/// The libraries that have reported blocks.
pub fn callers() -> impl Iterator<Item = Loaded> {
    LINKED[..REPORTING].iter().flat_map(LinkedFunction::callers).filter_map(holding)
}

/// For C libraries in which the owner of an address cannot be found without a lock: finds what reports blocks by
/// its name, at a time when the loader may be called.
pub fn find_reports() {
    if loader::find_object().is_none() {
        for api in REPORTS {
            LINKED[index(api)].named(|| by_name(api));
        }
    }
}

/// The function of PyTorch's library of the usual name, which then stays loaded.
#[cold]
fn by_name(api: Api) -> Option<usize> {
    let library = match api {
        NUMBER => c"libtorch_cpu.so",
        SET_CURRENT | DIVISIONS_OF_CUDA => c"libc10_cuda.so",
        _ => Home::Torch.library(),
    };
    let kept = errno::get();
    let handle = depth::inside(|| loader::dlopen(library, libc::RTLD_LAZY | libc::RTLD_NOLOAD));
    errno::set(kept);
    // SAFETY: `dlopen` returned the handle, and it is never closed.
    let object = (!handle.is_null()).then(|| unsafe { Object::of_handle(handle) });
    object?.function(api.name().as_bytes())
}
