//! The pages with the pointer to the process's state ([`super::state`]) and with what the most frequent calls use: those
//! about PyTorch's blocks of which nothing is recorded (`families/torch_samples.rs`), and repeated launches of kernels
//! (`families/launch.rs`). A program's own work lies between two such calls, so each line of the cache counts: the pages are
//! a static, so that no pointer leads there, and what one call needs is on one line.
//!
//! The kernel empties the pages in a forked child. Empty, they let no call pass.

use crate::driver::api::Api;
use crate::driver::depth;
use crate::model::block_sampling::BlockFigures;
use crate::runtime::errno;
use crate::runtime::faults::{Site, pages_granted};
use crate::runtime::forked;
use crate::runtime::handle_set::HandleSlots;
use std::mem::MaybeUninit;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
    Ordering::SeqCst,
};

/// Aligned to the largest pages that the kernel may have.
#[repr(C)]
#[cfg_attr(target_arch = "x86_64", repr(align(4096)))]
#[cfg_attr(not(target_arch = "x86_64"), repr(align(65536)))]
pub struct HotPage<S> {
    pub state: AtomicPtr<S>,
    pub block_calls: BlockCalls,
    pub launches: Launches,
    pub figures: BlockFigures,
}

/// Functions that report PyTorch's blocks.
pub const BLOCK_FUNCTIONS: usize = 2;

/// A library that reports blocks: the first one that did. On the line of the pointer to the state.
#[repr(C)]
pub struct BlockCalls {
    start: AtomicUsize,
    /// 0: not known yet.
    bytes: AtomicUsize,
    /// The same where its calls may pass; else 0.
    passing: AtomicUsize,
    /// The functions that it is linked to; 0: none.
    real: [AtomicUsize; BLOCK_FUNCTIONS],
    /// See [`depth::offset`] and [`errno::offset`].
    depth: AtomicUsize,
    errno: AtomicUsize,
}

/// The launching functions for which a repeated launch finds all on one line.
const LAUNCHING: [Api; 7] = [
    Api::cuLaunchKernel,
    Api::cuLaunchKernel_ptsz,
    Api::cuLaunchKernelEx,
    Api::cuLaunchKernelEx_ptsz,
    Api::cuLaunchCooperativeKernel,
    Api::cuLaunchCooperativeKernel_ptsz,
    Api::cuLaunch,
];

#[repr(C, align(64))]
pub struct Launches {
    /// The functions launched before. Null: none yet, or there are several contexts.
    launched: AtomicPtr<HandleSlots>,
    real: [AtomicUsize; LAUNCHING.len()],
}

impl<S> HotPage<S> {
    pub const fn empty() -> HotPage<S> {
        // SAFETY: pointers and numbers in atomics: zero bytes are valid.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// In a forked child, which has this one thread.
    pub fn forget(&self) {
        self.state.store(std::ptr::null_mut(), Release);
        self.block_calls.passing.store(0, Release);
        self.block_calls.bytes.store(0, Release);
        self.launches.forget();
        self.figures.forget();
    }
}

/// The page is empty in each child that is forked from now on: by the kernel, or where it cannot (before Linux 4.14), by
/// `forget`.
pub fn empty_in_children<S>(page: &'static HotPage<S>, forget: unsafe extern "C" fn()) {
    static IS_FORGOTTEN: AtomicBool = AtomicBool::new(false);
    let at = (&raw const *page).cast_mut().cast();
    // SAFETY: whole pages of this library. Static zero bytes are anonymous memory; elsewhere the kernel refuses.
    let wiped = pages_granted(Site::State)
        && unsafe { libc::madvise(at, size_of::<HotPage<S>>(), libc::MADV_WIPEONFORK) == 0 };
    if !wiped && !IS_FORGOTTEN.swap(true, Relaxed) {
        // SAFETY: a function of this library, which is never unloaded, and which stores to the page alone.
        unsafe { forked::in_child(forget) };
    }
}

impl BlockCalls {
    /// Where this function's calls by the code at `caller` go.
    #[inline(always)]
    pub fn real(&self, function: usize, caller: usize) -> Option<usize> {
        let bytes = self.bytes.load(Acquire);
        if caller.wrapping_sub(self.start.load(Relaxed)) >= bytes {
            return None;
        }
        Some(self.real[function].load(Relaxed)).filter(|real| *real != 0)
    }

    /// Whether calls by the code at `caller` may pass.
    #[inline(always)]
    pub fn may_pass(&self, caller: usize) -> bool {
        let bytes = self.passing.load(Acquire);
        caller.wrapping_sub(self.start.load(Relaxed)) < bytes
    }

    /// The next call of this thread, if it may pass.
    #[inline(always)]
    pub fn untimed(&self) -> Option<depth::Untimed> {
        // SAFETY: stored before `passing`, without which nothing passes.
        unsafe { depth::untimed(self.depth.load(Relaxed)) }
    }

    /// Keeps errno. The process has a state.
    #[inline(always)]
    pub fn errno(&self) -> errno::Kept {
        // SAFETY: stored before the state.
        unsafe { errno::Kept::at(self.errno.load(Relaxed)) }
    }

    /// Before the process has a state.
    pub fn begin(&self) {
        self.depth.store(depth::offset(), Relaxed);
        self.errno.store(errno::offset(), Relaxed);
    }

    /// From now on calls of the known library may pass.
    pub fn pass(&self) {
        let bytes = self.bytes.load(Acquire);
        if self.passing.load(Relaxed) != bytes {
            self.passing.store(bytes, Release);
        }
    }

    /// From now on calls of this library find their functions here.
    pub fn set(&self, library: core::ops::Range<usize>, real: [usize; BLOCK_FUNCTIONS]) {
        // Threads that come here at once store the same, but for two copies of PyTorch: the first stays.
        let start = self.start.compare_exchange(0, library.start, Relaxed, Relaxed);
        if start.is_err_and(|known| known != library.start) {
            return;
        }
        self.real.iter().zip(real).for_each(|(known, real)| known.store(real, Relaxed));
        self.bytes.store(library.len(), Release);
    }
}

impl Launches {
    #[inline(always)]
    fn place(api: Api) -> Option<usize> {
        LAUNCHING.iter().position(|launching| *launching as u16 == api as u16)
    }

    /// The real function, if this one was launched before.
    #[inline(always)]
    pub fn real(&self, api: Api, function: usize) -> Option<usize> {
        // SAFETY: null, or slots that are never unmapped.
        let launched = unsafe { self.launched.load(Acquire).as_ref() }?;
        let real = self.real[Launches::place(api)?].load(Relaxed);
        (launched.has_at_home(function) && real != 0).then_some(real)
    }

    /// A function was launched; `real` launches it. `are_several`: whether there are several contexts.
    pub fn set(
        &self,
        api: Api,
        real: usize,
        launched: Option<&'static HandleSlots>,
        are_several: impl FnOnce() -> bool,
    ) {
        let (Some(place), Some(launched)) = (Launches::place(api), launched) else { return };
        self.real[place].store(real, Relaxed);
        self.launched.store((&raw const *launched).cast_mut(), SeqCst);
        // A thread that makes a second context meanwhile clears it after this, or is seen.
        if are_several() {
            self.forget();
        }
    }

    /// Repeated launches are looked up by their context from now on.
    pub fn forget(&self) {
        self.launched.store(std::ptr::null_mut(), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_hold_what_a_call_needs() {
        type Page = HotPage<u8>;
        assert_eq!(std::mem::offset_of!(Page, launches), 64);
        assert_eq!(size_of::<Launches>(), 64);
        assert_eq!(std::mem::offset_of!(Page, figures), 128);
    }

    #[test]
    fn calls_pass_of_the_first_library_alone() {
        static PAGE: HotPage<u8> = HotPage::empty();
        let calls = &PAGE.block_calls;
        assert_eq!(calls.real(0, 0), None);
        calls.set(4096..8192, [16, 0]);
        calls.set(16384..20480, [32, 32]);
        assert_eq!(
            [4095, 4096, 8191, 8192, 16384].map(|at| calls.real(0, at)),
            [None, Some(16), Some(16), None, None]
        );
        assert_eq!(calls.real(1, 4096), None, "it is not linked to it");
        assert!(!calls.may_pass(4096));
        calls.pass();
        assert_eq!([4095, 4096, 8192].map(|at| calls.may_pass(at)), [false, true, false]);
        PAGE.forget();
        assert_eq!((calls.real(0, 4096), calls.may_pass(4096)), (None, false));
    }
}
