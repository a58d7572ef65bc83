//! What is known of kernels and functions: which were launched before, which handles are kernels
//! of a library, how much local memory each context holds.

use crate::entry::cuda::{CUresult, Ctx};
use crate::entry::{driver, inside};
use crate::lock::Lock;
use crate::process;
use crate::seen::Seen;
use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use vramtrace_format::ContextId;

#[derive(Default)]
pub struct Kernels {
    launched: Seen,
    /// cuKernelGetFunction was called for them.
    loaded: Seen,
    /// More than one context was met: a library's kernel is launched first in each.
    several: AtomicBool,
    contexts: AtomicU32,
    /// CUkernel -> CUlibrary. A kernel can be launched like a function, and not be asked like one.
    kernels: Lock<HashMap<u64, u64>>,
    /// Local memory of a thread, in bytes, as high as it was in each context.
    local: Lock<HashMap<ContextId, u64>>,
}

impl Kernels {
    #[inline(always)]
    fn key(&self, function: usize) -> usize {
        if self.several.load(Ordering::Relaxed) { function ^ here() } else { function }
    }

    pub fn launched(&self, function: u64) {
        self.launched.add(self.key(function as usize));
    }

    /// Whether this kernel's function was asked for before.
    pub fn was_loaded(&self, kernel: u64) -> bool {
        self.loaded.has(self.key(kernel as usize))
    }

    pub fn loaded(&self, kernel: u64) {
        self.loaded.add(self.key(kernel as usize));
    }

    pub fn met_context(&self) {
        if self.contexts.fetch_add(1, Ordering::Relaxed) > 0 {
            self.several.store(true, Ordering::Relaxed);
        }
    }

    /// Handles may be given out again.
    pub fn forget(&self) {
        self.launched.forget();
        self.loaded.forget();
    }

    pub fn has_kernel(&self, kernel: u64, library: u64) {
        self.kernels.lock().insert(kernel, library);
    }

    pub fn is_kernel(&self, handle: u64) -> bool {
        self.kernels.lock().contains_key(&handle)
    }

    pub fn library_ended(&self, library: u64) {
        self.kernels.lock().retain(|_, of| *of != library);
        self.forget();
    }

    /// The highest so far; `first`: what a context starts with.
    pub fn local(&self, context: ContextId, first: impl FnOnce() -> u64) -> u64 {
        if let Some(known) = self.local.lock().get(&context) {
            return *known;
        }
        let first = first();
        *self.local.lock().entry(context).or_insert(first)
    }

    pub fn set_local(&self, context: ContextId, bytes: u64) {
        self.local.lock().insert(context, bytes);
    }

    pub fn context_ended(&self, context: ContextId) {
        self.local.lock().remove(&context);
        self.forget();
    }
}

/// The calling thread's context, as a number that keeps handles apart.
#[cold]
fn here() -> usize {
    let mut context: Ctx = null_mut();
    // SAFETY: room for the answer.
    let ask = || driver().ctx_get_current.map(|ask| unsafe { ask(&mut context) });
    let _: Option<CUresult> = inside(ask);
    // Handles of functions and contexts lie near each other: turned away.
    (context as usize).rotate_left(32)
}

/// Whether this function was launched here before: the whole of what a repeated launch costs.
#[inline(always)]
pub fn is_known(function: *mut core::ffi::c_void) -> bool {
    process::existing().is_some_and(|p| p.kernels.launched.has(p.kernels.key(function as usize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_end_with_their_library() {
        let kernels = Kernels::default();
        kernels.has_kernel(16, 1);
        kernels.has_kernel(32, 2);
        kernels.launched(16);
        assert!(kernels.launched.has(16));
        kernels.library_ended(1);
        assert!(!kernels.is_kernel(16) && kernels.is_kernel(32) && !kernels.launched.has(16));
    }

    #[test]
    fn local_memory_is_a_high_mark_of_a_context() {
        let kernels = Kernels::default();
        assert_eq!(kernels.local(ContextId(1), || 1024), 1024);
        kernels.set_local(ContextId(1), 2048);
        assert_eq!(kernels.local(ContextId(1), || 1024), 2048);
        kernels.context_ended(ContextId(1));
        assert_eq!(kernels.local(ContextId(1), || 1024), 1024);
    }
}
