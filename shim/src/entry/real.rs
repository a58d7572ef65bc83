//! The real functions of libcuda and libnvidia-ml, and the map from a real address to our hook.
//!
//! Filled from the libraries' own symbol tables, all at once, when a name of the table is first
//! looked up with success or called. No lock: racing threads store the same values.

use super::api::{Api, Home};
use super::exports::HOOKS;
use super::{elf, loader};
use core::ffi::{CStr, c_void};
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

static REAL: [AtomicPtr<c_void>; Api::COUNT] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; Api::COUNT];

/// Address range of each home's object; end 0 = not found yet.
struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
}
static RANGES: [Range; 2] =
    [const { Range { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; 2];

impl Home {
    fn library(self) -> &'static CStr {
        match self {
            Home::Cuda => c"libcuda.so.1",
            Home::Nvml => c"libnvidia-ml.so.1",
        }
    }

    /// A file may serve under both names, and the loader keeps only the first: what counts
    /// is that it is one of the two by name and defines the function without which there is none.
    pub fn is_in(self, object: &elf::Object) -> bool {
        let essential: &[u8] = match self {
            Home::Cuda => b"cuDriverGetVersion",
            Home::Nvml => b"nvmlInit_v2",
        };
        (object.is_named("libcuda.so") || object.is_named("libnvidia-ml.so"))
            && object.function(essential).is_some()
    }

    fn range(self) -> &'static Range {
        &RANGES[self as usize]
    }

    /// Whether its object was found in the process.
    pub fn is_found(self) -> bool {
        self.range().end.load(Ordering::Acquire) != 0
    }

    /// Whether the address lies in its object, as far as that is known.
    pub fn contains(self, address: usize) -> bool {
        let end = self.range().end.load(Ordering::Acquire);
        (self.range().start.load(Ordering::Relaxed)..end).contains(&address)
    }
}

/// The real function, for our export: opens the library if nobody did.
#[inline]
pub fn function(api: Api) -> Option<*mut c_void> {
    let real = REAL[api as usize].load(Ordering::Relaxed);
    if real.is_null() { open(api) } else { Some(real) }
}

#[cold]
fn open(api: Api) -> Option<*mut c_void> {
    let home = api.home();
    if !find(home) {
        // A program that is linked against the library has it already; one that calls our export
        // without it (a weak reference, a plugin) would otherwise call into nothing.
        super::inside(|| loader::dlopen(home.library(), libc::RTLD_NOW));
        find(home);
    }
    known(api)
}

/// The real function if its library was found and has it.
pub fn known(api: Api) -> Option<*mut c_void> {
    let real = REAL[api as usize].load(Ordering::Acquire);
    (!real.is_null()).then_some(real)
}

/// Looks for the home's object among the loaded ones and fills the tables. `false`: it is not
/// loaded.
#[cold]
pub fn find(home: Home) -> bool {
    if home.is_found() {
        return true;
    }
    let mut path = [0_u8; libc::PATH_MAX as usize];
    let range = elf::objects(|object| {
        if !home.is_in(object) {
            return ControlFlow::Continue(());
        }
        for &api in Api::ALL.iter().filter(|api| api.home() == home) {
            if let Some(address) = object.function(api.name().as_bytes()) {
                REAL[api as usize].store(address as *mut c_void, Ordering::Release);
                remember(address, api);
            }
        }
        let bytes = object.path().to_bytes_with_nul();
        if bytes.len() <= path.len() {
            path[..bytes.len()].copy_from_slice(bytes);
        }
        ControlFlow::Break(object.range())
    });
    let Some((start, end)) = range else { return false };
    // Our pointers into it must stay good: it is not to be unloaded any more.
    if let Ok(path) = CStr::from_bytes_until_nul(&path)
        && !path.is_empty()
    {
        loader::dlopen(path, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
    }
    home.range().start.store(start, Ordering::Relaxed);
    home.range().end.store(end, Ordering::Release);
    true
}

/// Any function of the driver by name, for the calls that we make ourselves.
pub fn by_name(home: Home, name: &str) -> Option<*mut c_void> {
    elf::objects(|object| match home.is_in(object) {
        true => ControlFlow::Break(object.function(name.as_bytes())),
        false => ControlFlow::Continue(()),
    })
    .flatten()
    .map(|address| address as *mut c_void)
}

/// Real address -> entry point. One word a slot, address << 16 | number: set with one store, so
/// that a reader never sees half of it. Open addressing, at most 40 % full.
const SLOTS: usize = 512;
static MAP: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

fn slot_of(address: usize) -> usize {
    (address as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> (64 - 9)
}

fn remember(address: usize, api: Api) {
    if address >> 48 != 0 {
        return;
    }
    let word = (address as u64) << 16 | api as u64;
    let mut slot = slot_of(address);
    loop {
        match MAP[slot].compare_exchange(0, word, Ordering::Release, Ordering::Acquire) {
            Ok(_) => return,
            // Two names for one function: the first stands for both.
            Err(other) if other >> 16 == address as u64 => return,
            Err(_) => slot = (slot + 1) % SLOTS,
        }
    }
}

/// The entry point whose real function lies there.
pub fn at(address: usize) -> Option<Api> {
    let mut slot = slot_of(address);
    loop {
        match MAP[slot].load(Ordering::Acquire) {
            0 => return None,
            word if word >> 16 == address as u64 => {
                return Some(Api::ALL[(word & 0xffff) as usize]);
            }
            _ => slot = (slot + 1) % SLOTS,
        }
    }
}

/// Our function to hand out in place of the real one.
pub fn hook(api: Api) -> *mut c_void {
    HOOKS[api as usize].0 as *mut c_void
}
