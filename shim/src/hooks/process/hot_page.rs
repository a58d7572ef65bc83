//! The pages with the pointer to the process's state ([`super::state`]) and with what the most frequent calls use: those
//! about PyTorch's blocks of which nothing is recorded (`families/torch_samples.rs`), and repeated launches of kernels
//! (`families/launch.rs`). A program's own work lies between two such calls, so each line of the cache counts: the pages are
//! a static, so that no pointer leads there, and what one call needs is on one line.
//!
//! The kernel empties the pages in a forked child. Empty, they let no call pass.

use crate::driver::api::Api;
use crate::model::block_sampling::BlockFigures;
use crate::runtime::faults::pages_granted;
use crate::runtime::forked;
use crate::runtime::handle_set::HandleSlots;
use std::mem::MaybeUninit;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release, Ordering::SeqCst,
};

/// Aligned to the largest pages that the kernel may have.
#[repr(C)]
#[cfg_attr(target_arch = "x86_64", repr(align(4096)))]
#[cfg_attr(not(target_arch = "x86_64"), repr(align(65536)))]
pub struct HotPage<S> {
    pub launches: Launches,
    /// The process's state, on a line with `allocator`.
    pub state: AtomicPtr<S>,
    /// The library that PyTorch's allocator is in, by what it calls.
    pub allocator: Caller<PASSING>,
    /// The first device's are on the line after the allocator's, which processors load with it.
    pub figures: BlockFigures,
    pub reports: Reports<S>,
}

/// Functions that report PyTorch's blocks.
pub const REPORTING: usize = 2;
/// Functions that PyTorch's allocator calls, and whose calls may pass: these, and two that say how to round a request up.
pub const PASSING: usize = 4;

/// A library that calls functions of this one: the first one that did.
#[repr(C)]
pub struct Caller<const N: usize> {
    /// 0 less its start: an addition takes three bytes less than a subtraction.
    less_start: AtomicUsize,
    /// The library's length for each function whose calls may pass; 0: they may not.
    bytes: [AtomicU32; N],
    /// The functions that it is linked to.
    real: [AtomicUsize; N],
}

/// What a call about a block that is recorded needs.
#[repr(C, align(64))]
pub struct Reports<S> {
    /// The process's state; null: not all blocks are recorded, or none was yet.
    recorder: AtomicPtr<S>,
    /// The library that reports blocks.
    pub library: Caller<REPORTING>,
    /// Blocks are recorded without stacks.
    without_stacks: AtomicBool,
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

/// Two lines long, so that the allocator's and the next one are a pair.
#[repr(C, align(128))]
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
        self.forget_libraries();
        self.launches.forget();
        self.figures.forget();
        self.reports.recorder.store(std::ptr::null_mut(), Release);
    }

    /// The next call of each library comes by the slow path.
    pub fn forget_libraries(&self) {
        let lengths = self.allocator.bytes.iter().chain(&self.reports.library.bytes);
        lengths.for_each(|bytes| bytes.store(0, SeqCst));
    }
}

/// The page is empty in each child that is forked from now on: by the kernel, or where it cannot (before Linux 4.14), by
/// `forget`.
pub fn empty_in_children<S>(page: &'static HotPage<S>, forget: extern "C" fn()) {
    static IS_FORGOTTEN: AtomicBool = AtomicBool::new(false);
    let at = (&raw const *page).cast_mut().cast();
    // SAFETY: whole pages of this library. Static zero bytes are anonymous memory; elsewhere the kernel refuses.
    let wiped = pages_granted("state")
        && unsafe { libc::madvise(at, size_of::<HotPage<S>>(), libc::MADV_WIPEONFORK) == 0 };
    if !wiped && !IS_FORGOTTEN.swap(true, Relaxed) {
        forked::in_child(forget);
    }
}

impl<S> Reports<S> {
    /// The process's state, if all blocks are recorded.
    #[inline(always)]
    pub fn recorder(&self) -> Option<&'static S> {
        // SAFETY: null, or from a reference that lives as long.
        unsafe { self.recorder.load(Acquire).as_ref() }
    }

    #[inline(always)]
    pub fn takes_no_stacks(&self) -> bool {
        self.without_stacks.load(Relaxed)
    }

    /// All blocks are recorded from now on.
    pub fn record(&self, recorder: &'static S, with_stacks: bool) {
        self.without_stacks.store(!with_stacks, Relaxed);
        self.recorder.store((&raw const *recorder).cast_mut(), Release);
    }

    /// Where this function's calls by the code at `caller` go.
    #[inline(always)]
    pub fn real(&self, function: usize, caller: usize) -> Option<usize> {
        // The remainder: without a look at the length.
        let function = function % REPORTING;
        self.library.calls(function, caller).then(|| self.library.real(function))
    }
}

impl<const N: usize> Caller<N> {
    /// Whether this function's calls by the code at `caller` may pass: to [`Caller::real`].
    #[inline(always)]
    pub fn calls(&self, function: usize, caller: usize) -> bool {
        let bytes = self.bytes[function].load(Acquire) as usize;
        self.less_start.load(Relaxed).wrapping_add(caller) < bytes
    }

    #[inline(always)]
    pub fn real(&self, function: usize) -> usize {
        self.real[function].load(Relaxed)
    }

    pub fn is_known(&self, function: usize) -> bool {
        self.bytes[function].load(Relaxed) != 0
    }

    /// From now on calls of this function by this library may pass. `real`: 0 if it is not linked to one.
    pub fn set(&self, function: usize, library: core::ops::Range<usize>, real: usize) {
        let (Ok(bytes), true) = (u32::try_from(library.len()), real != 0) else { return };
        // Threads that come here at once store the same, but for two copies of PyTorch: the first stays.
        let less_start = library.start.wrapping_neg();
        let known = self.less_start.compare_exchange(0, less_start, Relaxed, Relaxed);
        if known.is_err_and(|known| known != less_start) {
            return;
        }
        self.real[function].store(real, Relaxed);
        self.bytes[function].store(bytes, Release);
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
        if !launched.has_at_home(function) {
            return None;
        }
        let real = self.real[Launches::place(api)?].load(Relaxed);
        (real != 0).then_some(real)
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
        assert_eq!(std::mem::offset_of!(Page, launches), 0);
        assert_eq!(std::mem::offset_of!(Page, state), 128);
        assert_eq!(std::mem::offset_of!(Page, figures), 192);
    }

    #[test]
    fn calls_pass_of_the_first_library_alone() {
        static PAGE: HotPage<u8> = HotPage::empty();
        let allocator = &PAGE.allocator;
        assert!(!allocator.calls(0, 0));
        allocator.set(0, 4096..8192, 16);
        allocator.set(1, 4096..8192, 0);
        (0..3).for_each(|function| allocator.set(function, 16384..20480, 32));
        assert_eq!(
            [4095, 4096, 8191, 8192, 16384].map(|at| allocator.calls(0, at)),
            [false, true, true, false, false]
        );
        assert_eq!(allocator.real(0), 16);
        assert!(!allocator.calls(1, 4096), "it is not linked to it");
        assert!(!allocator.is_known(2));
        PAGE.forget();
        assert!(!allocator.calls(0, 4096));
    }

    #[test]
    fn reports_of_the_first_library_find_their_functions() {
        static PAGE: HotPage<u8> = HotPage::empty();
        let reports = &PAGE.reports;
        assert_eq!(reports.real(0, 0), None);
        reports.library.set(0, 4096..8192, 16);
        (0..2).for_each(|function| reports.library.set(function, 16384..20480, 32));
        assert_eq!(
            [4095, 4096, 8191, 8192, 16384].map(|at| reports.real(0, at)),
            [None, Some(16), Some(16), None, None]
        );
        assert_eq!(reports.real(1, 4096), None, "it is not linked to it");
        PAGE.forget();
        assert_eq!(reports.real(0, 4096), None);
    }
}
