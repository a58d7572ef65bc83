//! Kernels and functions: those launched before, handles that are kernels of a library, and the local
//! memory of each context.

use crate::runtime::fallible_map::Map;
use crate::runtime::handle_set::HandleSet;
use crate::runtime::lock::Lock;
use std::sync::atomic::{AtomicU32, Ordering};
use vramtrace_format::ContextId;

#[derive(Default)]
pub struct LaunchedKernels {
    /// The functions that were launched; with one context their keys are their handles.
    pub launched: HandleSet,
    /// Kernels for which cuKernelGetFunction was called.
    pub loaded: HandleSet,
    /// Contexts that were seen. If there is more than one, a library's kernel has a first launch in each.
    contexts: AtomicU32,
    /// CUkernel -> CUlibrary. A kernel can be launched like a function, but has its own query
    /// functions.
    kernels: Lock<Map<u64, u64>>,
    /// The largest local memory per thread so far, in bytes, for each context.
    local: Lock<Map<ContextId, u64>>,
}

impl LaunchedKernels {
    /// `context` returns a number of the calling thread's context, to distinguish launches in several
    /// contexts. It is called only if there is more than one.
    #[inline(always)]
    pub fn key(&self, function: usize, context: impl FnOnce() -> usize) -> usize {
        if self.contexts.load(Ordering::Relaxed) > 1 { function ^ context() } else { function }
    }

    /// Whether the function with this key was launched before.
    #[inline(always)]
    pub fn was_launched(&self, key: usize) -> bool {
        self.launched.has(key)
    }

    pub fn launched(&self, key: usize) {
        self.launched.add(key);
    }

    /// Whether there are, or were, several contexts.
    pub fn are_contexts_several(&self) -> bool {
        self.contexts.load(Ordering::SeqCst) > 1
    }

    pub fn loaded(&self, key: usize) {
        self.loaded.add(key);
    }

    /// Returns whether there are several contexts from now on.
    pub fn context_seen(&self) -> bool {
        self.contexts.fetch_add(1, Ordering::SeqCst) > 0
    }

    /// Clears all: the driver may reuse handles.
    pub fn forget(&self) {
        self.launched.forget();
        self.loaded.forget();
    }

    pub fn has_kernel(&self, kernel: u64, library: u64) {
        // Without host memory for it, the kernel is treated as a function.
        let _ = self.kernels.lock().insert(kernel, library);
    }

    pub fn is_kernel(&self, handle: u64) -> bool {
        self.kernels.lock().contains_key(&handle)
    }

    pub fn library_ended(&self, library: u64) {
        self.kernels.lock().retain(|_, of| *of != library);
        self.forget();
    }

    /// The largest so far; `first` returns the value at the context's creation.
    pub fn local(&self, context: ContextId, first: impl FnOnce() -> u64) -> u64 {
        if let Some(known) = self.local.lock().get(&context) {
            return *known;
        }
        let first = first();
        self.local.lock().get_or_insert(context, first).map_or(first, |known| *known)
    }

    pub fn set_local(&self, context: ContextId, bytes: u64) {
        // Without host memory for it, it is measured again.
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
