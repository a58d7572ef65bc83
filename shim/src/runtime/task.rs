//! A task: a thread of the kernel that the C library does not count, made for one piece of work. It has all in common
//! with the thread that makes it, but for the stack and what [`Place`] says. There are two kinds: one that opens files
//! leaves the table of descriptors and must end before its thread goes on (`runtime/private_table.rs`); one that calls
//! NVML keeps the table, and may be left behind (`driver/nvml_thread.rs`). The second needs storage:
//!
//! The C library ends the process with the last thread that it made. If that were a thread of this library,
//! the program's `exit` handlers would run on it. So this library keeps none, but the storage of one: a
//! thread made by `pthread_create` that has ended and is never joined. Its control block, thread-local
//! storage and stack stay valid, and the C library no longer counts it. `clone` makes a task on them, which
//! may call every function: it has a thread's errno, thread-local variables and owner number of locks.
//! Making a task takes no lock of the C library and calls no malloc; making the storage does.
//!
//! The kernel stores the task's number in the control block, as for a thread (locks name their owner by
//! it), and clears it at the task's end. The C library says to debuggers where the word is.

use crate::runtime::stack_bounds::for_debuggers;
use crate::runtime::thread_slot::tid;
use crate::runtime::tls::thread_pointer;
use crate::runtime::{elf, errno, futex, loader};
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const STACK: usize = 1 << 20;
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
/// Where a thread's number is in its control block, in glibc before 2.34, which does not say it.
const NUMBER_AT: u32 = if cfg!(target_arch = "aarch64") { 208 } else { 720 };

/// Of the first form of the kernel's area, which every kernel takes.
const SEQUENCES_SIZE: u32 = 32;
const SIGNATURE: u32 = if cfg!(target_arch = "aarch64") { 0xd428_bc00 } else { 0x5305_3053 };

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

/// What a task does that may be left behind.
pub type Work = Box<dyn FnOnce() + Send>;

/// What a new thread states about itself.
#[derive(Default)]
struct Birth {
    thread_pointer: AtomicUsize,
    frame: AtomicUsize,
    /// Where its number is in its control block; null: not found.
    number_at: AtomicPtr<u32>,
    /// The last that it states.
    number: AtomicU32,
}

// SAFETY: `work` is accessed by the thread that starts a task, and then by the task.
unsafe impl Sync for Storage {}

impl Storage {
    /// Takes locks of the C library, and calls malloc. `None`: the system permits no thread.
    pub fn make() -> Option<Storage> {
        // Leaked: the thread may be late.
        let birth: &'static Birth = Box::leak(Box::default());
        make_thread(birth).then_some(())?;
        let until = Instant::now() + PATIENCE;
        let task = || birth.number.load(Ordering::Acquire);
        while task() == 0 {
            (Instant::now() < until).then_some(())?;
            std::thread::sleep(Duration::from_micros(20));
        }
        let at = birth.number_at.load(Ordering::Relaxed);
        // SAFETY: a word of the control block, which stays: the thread is never joined.
        let number = (!at.is_null()).then(|| unsafe { AtomicU32::from_ptr(at) })?;
        wait(number, task(), Some(until)).then_some(())?;
        let thread_pointer = birth.thread_pointer.load(Ordering::Relaxed);
        let stack = (birth.frame.load(Ordering::Relaxed) - BELOW) & !63;
        let sequences = sequences(thread_pointer);
        Some(Storage { thread_pointer, stack, number, sequences, work: Cell::new(None) })
    }

    /// Starts a task, and returns its number. `None`: the system makes no task now.
    ///
    /// # Safety
    /// No other task may use this storage.
    pub unsafe fn start(&'static self, work: Work) -> Option<u32> {
        self.work.set(Some(work));
        let Storage { stack, thread_pointer, number, .. } = *self;
        let place = Place { stack, thread_pointer, number };
        // SAFETY: the storage is never freed, and the caller states that no task uses it.
        let task = unsafe { start(libc::CLONE_FILES, place, run_task, self) };
        if task.is_err() {
            self.work.take();
        }
        task.ok()
    }

    /// Whether there is no task, or it runs no more.
    pub fn is_free(&self) -> bool {
        self.number.load(Ordering::Acquire) == 0
    }

    /// See [`wait`].
    pub fn wait(&self, task: u32, until: Instant) -> bool {
        wait(self.number, task, Some(until))
    }
}

/// The first function of a task.
extern "C" fn run_task(storage: &'static Storage) {
    if let Some(area) = storage.sequences {
        // SAFETY: the C library's own area of this storage, which no other task has registered.
        unsafe { libc::syscall(libc::SYS_rseq, area, SEQUENCES_SIZE, 0, SIGNATURE) };
    }
    if let Some(work) = storage.work.take() {
        work();
    }
}

/// All that the thread does: it states where its storage is.
extern "C" fn be_born(birth: &'static Birth) -> *mut c_void {
    unsafe extern "C" {
        safe fn pthread_self() -> *mut u8;
    }
    let number = tid() as u32;
    birth.thread_pointer.store(thread_pointer(), Ordering::Relaxed);
    birth.frame.store((&raw const number).addr(), Ordering::Relaxed);
    let distance = for_debuggers(b"_thread_db_pthread_tid", 2, NUMBER_AT);
    let at = distance.map(|at| pthread_self().wrapping_add(at as usize).cast::<u32>());
    // SAFETY: a word of this thread's control block.
    let at = at.filter(|at| unsafe { at.read_volatile() } == number);
    birth.number_at.store(at.unwrap_or(null_mut()), Ordering::Relaxed);
    birth.number.store(number, Ordering::Release);
    null_mut()
}

/// Makes a thread that takes no signal and is never joined: so the C library keeps its stack.
fn make_thread(birth: &'static Birth) -> bool {
    type Attributes = MaybeUninit<libc::pthread_attr_t>;
    type Start = extern "C" fn(&'static Birth) -> *mut c_void;
    type Create = extern "C" fn(&mut libc::pthread_t, &Attributes, Start, &'static Birth) -> c_int;
    unsafe extern "C" {
        safe fn pthread_attr_init(attributes: &mut Attributes) -> c_int;
        safe fn pthread_attr_setstacksize(attributes: &mut Attributes, bytes: usize) -> c_int;
    }
    // Not a sanitizer's, which reports threads that are not joined. Before glibc 2.34 it is libpthread's.
    let create = elf::c_library_function(b"pthread_create");
    let create = create.unwrap_or(libc::pthread_create as *const () as usize);
    // SAFETY: the C library's function, which passes the reference on.
    let create = unsafe { core::mem::transmute::<usize, Create>(create) };
    let (mut attributes, mut thread) = (MaybeUninit::uninit(), 0);
    if pthread_attr_init(&mut attributes) != 0 {
        return false;
    }
    pthread_attr_setstacksize(&mut attributes, STACK);
    let _blocked = SignalsBlocked::new();
    // The attributes hold no memory, and are left: below glibc 2.32 destroying them calls the
    // program's free().
    create(&mut thread, &attributes, be_born, birth) == 0
}

/// Where the C library keeps the area for restartable sequences of the thread with this pointer. An
/// allocator may use it; a task that has none must not look as if it had.
fn sequences(thread_pointer: usize) -> Option<usize> {
    // glibc has these from 2.35 on.
    let offset: u64 = elf::startup_value(b"__rseq_offset", 0)?;
    let size: u32 = elf::startup_value(b"__rseq_size", 0)?;
    (size != 0).then_some(thread_pointer.wrapping_add(offset as usize))
}

/// Waits until the task has ended, and the system counts it no more: that takes the kernel a few microseconds after the
/// end. False: the time is over.
pub fn wait(number: &AtomicU32, task: u32, until: Option<Instant>) -> bool {
    const LONG: Duration = Duration::from_secs(1);
    let runs = || number.load(Ordering::Acquire) == task;
    for _ in 0..SPINS {
        if !runs() {
            break;
        }
        core::hint::spin_loop();
    }
    while runs() {
        let left = until.map_or(LONG, |until| until.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return false;
        }
        futex::wait_for_kernel(number, task, left);
    }
    for look in 0..LOOKS {
        // SAFETY: signal 0 is not sent.
        if unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), task, 0) } != 0 {
            break;
        }
        match look {
            ..LOOKS_AT_ONCE => core::hint::spin_loop(),
            _ => std::thread::yield_now(),
        }
    }
    true
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
        SignalsBlocked { before: change_mask(libc::SIG_BLOCK, !(1 << (libc::SIGSYS - 1))) }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            change_mask(libc::SIG_SETMASK, before);
        }
    }
}

/// Changes this thread's signal mask. Returns the one before; `None`: it could not be changed.
pub fn change_mask(how: c_int, mask: u64) -> Option<u64> {
    let mut before = 0u64;
    // SAFETY: masks of the kernel's size.
    let changed = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, &raw mut before, 8)
    };
    (changed == 0).then_some(before)
}

/// Calls a closure: for a task, or on another stack.
pub extern "C" fn call(closure: &mut &mut dyn FnMut()) {
    closure();
}

/// What a task shares with the process, apart from the table of descriptors (`CLONE_FILES`).
const SHARED: c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// What a task has for itself.
pub struct Place<'a> {
    /// The upper end of its stack.
    pub stack: usize,
    pub thread_pointer: usize,
    /// Where the kernel stores its number, and clears it at its end.
    pub number: &'a AtomicU32,
}

/// Starts a task that runs `run(argument)`. Returns its number. `Err`: errno. `files`: whether it shares the table of
/// descriptors (`CLONE_FILES`), or gets a copy.
///
/// The C library marks that the task's frames end there, for an allocator that records stacks.
///
/// # Safety
/// Nobody uses the place, and what `argument` refers to, until the task has ended.
pub unsafe fn start<T>(
    files: c_int,
    place: Place<'_>,
    run: extern "C" fn(T),
    argument: T,
) -> Result<u32, i32> {
    /// The last argument is where the number is cleared.
    type Clone<'a, T> = extern "C" fn(
        extern "C" fn(T),
        usize,
        c_int,
        T,
        &'a AtomicU32,
        usize,
        &'a AtomicU32,
    ) -> c_int;
    const { assert!(size_of::<T>() == size_of::<usize>(), "a reference") };
    let Place { stack, thread_pointer, number } = place;
    let clone = loader::clone().ok_or(libc::ENOSYS)?;
    // SAFETY: the C library's function, which passes the reference on. The caller states the rest.
    let clone = unsafe { core::mem::transmute::<usize, Clone<'_, T>>(clone) };
    let made = clone(run, stack, SHARED | files, argument, number, thread_pointer, number);
    u32::try_from(made).map_err(|_| errno::get())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::runtime::handler_exit;
    use std::sync::Arc;

    #[derive(Default)]
    struct Seen {
        number: AtomicU32,
        pointer: AtomicUsize,
    }

    fn look(seen: &Seen) {
        seen.number.store(tid() as u32, Ordering::Relaxed);
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

        extern "C" fn walk(_: &()) {
            handler_exit::walk(&mut |_, _| FRAMES.fetch_add(1, Ordering::Relaxed) >= 1000);
        }

        let ended = testkit::in_child(|| {
            let stack = Box::leak(vec![0x10_usize; WORDS].into_boxed_slice());
            let (top, number) = (&raw mut stack[WORDS - ABOVE], AtomicU32::new(0));
            let _blocked = SignalsBlocked::new();
            // SAFETY: the stack is the task's alone; this thread waits while the task uses its storage.
            let task = unsafe {
                let (stack, thread_pointer) = (top as usize & !15, thread_pointer());
                let place = Place { stack, thread_pointer, number: &number };
                start(libc::CLONE_FILES, place, walk, &())
            };
            let has_ended = wait(&number, task.unwrap(), None);
            let frames = FRAMES.load(Ordering::Relaxed);
            has_ended && (1..20).contains(&frames)
        });
        assert_eq!(ended, Ok(true));
    }

    #[test]
    fn a_task_has_storage_of_its_own_and_has_ended_when_it_was_waited_for() {
        let storage: &'static Storage = Box::leak(Box::new(Storage::make().unwrap()));
        let mut tasks = Vec::new();
        for _ in 0..100 {
            let seen = Arc::new(Seen::default());
            let theirs = Arc::clone(&seen);
            // SAFETY: the task before has ended.
            let task = unsafe { storage.start(Box::new(move || look(&theirs))) }.unwrap();
            assert!(storage.wait(task, Instant::now() + PATIENCE));
            assert_eq!(seen.number.load(Ordering::Relaxed), task);
            assert_eq!(seen.pointer.load(Ordering::Relaxed), storage.thread_pointer);
            assert_ne!(storage.thread_pointer, thread_pointer());
            // On a busy machine the kernel may remove it after the last look.
            let name = format!("/proc/self/task/{task}");
            let until = Instant::now() + PATIENCE;
            while std::path::Path::new(&name).exists() {
                assert!(Instant::now() < until);
                std::thread::yield_now();
            }
            tasks.push(task);
        }
        tasks.dedup();
        assert_eq!(tasks.len(), 100);
    }
}
