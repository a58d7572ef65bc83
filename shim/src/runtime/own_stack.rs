//! Runs work on a separate stack if the program's may be too small: threads and fibers may have 16 KiB,
//! and the main thread's stack may not be able to grow. A few are part of the library's image, and take no memory before
//! their first use. Where all of them are in use, one is mapped for the
//! work alone. If none can be mapped, the work is left out: it is the recording's, which then ends as without host
//! memory ([`reserve::ran_out`]).
//!
//! Signals are blocked meanwhile: a handler would find less stack than the program
//! provided, or jump away. Such work must not call the driver, the loader, or other code outside this
//! library. A panic is caught at the switch and resumed on the original stack.

use crate::runtime::faults::pages_granted;
use crate::runtime::task::{SignalsBlocked, call};
use crate::runtime::tls::thread_cells;
use crate::runtime::{hash_table, panic_boundary, reserve, stack_bounds};
use core::cell::{Cell, UnsafeCell};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};

/// Unoptimised code keeps every copy.
pub const BYTES: usize = if cfg!(debug_assertions) { 512 << 10 } else { 128 << 10 };
/// Work moves to a separate stack if less than this is left.
const ROOM: usize = if cfg!(debug_assertions) { 256 << 10 } else { 96 << 10 };
const PAGE: usize = 4096;

/// A stack that one thread uses at a time.
#[repr(C, align(4096))]
struct Stack {
    bytes: UnsafeCell<[u8; BYTES]>,
    is_taken: AtomicBool,
    /// Its lowest page cannot be touched.
    is_guarded: AtomicBool,
}

// SAFETY: the bytes are used only by the thread that has taken the stack.
unsafe impl Sync for Stack {}

static STACKS: [Stack; 8] = [const {
    let [is_taken, is_guarded] = [const { AtomicBool::new(false) }; 2];
    Stack { bytes: UnsafeCell::new([0; BYTES]), is_taken, is_guarded }
}; 8];

thread_cells! {
    /// The lowest address of the separate stack that this thread is on; 0: none.
    fn elsewhere() -> &Cell<usize>, 8 bytes of the block at 320
}

impl Stack {
    fn take(&self) -> bool {
        !self.is_taken.load(Ordering::Relaxed) && !self.is_taken.swap(true, Ordering::Acquire)
    }

    fn low(&self) -> usize {
        self.bytes.get() as usize
    }
}

/// Maps a stack of [`BYTES`]. Returns its lowest address; its lowest page is a guard.
fn map() -> Option<usize> {
    let low = pages_granted("stack").then(|| hash_table::pages(BYTES).ok())?? as usize;
    guard(low);
    Some(low)
}

fn guard(low: usize) {
    // SAFETY: the lowest page of a stack that nobody has used.
    unsafe { libc::mprotect(low as *mut c_void, PAGE, libc::PROT_NONE) };
}

/// A stack while it is used.
pub struct Taken {
    low: usize,
    /// `None`: mapped for this use.
    kept: Option<&'static Stack>,
}

impl Taken {
    /// Its upper end.
    pub fn top(&self) -> usize {
        self.low + BYTES
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        match self.kept {
            Some(stack) => stack.is_taken.store(false, Ordering::Release),
            None => hash_table::unmap(self.low as *mut u8, BYTES),
        }
    }
}

/// A stack that nobody uses.
pub fn take() -> Option<Taken> {
    let Some(kept) = STACKS.iter().find(|stack| stack.take()) else {
        return map().map(|low| Taken { low, kept: None });
    };
    // LeakSanitizer reads the library's image.
    if !cfg!(sanitized) && !kept.is_guarded.swap(true, Ordering::Relaxed) {
        guard(kept.low());
    }
    Some(Taken { low: kept.low(), kept: Some(kept) })
}

/// Whether this thread is on a separate stack: its own, or as a task.
fn is_ours(sp: usize) -> bool {
    let elsewhere = elsewhere().get();
    elsewhere != 0 && sp.wrapping_sub(elsewhere) < BYTES
        || STACKS.as_ptr_range().contains(&(sp as *const Stack))
}

#[inline(always)]
fn stack_pointer() -> usize {
    let pointer;
    // SAFETY: reads a register.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack))
    };
    // SAFETY: reads a register.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("mov {}, sp", out(reg) pointer, options(nomem, nostack))
    };
    pointer
}

/// Whether this stack has too little room for work that must run on it, such as the loader's.
pub fn is_short_here() -> bool {
    stack_bounds::is_short(stack_pointer(), 48 << 10)
}

/// Runs `work` on this stack, or on a separate one if little of this one is left. `None`: there is none, and the
/// recording ends.
#[inline]
pub fn run<R>(work: impl FnOnce() -> R) -> Option<R> {
    if stack_bounds::has_room(stack_pointer(), ROOM) { Some(work()) } else { run_elsewhere(work) }
}

#[cold]
#[inline(never)]
pub fn run_elsewhere<R>(work: impl FnOnce() -> R) -> Option<R> {
    if is_ours(stack_pointer()) {
        return Some(work());
    }
    let result = {
        let _blocked = SignalsBlocked::new();
        take().map(|stack| on(&stack, work))
    };
    if result.is_none() {
        reserve::ran_out();
    }
    result.map(|result| result.unwrap_or_else(|payload| std::panic::resume_unwind(payload)))
}

type Outcome<R> = Result<R, Box<dyn std::any::Any + Send>>;

fn on<R>(stack: &Taken, work: impl FnOnce() -> R) -> Outcome<R> {
    let (mut work, mut outcome) = (Some(work), None);
    let mut enter = || outcome = work.take().map(panic_boundary::catch);
    let mut enter: &mut dyn FnMut() = &mut enter;
    let before = elsewhere().replace(stack.low);
    // SAFETY: this thread has taken the stack until the switch returns.
    unsafe { switch(call, &mut enter, stack.top()) };
    elsewhere().set(before);
    outcome.unwrap_or_else(|| Err(Box::new("work on a stack of ours did not end")))
}

/// What [`switch`] calls, with this argument.
type Entry = extern "C" fn(Work<'_>);
type Work<'a> = &'a mut &'a mut dyn FnMut();

/// Calls `enter(work)` with the stack pointer at `top`. Unwinders follow the frame pointer.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn switch(enter: Entry, work: Work<'_>, top: usize) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdx",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn switch(enter: Entry, work: Work<'_>, top: usize) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        // `bti c`
        "hint 34",
        "stp x29, x30, [sp, -16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "mov x29, sp",
        ".cfi_def_cfa_register x29",
        "mov x9, x0",
        "mov x0, x1",
        "mov sp, x2",
        "blr x9",
        "mov sp, x29",
        ".cfi_def_cfa_register sp",
        "ldp x29, x30, [sp], 16",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "ret",
        ".cfi_endproc",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::faults::tests::NO_PAGES;

    /// In a child, whose stacks other tests do not use.
    fn alone(test: impl FnOnce() -> bool) {
        let test = || {
            STACKS.iter().for_each(|stack| stack.is_taken.store(false, Ordering::Relaxed));
            test() && STACKS.iter().all(|stack| !stack.is_taken.load(Ordering::Relaxed))
        };
        assert_eq!(testkit::in_child(test), Ok(true));
    }

    #[test]
    fn work_is_done_elsewhere() {
        alone(|| {
            let here = stack_pointer();
            let there = run_elsewhere(|| {
                assert!(is_ours(stack_pointer()));
                assert_eq!(run_elsewhere(|| 5), Some(5), "and stays there");
                let mut deep = [1u8; 40 << 10];
                core::hint::black_box(&mut deep);
                stack_pointer()
            });
            let there = there.unwrap();
            there.abs_diff(here) > PAGE && is_ours(there) && !is_ours(here)
        });
    }

    #[test]
    fn a_stack_is_mapped_where_all_are_in_use_and_work_is_left_out_where_none_can_be() {
        alone(|| {
            STACKS.iter().for_each(|stack| assert!(stack.take()));
            // Another test may have used it.
            let was_used = reserve::is_used();
            let there = run_elsewhere(|| {
                assert!(is_ours(stack_pointer()));
                assert_eq!(
                    run_elsewhere(stack_pointer).unwrap().abs_diff(stack_pointer()) >> 16,
                    0
                );
                stack_pointer()
            });
            assert!(!is_ours(there.unwrap()), "it is unmapped");
            assert!(reserve::is_used() == was_used);
            NO_PAGES.set(true);
            assert_eq!(run_elsewhere(stack_pointer), None);
            assert!(reserve::is_used());
            STACKS.iter().for_each(|stack| stack.is_taken.store(false, Ordering::Relaxed));
            true
        });
    }

    #[test]
    #[cfg_attr(sanitized, ignore = "AddressSanitizer does not follow a change of the stack")]
    fn a_panic_on_the_other_stack_comes_back() {
        alone(|| {
            let panics = || run_elsewhere(|| std::panic::resume_unwind(Box::new(7u8)));
            let panicked: Result<Option<()>, _> = std::panic::catch_unwind(panics);
            panicked.unwrap_err().downcast_ref::<u8>() == Some(&7)
        });
    }

    #[test]
    fn where_there_is_room_nothing_is_switched() {
        let far = std::thread::Builder::new().stack_size(2 << 20);
        let here = far.spawn(|| run(stack_pointer)).unwrap().join().unwrap().unwrap();
        assert!(!is_ours(here));
        let small = std::thread::Builder::new().stack_size(64 << 10);
        let here = small.spawn(|| run(stack_pointer)).unwrap().join().unwrap().unwrap();
        assert!(is_ours(here));
    }
}
