//! What is known of kernels and functions: which were launched before, which handles are kernels
//! of a library, how much local memory each context holds.

use crate::runtime::fallible_map::Map;
use crate::runtime::handle_set::HandleSet;
use crate::runtime::lock::Lock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use vramtrace_format::ContextId;

#[derive(Default)]
pub struct LaunchedKernels {
    launched: HandleSet,
    /// cuKernelGetFunction was called for them.
    loaded: HandleSet,
    /// More than one context was met: a library's kernel is launched first in each.
    several: AtomicBool,
    contexts: AtomicU32,
    /// CUkernel -> CUlibrary. A kernel can be launched like a function, and not be asked like one.
    kernels: Lock<Map<u64, u64>>,
    /// Local memory of a thread, in bytes, as high as it was in each context.
    local: Lock<Map<ContextId, u64>>,
}

impl LaunchedKernels {
    /// `context`: the calling thread's, as a number that keeps its handles apart from those of
    /// other contexts. It is asked for only where there is more than one.
    #[inline(always)]
    pub fn key(&self, function: usize, context: impl FnOnce() -> usize) -> usize {
        if self.several.load(Ordering::Relaxed) { function ^ context() } else { function }
    }

    /// Whether the function with this key was launched before.
    #[inline(always)]
    pub fn was_launched(&self, key: usize) -> bool {
        self.launched.has(key)
    }

    pub fn launched(&self, key: usize) {
        self.launched.add(key);
    }

    /// Whether the function of the kernel with this key was asked for before.
    pub fn was_loaded(&self, key: usize) -> bool {
        self.loaded.has(key)
    }

    pub fn loaded(&self, key: usize) {
        self.loaded.add(key);
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
        // Without memory for it, it is a function as any other.
        let _ = self.kernels.lock().insert(kernel, library);
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
        self.local.lock().get_or_insert(context, first).map_or(first, |known| *known)
    }

    pub fn set_local(&self, context: ContextId, bytes: u64) {
        // Without memory for it, it is measured again.
        let _ = self.local.lock().insert(context, bytes);
    }

    pub fn context_ended(&self, context: ContextId) {
        self.local.lock().remove(&context);
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_end_with_their_library() {
        let kernels = LaunchedKernels::default();
        kernels.has_kernel(16, 1);
        kernels.has_kernel(32, 2);
        kernels.launched(16);
        assert!(kernels.launched.has(16));
        kernels.library_ended(1);
        assert!(!kernels.is_kernel(16) && kernels.is_kernel(32) && !kernels.launched.has(16));
    }

    #[test]
    fn local_memory_is_a_high_mark_of_a_context() {
        let kernels = LaunchedKernels::default();
        assert_eq!(kernels.local(ContextId(1), || 1024), 1024);
        kernels.set_local(ContextId(1), 2048);
        assert_eq!(kernels.local(ContextId(1), || 1024), 2048);
        kernels.context_ended(ContextId(1));
        assert_eq!(kernels.local(ContextId(1), || 1024), 1024);
    }
}
