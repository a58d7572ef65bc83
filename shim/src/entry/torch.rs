//! PyTorch's door. Its allocator tells its profiler of every block through functions of libc10.so;
//! since we are in front of that library, it tells us. We hand each call on, so that the profiler
//! works as without us.
//!
//! Such a call comes with a lock of PyTorch's allocator held, so nothing here waits for the loader
//! or for Python's lock, and nothing asks the driver. The function to hand on to is found without
//! the loader's help: the library that calls us is linked to the one that defines it, so some of
//! the addresses that the loader has put into the caller lie there.

use super::api::{Api, Home};
use super::elf::Object;
use super::{depth, errno, loader, real as table, shield};
use crate::capture::native::modules::{Loaded, holding};
use crate::process::{self, Process};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Runs a hook of this family. A process that has no state yet uses no GPU: nothing is recorded.
#[inline]
pub(super) fn run(api: Api, hook: impl FnOnce(&'static Process)) {
    let Some(process) = process::existing() else { return };
    let Some(_depth) = depth::enter() else { return };
    let errno_at = errno::place();
    // SAFETY: this thread's own.
    let kept = unsafe { *errno_at };
    let outcome = shield::catch(|| {
        process.entry.test_panic(api);
        hook(process);
        process.recorder.after_block(process);
    });
    if let Err(payload) = outcome {
        process::panicked(api, payload);
    }
    // SAFETY: as above.
    unsafe { *errno_at = kept };
}

/// What a library that calls us is linked to.
struct Caller {
    /// 0: free, or not complete yet.
    start: AtomicUsize,
    end: AtomicUsize,
    /// By [`place`]; 0: it has none.
    real: [AtomicUsize; APIS],
}

const APIS: usize = 3;
/// libc10, libc10_cuda and libtorch_cpu call; there is room for a second PyTorch.
static CALLERS: [Caller; 8] = [const {
    Caller {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        real: [const { AtomicUsize::new(0) }; APIS],
    }
}; 8];
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Of an entry point of this family.
fn place(api: Api) -> usize {
    match api {
        Api::_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE => 0,
        Api::_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE => 1,
        _ => 2,
    }
}

/// The function that would have been called without us by the code at `caller`.
#[inline]
pub(super) fn real(api: Api, caller: usize) -> Option<usize> {
    for known in &CALLERS {
        let start = known.start.load(Ordering::Acquire);
        if start == 0 {
            break;
        }
        if (start..known.end.load(Ordering::Relaxed)).contains(&caller) {
            let real = known.real[place(api)].load(Ordering::Relaxed);
            return if real != 0 { Some(real) } else { by_name(api) };
        }
    }
    meet(api, caller)
}

/// As found by [`look`].
fn by_name(api: Api) -> Option<usize> {
    table::known(api).map(|real| real as usize)
}

#[cold]
fn meet(api: Api, caller: usize) -> Option<usize> {
    let Some(library) = holding(caller) else { return by_name(api) };
    // SAFETY: it has just called us.
    let object = unsafe { library.object() };
    let found = defining(&object, api);
    let at = TAKEN.fetch_add(1, Ordering::Relaxed);
    if let (Some(target), Some(slot)) = (found.as_ref(), CALLERS.get(at)) {
        for &each in Api::ALL.iter().filter(|each| each.home() == Home::Torch) {
            let real = target.function(each.name().as_bytes()).unwrap_or(0);
            slot.real[place(each)].store(real, Ordering::Relaxed);
        }
        slot.end.store(library.end, Ordering::Relaxed);
        slot.start.store(library.start, Ordering::Release);
    }
    match found {
        Some(target) => target.function(api.name().as_bytes()),
        None => by_name(api),
    }
}

/// The library that defines the function for this one: itself, or one that it is linked to.
fn defining(caller: &Object, api: Api) -> Option<Object> {
    let ours = holding(defining as *const () as usize)?;
    let defines = |object: &Object| object.function(api.name().as_bytes()).is_some();
    if defines(caller) {
        return Some(*caller);
    }
    let mut last: Option<Loaded> = None;
    for address in caller.references() {
        let again = |library: &Loaded| (library.start..library.end).contains(&address);
        if again(&ours) || last.as_ref().is_some_and(again) {
            continue;
        }
        let Some(library) = holding(address) else { continue };
        last = Some(library);
        // SAFETY: the caller is linked to it, and runs.
        let object = unsafe { library.object() };
        if defines(&object) {
            return Some(object);
        }
    }
    None
}

/// For a C library that does not tell without a lock where an address lies: looks for PyTorch by
/// its name, at a time when the loader may be asked.
pub fn look() {
    if loader::find_object().is_none() {
        super::inside(|| table::find(Home::Torch));
    }
}
