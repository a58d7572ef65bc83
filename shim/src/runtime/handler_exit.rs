//! Leaving the interrupted code out of a signal handler, later: by `longjmp` or by `pthread_exit`.
//!
//! A handler that interrupts the recorder's own code and leaves it would keep the recorder's locks
//! for ever. So the request is kept ([`keep`]), the handler is made to return at once
//! ([`SignalReturn::make`]), and the request is carried out when the hook is done ([`perform`]): for the
//! program the signal came a little later.

use super::mapped_modules;
use super::stack_pages;
use super::tls::thread_block;
use core::ffi::{c_int, c_ulong, c_void};
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{Ordering, compiler_fence};

const REGISTERS: usize = if cfg!(target_arch = "aarch64") { 22 } else { 8 };

/// glibc's `jmp_buf`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct JumpBuffer {
    registers: [usize; REGISTERS],
    mask_was_saved: c_int,
    mask: [c_ulong; 16],
}

pub type Jump = unsafe extern "C-unwind" fn(*mut JumpBuffer, c_int) -> !;
pub type Exit = unsafe extern "C-unwind" fn(*mut c_void) -> !;

/// What a signal handler requested.
#[derive(Clone, Copy)]
pub enum Request {
    /// With the real function.
    Jump {
        real: Jump,
        to: *mut JumpBuffer,
        value: c_int,
    },
    Exit {
        real: Exit,
        result: *mut c_void,
    },
}

#[repr(C)]
struct Slot {
    request: Option<Request>,
    /// The program's may lie in the handler's frame.
    buffer: MaybeUninit<JumpBuffer>,
    /// The signal mask in the handler.
    mask: [c_ulong; 16],
}

thread_block!(fn slot() -> *mut Slot = "vramtrace_handler_exit", 512, align 16);

/// Keeps a request for [`perform`].
///
/// # Safety
/// The arguments fulfil the contract of the request's function, and the frame of a jump's target stays until
/// then.
pub unsafe fn keep(request: Request) {
    // SAFETY: this thread's own; the buffer has its registers, and a mask if it says so.
    unsafe {
        let slot = &mut *slot();
        if let Request::Jump { to, .. } = request {
            let buffer = slot.buffer.as_mut_ptr();
            (*buffer).registers = (*to).registers;
            (*buffer).mask_was_saved = (*to).mask_was_saved;
            if (*to).mask_was_saved != 0 {
                (*buffer).mask = (*to).mask;
            }
        }
        set_mask(None, Some(&mut slot.mask));
        slot.request = Some(request);
    }
    compiler_fence(Ordering::SeqCst);
}

fn set_mask(new: Option<&[c_ulong; 16]>, old: Option<&mut [c_ulong; 16]>) {
    let new = new.map_or(core::ptr::null(), |mask| mask.as_ptr().cast());
    let old = old.map_or(core::ptr::null_mut(), |mask| mask.as_mut_ptr().cast());
    // The thread's own, as by pthread_sigmask, which is not in the C library before glibc 2.32.
    // SAFETY: both are null or masks.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, new, old) };
}

/// Carries out the request that was kept.
#[cold]
pub fn perform() {
    // SAFETY: this thread's own.
    let slot = unsafe { &mut *slot() };
    let Some(request) = slot.request.take() else { return };
    // As the handler left it. A jump restores the mask that the program saved, if it did.
    set_mask(Some(&slot.mask), None);
    match request {
        // SAFETY: the contract of `keep`.
        Request::Jump { real, value, .. } => unsafe { real(slot.buffer.as_mut_ptr(), value) },
        // SAFETY: as above.
        Request::Exit { real, result } => unsafe { real(result) },
    }
}

impl JumpBuffer {
    /// Whether a jump to here leaves the frame at `frame`: the target lies above it on the same stack.
    ///
    /// # Safety
    /// `setjmp` has filled the buffer.
    pub unsafe fn leaves(to: *const JumpBuffer, frame: usize) -> bool {
        // SAFETY: the caller's contract; room for a buffer of our own.
        let (mangled, known) = unsafe {
            let mut own = MaybeUninit::<JumpBuffer>::uninit();
            let sp = save(own.as_mut_ptr());
            ((*to).registers[SP], Known { sp, mangled: (*own.as_ptr()).registers[SP] })
        };
        let target = known.demangled(mangled);
        target > frame && stack_pages::are_joined(frame, target)
    }
}

/// A stack pointer and its form in a buffer: glibc mixes it with a number of the process.
struct Known {
    sp: usize,
    mangled: usize,
}

#[cfg(target_arch = "x86_64")]
const SP: usize = 6;
#[cfg(target_arch = "aarch64")]
const SP: usize = 13;

impl Known {
    #[cfg(target_arch = "x86_64")]
    fn demangled(&self, mangled: usize) -> usize {
        const TURNS: u32 = 17;
        let guard = self.mangled.rotate_right(TURNS) ^ self.sp;
        mangled.rotate_right(TURNS) ^ guard
    }

    #[cfg(target_arch = "aarch64")]
    fn demangled(&self, mangled: usize) -> usize {
        mangled ^ self.mangled ^ self.sp
    }
}

unsafe extern "C" {
    fn _setjmp(buffer: *mut JumpBuffer) -> c_int;
}

/// Fills a buffer. Returns the stack pointer that is in it. Nobody may jump there.
///
/// # Safety
/// There is room for a buffer.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn save(buffer: *mut JumpBuffer) -> usize {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        "call [rip + {setjmp}@GOTPCREL]",
        // Where `setjmp` returns twice, a shadow stack must be adjusted.
        "mov rax, rsp",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        setjmp = sym _setjmp,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn save(buffer: *mut JumpBuffer) -> usize {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "hint 34",
        "stp x29, x30, [sp, -16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "bl {setjmp}",
        "mov x0, sp",
        "ldp x29, x30, [sp], 16",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "ret",
        ".cfi_endproc",
        setjmp = sym _setjmp,
    )
}

/// Whether an address above `here` on this stack lies in the frames of this library that are being run now,
/// so that no earlier frame can be there.
pub fn is_in_our_frames(here: usize, at: usize) -> bool {
    /// More than the frames of a hook's beginning.
    const MOST: usize = 16 << 10;
    if at < here || at - here > MOST {
        return false;
    }
    let ours = mapped_modules::holding(is_in_our_frames as *const () as usize);
    let ours = ours.filter(|_| has_unwinder());
    ours.is_some_and(|ours| {
        Search::until(Until::Others(ours.start..ours.end)).is_some_and(|caller| at < caller.sp)
    })
}

/// The way back from a signal handler: the code to which it returns, which makes the system call
/// `rt_sigreturn`, and the stack pointer there.
#[derive(Clone, Copy)]
pub struct SignalReturn {
    code: usize,
    sp: usize,
}

impl SignalReturn {
    /// Of the handler that interrupted code called from the frame at `frame`, the first one if handlers
    /// interrupted each other. `None`: the stack cannot be unwound that far.
    pub fn below(frame: usize) -> Option<SignalReturn> {
        Search::until(Until::Frame {
            frame,
            alternate: stack_pages::signal_stack().unwrap_or(0..0),
        })
    }

    /// Of the handler that interrupted this library's own instructions, or with `also_called` a function
    /// that it called.
    pub fn into_us(also_called: bool) -> Option<SignalReturn> {
        let here = SignalReturn::into_us as *const () as usize;
        let ours = mapped_modules::holding(here)?;
        Search::until(Until::Code { ours: ours.start..ours.end, also_called })
    }

    /// Returns from the signal handler.
    ///
    /// # Safety
    /// No frame between here and the interrupted code is needed.
    pub unsafe fn make(self) -> ! {
        // SAFETY: the state in which the handler's own return arrives there.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            core::arch::asm!("mov rsp, {sp}", "jmp {code}", sp = in(reg) self.sp,
                code = in(reg) self.code, options(noreturn))
        }
        // SAFETY: as above. By `ret`, which may arrive anywhere.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            core::arch::asm!("mov sp, {sp}", "ret {code}", sp = in(reg) self.sp,
                code = in(reg) self.code, options(noreturn))
        }
    }
}

/// Whether the unwinder was found already: to load it calls the program's malloc.
fn has_unwinder() -> bool {
    #[cfg(not(any(miri, sanitized)))]
    return super::late_binding::has_unwinder();
    #[cfg(any(miri, sanitized))]
    true
}

/// A walk over the frames of this thread, from the innermost out.
struct Search {
    until: Until,
    /// The frame seen before: code address and stack pointer.
    previous: Option<SignalReturn>,
    /// Of the outermost handler so far.
    last: Option<SignalReturn>,
    is_complete: bool,
}

enum Until {
    /// A frame above this address, on its stack: the thread's, or the alternate one.
    Frame { frame: usize, alternate: Range<usize> },
    /// Code that is not in this range.
    Others(Range<usize>),
    /// Interrupted code in this range, or with `also_called` what it was called by.
    Code { ours: Range<usize>, also_called: bool },
}

const GO_ON: c_int = 0;
const STOP: c_int = 5;

unsafe extern "C" {
    fn _Unwind_Backtrace(
        visit: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        with: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut c_void, is_exact: *mut c_int) -> usize;
    fn _Unwind_GetCFA(context: *mut c_void) -> usize;
}

impl Search {
    fn until(until: Until) -> Option<SignalReturn> {
        let mut search = Search { until, previous: None, last: None, is_complete: false };
        // SAFETY: the callback gets the search, which lives until the walk has ended.
        unsafe { _Unwind_Backtrace(Search::visit, (&raw mut search).cast()) };
        search.last.filter(|_| search.is_complete)
    }

    unsafe extern "C" fn visit(context: *mut c_void, search: *mut c_void) -> c_int {
        // SAFETY: the search of `below`.
        let search = unsafe { &mut *search.cast::<Search>() };
        let mut is_exact = 0;
        // SAFETY: the unwinder's own context, and room for the answer.
        let (code, sp) =
            unsafe { (_Unwind_GetIPInfo(context, &mut is_exact), _Unwind_GetCFA(context)) };
        if is_exact != 0 {
            // Interrupted code: what it was reached from is the way back from a handler.
            search.last = search.previous;
        }
        search.is_complete = match &search.until {
            Until::Frame { frame, alternate } => {
                sp > *frame && alternate.contains(&sp) == alternate.contains(frame)
            }
            Until::Others(ours) => {
                let is_other = !ours.contains(&code);
                search.last = is_other.then_some(SignalReturn { code, sp });
                is_other
            }
            Until::Code { ours, also_called } => {
                let is_it = is_exact != 0 || *also_called && search.last.is_some();
                is_it && ours.contains(&code)
            }
        };
        search.previous = Some(SignalReturn { code, sp });
        if search.is_complete { STOP } else { GO_ON }
    }
}
