//! A task: a thread of the kernel that the C library does not count, made for one piece of work.
//!
//! The C library ends the process with the last thread that it made. If that were a thread of this library,
//! the program's `exit` handlers would run on it. So this library keeps none, but the storage of one: a
//! thread made by `pthread_create` that has ended and is never joined. Its control block, thread-local
//! storage and stack stay valid, and the C library no longer counts it. `clone` makes a task on them, which
//! may call every function: it has a thread's errno, thread-local variables and owner number of locks.
//! Making a task takes no lock of the C library and calls no malloc; making the storage does.
//!
//! The kernel stores the task's number in the control block, as for a thread (locks name their owner by
//! it), and clears it at the task's end. The word is found when the storage is made: it held the thread's
//! number, and was cleared.

use crate::runtime::hash_table::{pages, unmap};
use crate::runtime::tls::thread_pointer;
use crate::runtime::{elf, futex};
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const STACK: usize = 1 << 20;
const GUARD: usize = 1 << 16;
/// Longest time for a new thread to run and end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Polls before the waiting thread sleeps: a few microseconds.
const SPINS: u32 = 400;
/// The part of the stack that the thread's end may still use, from a local variable of it on.
const BELOW: usize = 512;
/// Looks for a task that has ended and is still in the process's list. A debugger may keep it there.
const LOOKS: u32 = 1000;
/// Before others may run.
const LOOKS_AT_ONCE: u32 = 20;
/// Words of the control block that may hold the thread's number.
const WORDS: usize = 8;

/// Of the first form of the kernel's area, which every kernel takes.
const SEQUENCES_SIZE: u32 = 32;
#[cfg(target_arch = "x86_64")]
const SYS_RSEQ: libc::c_long = 334;
#[cfg(target_arch = "aarch64")]
const SYS_RSEQ: libc::c_long = 293;
#[cfg(target_arch = "x86_64")]
const SEQUENCES_SIGNATURE: u32 = 0x5305_3053;
#[cfg(target_arch = "aarch64")]
const SEQUENCES_SIGNATURE: u32 = 0xd428_bc00;

/// The control block of a thread, from the thread pointer on (x86-64) or before it.
#[cfg(target_arch = "x86_64")]
const CONTROL_BLOCK: core::ops::Range<isize> = 0..0x900;
#[cfg(target_arch = "aarch64")]
const CONTROL_BLOCK: core::ops::Range<isize> = -0x1000..0;

/// The storage of a thread that has ended, for one task at a time.
pub struct Storage {
    thread_pointer: usize,
    /// Below the frames of that thread.
    stack: usize,
    /// The task's number; 0: there is no task, or it runs no more.
    number: &'static AtomicU32,
    /// The C library's area for restartable sequences. It is registered for each task.
    sequences: Option<usize>,
    work: Cell<Option<Work>>,
}

/// What the task calls, and with what.
type Work = (fn(*mut c_void), *mut c_void);

/// What a new thread states about itself.
#[derive(Default)]
struct Birth {
    thread_pointer: AtomicUsize,
    frame: AtomicUsize,
    words: [AtomicUsize; WORDS],
    number: AtomicU32,
}

// SAFETY: `work` is accessed by the thread that starts a task, and then by the task.
unsafe impl Sync for Storage {}

impl Storage {
    /// Takes locks of the C library, and calls malloc. `None`: the system permits no thread.
    pub fn make() -> Option<Storage> {
        let memory = pages(STACK).ok()?;
        // Leaked: the thread may be late.
        let birth: &'static Birth = Box::leak(Box::default());
        if !make_thread(memory, birth) {
            unmap(memory, STACK);
            return None;
        }
        let until = Instant::now() + PATIENCE;
        if !sleep_until(until, || birth.number.load(Ordering::Acquire) != 0) {
            return None;
        }
        let cleared = || birth.words.iter().find_map(Birth::cleared);
        if !sleep_until(until, || cleared().is_some()) {
            return None;
        }
        wait_for_end(birth.number.load(Ordering::Relaxed));
        let thread_pointer = birth.thread_pointer.load(Ordering::Relaxed);
        let stack = (birth.frame.load(Ordering::Relaxed) - BELOW) & !63;
        let sequences = sequences(thread_pointer);
        Some(Storage {
            thread_pointer,
            stack,
            number: cleared()?,
            sequences,
            work: Cell::new(None),
        })
    }

    /// Starts a task that calls `run`, and returns its number. `None`: the system makes no task now.
    /// No other task may use this storage.
    ///
    /// # Safety
    /// `run` may be called with `argument` on any thread.
    pub unsafe fn start(&'static self, run: fn(*mut c_void), argument: *mut c_void) -> Option<u32> {
        self.work.set(Some((run, argument)));
        let (number, own) = (self.number.as_ptr(), (&raw const *self).cast());
        let flags = SHARED | libc::CLONE_FILES;
        // SAFETY: the storage is never freed, and the caller states that no task uses it.
        let made =
            unsafe { clone_on(flags, self.stack, number, self.thread_pointer, run_task, own) };
        u32::try_from(made).ok()
    }

    /// Whether there is no task, or it runs no more.
    pub fn is_free(&self) -> bool {
        self.number.load(Ordering::Acquire) == 0
    }

    /// Waits until the task has ended, and the system counts it no more. False: the time is over.
    pub fn wait(&self, task: u32, until: Instant) -> bool {
        for _ in 0..SPINS {
            if self.is_free() {
                break;
            }
            core::hint::spin_loop();
        }
        while !self.is_free() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            futex::wait_for_kernel(self.number, task, left);
        }
        wait_for_end(task);
        true
    }
}

/// The first function of a task.
unsafe extern "C" fn run_task(storage: *const c_void) {
    // SAFETY: `start` passes storage that is never freed.
    let storage = unsafe { &*storage.cast::<Storage>() };
    if let Some(area) = storage.sequences {
        // SAFETY: the C library's own area of this storage, which no other task has registered.
        unsafe { libc::syscall(SYS_RSEQ, area, SEQUENCES_SIZE, 0, SEQUENCES_SIGNATURE) };
    }
    if let Some((run, argument)) = storage.work.take() {
        run(argument);
    }
}

impl Birth {
    /// The word, if it was a number and is cleared.
    fn cleared(word: &AtomicUsize) -> Option<&'static AtomicU32> {
        let at = word.load(Ordering::Relaxed) as *mut u32;
        // SAFETY: an aligned word of the control block, which stays: the thread is never joined.
        let word = (!at.is_null()).then(|| unsafe { AtomicU32::from_ptr(at) })?;
        (word.load(Ordering::Acquire) == 0).then_some(word)
    }
}

/// All that the thread does: it states where its storage is.
extern "C" fn be_born(birth: *mut c_void) -> *mut c_void {
    // SAFETY: leaked by `Storage::make`.
    let birth = unsafe { &*birth.cast::<Birth>() };
    let number = thread_number();
    let here = (&raw const number).addr();
    let pointer = thread_pointer();
    birth.thread_pointer.store(pointer, Ordering::Relaxed);
    birth.frame.store(here, Ordering::Relaxed);
    let mut found = birth.words.iter();
    for offset in CONTROL_BLOCK.step_by(4) {
        let word = pointer.wrapping_add_signed(offset);
        // SAFETY: within the control block, or in the part of this thread's stack below it.
        if word > here && unsafe { (word as *const u32).read_volatile() } == number {
            found.next().inspect(|slot| slot.store(word, Ordering::Relaxed));
        }
    }
    birth.number.store(number, Ordering::Release);
    null_mut()
}

/// Makes a thread that takes no signal, on this memory.
fn make_thread(memory: *mut u8, birth: &'static Birth) -> bool {
    type Create = unsafe extern "C" fn(
        *mut libc::pthread_t,
        *const libc::pthread_attr_t,
        extern "C" fn(*mut c_void) -> *mut c_void,
        *mut c_void,
    ) -> c_int;
    // Not a sanitizer's, which reports threads that are not joined. Before glibc 2.34 it is libpthread's.
    let create = elf::c_library_function(b"pthread_create");
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = 0;
    // SAFETY: the C library's function; the memory stays mapped if there is a thread.
    unsafe {
        let create: Create = match create {
            Some(create) => core::mem::transmute::<usize, Create>(create),
            None => libc::pthread_create,
        };
        if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
            return false;
        }
        let attributes = attributes.as_mut_ptr();
        libc::mprotect(memory.cast(), GUARD, libc::PROT_NONE);
        if libc::pthread_attr_setstack(attributes, memory.cast(), STACK) != 0 {
            return false;
        }
        let _blocked = SignalsBlocked::new();
        // The attributes hold no memory, and are left: below glibc 2.32 destroying them calls the
        // program's free().
        create(&mut thread, attributes, be_born, (&raw const *birth).cast_mut().cast()) == 0
    }
}

/// Where the C library keeps the area for restartable sequences of the thread with this pointer. An
/// allocator may use it; a task that has none must not look as if it had.
fn sequences(thread_pointer: usize) -> Option<usize> {
    // SAFETY: variables of the C library, from glibc 2.35 on.
    unsafe {
        let (offset, _) = elf::startup_variable(b"__rseq_offset")?;
        let (size, _) = elf::startup_variable(b"__rseq_size")?;
        let is_used = *(size as *const u32) != 0;
        let area = thread_pointer.wrapping_add_signed(*(offset as *const isize));
        is_used.then_some(area)
    }
}

fn sleep_until(until: Instant, is: impl Fn() -> bool) -> bool {
    while !is() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    true
}

/// A task that runs no more is counted until the kernel has removed it, a few microseconds later.
pub fn wait_for_end(task: u32) {
    for look in 0..LOOKS {
        // SAFETY: signal 0 is not sent.
        if unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), task, 0) } != 0 {
            return;
        }
        match look {
            ..LOOKS_AT_ONCE => core::hint::spin_loop(),
            _ => std::thread::yield_now(),
        }
    }
}

pub fn thread_number() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// While it lives, this thread takes no signal but SIGSYS, and its tasks neither: a handler of the program's would run
/// in the task, or leave a call of the library's that the task still uses. Every mask that this library sets is added to
/// the program's: for what the program has blocked it may wait (`sigwait`, `signalfd`), also for a SIGSEGV that another
/// process sends. A filter of system calls raises SIGSYS (SECCOMP_RET_TRAP), for a handler that answers the call, and
/// ends the process where it is blocked.
///
/// Not by `sigprocmask`, which lets the C library's own signals pass: cancellation, for example.
pub struct SignalsBlocked {
    /// `None`: the mask could not be changed, and is the program's.
    before: Option<u64>,
}

impl SignalsBlocked {
    #[expect(clippy::new_without_default, reason = "it acts")]
    pub fn new() -> SignalsBlocked {
        let (blocked, mut before) = (!(1 << (libc::SIGSYS - 1)), 0);
        let is_changed = change_mask(libc::SIG_BLOCK, blocked, &mut before);
        SignalsBlocked { before: is_changed.then_some(before) }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            change_mask(libc::SIG_SETMASK, before, null_mut());
        }
    }
}

fn change_mask(how: c_int, mask: u64, before: *mut u64) -> bool {
    let size = size_of::<u64>();
    // SAFETY: masks of the kernel's size.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, before, size) == 0 }
}

/// What a task shares with the process, apart from the table of descriptors (`CLONE_FILES`).
pub const SHARED: c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// Makes a task that runs `run(argument)` on this stack. Its number, which is also stored in `number`
/// and cleared at the task's end; or a negative error.
///
/// Stacks of the task end here: what lies above on its stack are no frames of this function, and an allocator that
/// records stacks would go on through them.
///
/// # Safety
/// Nobody uses the stack and what the thread pointer points to, until the task has ended. `run` may be
/// called with `argument`.
pub unsafe fn clone_on(
    flags: c_int,
    stack: usize,
    number: *mut u32,
    tls: usize,
    run: unsafe extern "C" fn(*const c_void),
    argument: *const c_void,
) -> isize {
    let made;
    // SAFETY: as the caller states. The task begins at `syscall`, on its own stack, and ends here.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            ".cfi_remember_state",
            ".cfi_undefined rip",
            "call r13",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            ".cfi_restore_state",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone as isize => made,
            in("rdi") flags as usize,
            in("rsi") stack,
            in("rdx") number,
            in("r10") number,
            in("r8") tls,
            in("r12") argument,
            in("r13") run,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: as above; the task begins after `svc`.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x20",
            ".cfi_remember_state",
            ".cfi_undefined x30",
            "blr x21",
            "mov x0, xzr",
            "mov x8, {exit}",
            "svc 0",
            "brk 1",
            ".cfi_restore_state",
            "2:",
            exit = const libc::SYS_exit,
            in("x8") libc::SYS_clone,
            inlateout("x0") flags as isize => made,
            in("x1") stack,
            in("x2") number,
            in("x3") tls,
            in("x4") number,
            in("x20") argument,
            in("x21") run,
            options(nostack),
        );
    }
    made
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[repr(C)]
    struct Seen {
        number: AtomicU32,
        pointer: AtomicUsize,
    }

    fn look(seen: *mut c_void) {
        // SAFETY: the test's own, which waits for the task.
        let seen = unsafe { &*seen.cast::<Seen>() };
        seen.number.store(thread_number(), Ordering::Relaxed);
        seen.pointer.store(thread_pointer(), Ordering::Relaxed);
        // The C library's locks know the task by its number.
        static ONE: std::sync::Mutex<u32> = std::sync::Mutex::new(0);
        *ONE.lock().unwrap() += 1;
        // SAFETY: allocates and frees.
        unsafe { libc::free(libc::malloc(100)) };
    }

    /// What lies above the task's first frame is no return address: a walk that goes on reads it and faults.
    #[test]
    fn the_stack_of_a_task_ends_with_its_first_frame() {
        const WORDS: usize = 1 << 15;
        const ABOVE: usize = 1 << 10;
        static FRAMES: AtomicUsize = AtomicUsize::new(0);

        unsafe extern "C" {
            fn _Unwind_Backtrace(
                each: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
                data: *mut c_void,
            ) -> c_int;
        }

        unsafe extern "C" fn each(_: *mut c_void, _: *mut c_void) -> c_int {
            let frames = FRAMES.fetch_add(1, Ordering::Relaxed);
            // _URC_NO_REASON, _URC_NORMAL_STOP
            if frames < 1000 { 0 } else { 4 }
        }

        unsafe extern "C" fn walk(_: *const c_void) {
            // SAFETY: walks this task's stack.
            unsafe { _Unwind_Backtrace(each, null_mut()) };
        }

        let ended = testkit::in_child(|| {
            let stack = Box::leak(vec![0x10_usize; WORDS].into_boxed_slice());
            let (top, number) = (&raw mut stack[WORDS - ABOVE], AtomicU32::new(0));
            let _blocked = SignalsBlocked::new();
            // SAFETY: the stack is the task's alone; this thread waits while the task uses its storage.
            let task = unsafe {
                let (top, number) = (top as usize & !15, number.as_ptr());
                let flags = SHARED | libc::CLONE_FILES;
                clone_on(flags, top, number, thread_pointer(), walk, null_mut())
            };
            while number.load(Ordering::Acquire) != 0 {
                futex::wait_for_kernel(&number, task as u32, Duration::from_millis(10));
            }
            let frames = FRAMES.load(Ordering::Relaxed);
            task > 0 && (1..20).contains(&frames)
        });
        assert_eq!(ended, Ok(true));
    }

    #[test]
    fn a_task_has_storage_of_its_own_and_has_ended_when_it_was_waited_for() {
        let storage: &'static Storage = Box::leak(Box::new(Storage::make().unwrap()));
        let mut tasks = Vec::new();
        for _ in 0..100 {
            let seen = Seen { number: AtomicU32::new(0), pointer: AtomicUsize::new(0) };
            // SAFETY: `seen` stays until the task has ended.
            let task = unsafe { storage.start(look, (&raw const seen).cast_mut().cast()) }.unwrap();
            assert!(storage.wait(task, Instant::now() + PATIENCE));
            assert_eq!(seen.number.load(Ordering::Relaxed), task);
            assert_eq!(seen.pointer.load(Ordering::Relaxed), storage.thread_pointer);
            assert_ne!(storage.thread_pointer, thread_pointer());
            // On a busy machine the kernel may remove it after the last look.
            let ended = || !std::path::Path::new(&format!("/proc/self/task/{task}")).exists();
            assert!(sleep_until(Instant::now() + PATIENCE, ended));
            tasks.push(task);
        }
        tasks.dedup();
        assert_eq!(tasks.len(), 100);
    }
}
