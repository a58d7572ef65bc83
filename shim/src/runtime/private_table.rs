//! Work that opens files, without a descriptor in the program's table.
//!
//! All threads of a process share one table of descriptors, and the program owns its numbers: it may
//! close any of them, put another file behind any of them (`dup2`), and count them. Closing a
//! descriptor also drops all locks that the process holds on that file (`fcntl`). So a library that
//! opens a file, even for the time of one call, can write into a file of the program's or close it.
//!
//! So each piece of work that opens files runs in a *task*: a thread that the kernel makes for this work
//! alone. It leaves the process's table at once for an empty one of its own, and ends with the work,
//! while the calling thread waits. It uses the calling thread's thread-local storage, so it is that
//! thread to everything that runs in it: locks, errno, the state of cancellation. The C library does not
//! know it, so it is never the last thread, and runs no handler of the program's. It is not seen by
//! `wait`, and a program with one thread never sees two, since the call returns after the task has ended.
//!
//! Costs about 40 us, however many files are open: the kernel copies at most the first 64 descriptors
//! before it empties the new table. Closing those copies has what effect the file system gives to each
//! close: NFS and FUSE are asked to flush. So there are few tasks, each for as much work as possible.
//!
//! Rejected:
//!
//! | way | reason |
//! |---|---|
//! | high numbers, duplicates, checks before use | the program may replace a number between any two calls |
//! | a child (`vfork`) | seen by `wait` with `__WALL`, and as a zombie |
//! | a helper process | seen; survives an exec; needs a file that can be executed |
//! | a permanent thread | seen by `fork` in Python 3.12, refuses `unshare(CLONE_NEWUSER)`, may be the last |
//! | io_uring | refused by Docker's default filter of system calls, absent in gVisor |
//!
//! Descriptor 2 is closed in a task too: messages are returned, and written by the caller.
#![allow(clippy::disallowed_methods)] // the one place that opens and closes

use crate::runtime::directory::each_name;
use crate::runtime::faults::task_step_granted;
use crate::runtime::panic_boundary;
use crate::runtime::system::{self, WORKING_DIRECTORY};
use crate::runtime::task::{self, Place, SignalsBlocked};
use crate::runtime::tls::{thread_cells, thread_pointer};
use crate::runtime::uncancelled::uncancelled;
use crate::runtime::{errno, own_stack};
use core::cell::Cell;
use core::ffi::CStr;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};

/// The table of a task. A reference to it proves that the code runs in a task.
pub struct Table(PhantomData<*mut ()>);

/// The system makes no task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTask {
    pub errno: i32,
}

/// An open file of a task. It is closed before the task ends.
pub struct Opened<'t> {
    number: i32,
    _table: PhantomData<&'t Table>,
}

impl AsFd for Opened<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open until this is dropped.
        unsafe { BorrowedFd::borrow_raw(self.number) }
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // A number of the task's own table, which nobody else uses.
        system::close(self.number);
    }
}

/// A link is not followed at the end of a name, and no open waits (a FIFO) or takes a terminal.
const ALWAYS: i32 = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;

impl Table {
    /// Opens a file. No link is followed at the end of the name. `Err`: errno.
    pub fn open(&self, name: &CStr, flags: i32, mode: libc::mode_t) -> Result<Opened<'_>, i32> {
        self.open_from(WORKING_DIRECTORY, name, flags | libc::O_NOFOLLOW, mode)
    }

    /// Opens the same file again, with other flags. Needs /proc.
    pub fn open_again(&self, opened: &Opened, flags: i32) -> Result<Opened<'_>, i32> {
        let mut name = [0u8; 32];
        let _ = write!(&mut name[..], "/proc/thread-self/fd/{}", opened.number);
        let name = CStr::from_bytes_until_nul(&name).map_err(|_| libc::EINVAL)?;
        self.open_from(WORKING_DIRECTORY, name, flags, 0)
    }

    pub fn open_from(
        &self,
        directory: impl AsFd,
        name: &CStr,
        flags: i32,
        mode: libc::mode_t,
    ) -> Result<Opened<'_>, i32> {
        match system::openat(directory, name, flags | ALWAYS, mode) {
            -1 => Err(errno::get()),
            number => Ok(Opened { number, _table: PhantomData }),
        }
    }

    /// The contents of a small file, such as those of /proc.
    pub fn read(&self, name: &CStr) -> Result<Vec<u8>, i32> {
        use crate::runtime::fallible::TryPush;
        let file = self.open(name, libc::O_RDONLY, 0)?;
        let (mut all, mut part) = (Vec::new(), [0u8; 1024]);
        loop {
            let got = system::read(&file, &mut part);
            match usize::try_from(got) {
                Ok(0) => return Ok(all),
                Ok(got) => {
                    for byte in &part[..got] {
                        all.try_push(*byte).map_err(|_| libc::ENOMEM)?;
                    }
                }
                Err(_) if errno::get() == libc::EINTR => {}
                Err(_) => return Err(errno::get()),
            }
        }
    }
}

thread_cells! {
    /// Whether this thread is in a task. The calling thread waits while its task uses the block.
    fn inside() -> &Cell<bool>, 8 bytes of the block at 256
}

/// Runs `work` in a task; directly, if this is one. errno stays as it is. A panic is resumed in the
/// caller. `work` may not call the driver, the loader or other code of the program's, and may not write
/// to stderr.
pub fn run<R>(work: impl FnOnce(&Table) -> R) -> Result<R, NoTask> {
    // Miri makes no threads by system calls.
    if cfg!(miri) || inside().get() {
        return Ok(work(&Table(PhantomData)));
    }
    uncancelled(|| {
        let kept = errno::get();
        let result = run_in_task(work);
        errno::set(kept);
        result
    })
}

/// Whether the kernel makes each task with a copy of the table, which is then emptied: before Linux 5.9, and where a filter
/// refuses `close_range`.
static IS_COPIED: AtomicBool = AtomicBool::new(false);

/// Steps that may fail in tests.
const CLOSE_RANGE: u8 = 0;
const TASK: u8 = 1;

fn run_in_task<R>(work: impl FnOnce(&Table) -> R) -> Result<R, NoTask> {
    let (mut work, mut outcome) = (Some(work), None);
    for is_copied in [IS_COPIED.load(Ordering::Relaxed), true] {
        start(is_copied, &mut || {
            if is_copied {
                close_copies();
            } else if !leave_table() {
                IS_COPIED.store(true, Ordering::Relaxed);
                return;
            }
            inside().set(true);
            let work = work.take();
            outcome = work.map(|work| panic_boundary::catch(|| work(&Table(PhantomData))));
            inside().set(false);
        })?;
        match outcome.take() {
            Some(Ok(result)) => return Ok(result),
            Some(Err(payload)) => std::panic::resume_unwind(payload),
            None => {}
        }
    }
    Err(NoTask { errno: libc::EPERM })
}

/// Runs `enter` in a task, and waits for its end. `is_copied`: it gets a copy of the table.
fn start(is_copied: bool, mut enter: &mut dyn FnMut()) -> Result<(), NoTask> {
    let files = if is_copied { 0 } else { libc::CLONE_FILES };
    let stack = own_stack::take().ok_or(NoTask { errno: libc::ENOMEM })?;
    let (_blocked, number) = (SignalsBlocked::new(), AtomicU32::new(0));
    if !task_step_granted(TASK) {
        return Err(NoTask { errno: libc::EAGAIN });
    }
    // Within the stack: debuggers and Valgrind find a stack by the mapping of its pointer.
    let top = stack.top() - 64;
    let place = Place { stack: top, thread_pointer: thread_pointer(), number: &number };
    // SAFETY: this thread waits while the task uses its storage, and the closure.
    let made = unsafe { task::start(files, place, task::call, &mut enter) };
    task::wait(&number, made.map_err(|errno| NoTask { errno })?, None);
    Ok(())
}

/// Leaves the table of the process for one of the task's own. False: refused.
fn leave_table() -> bool {
    const CLOSE_RANGE_UNSHARE: u32 = 2;
    // SAFETY: takes no pointers; makes a table for this task, and closes what is in that one.
    task_step_granted(CLOSE_RANGE)
        && unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, CLOSE_RANGE_UNSHARE) } == 0
}

/// Closes all descriptors of a copied table. (They would be closed with the task too; but until then
/// they could leave no number for ours.) Without /proc only the low ones.
fn close_copies() {
    const LOW: i32 = 1024;
    const DESCRIPTORS: &CStr = c"/proc/thread-self/fd";
    // At the limit of open files, one must be closed before the directory can be opened.
    system::close(0);
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    match Table(PhantomData).open(DESCRIPTORS, flags, 0) {
        Ok(directory) => drop(each_name(&directory, |name, _| {
            let number = name.to_str().ok().and_then(|name| name.parse().ok());
            if let Some(number) = number.filter(|number| *number != directory.number) {
                system::close(number);
            }
        })),
        Err(_) => {
            for number in 0..LOW {
                system::close(number);
            }
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use testkit::in_child;

    /// The number that the task's first file gets, and what it reads.
    fn first_file() -> (i32, Vec<u8>) {
        run(|table| {
            let file = table.open(c"/proc/self/comm", libc::O_RDONLY, 0).unwrap();
            (file.number, table.read(c"/proc/self/comm").unwrap())
        })
        .unwrap()
    }

    /// Whether a file of a task has no number in the table of the process.
    fn is_unseen() -> bool {
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = count();
        // /proc/self is the process, whose table the task does not have: not for reading that either.
        let during = run(|table| {
            let _one = table.open(c"/proc/self/comm", libc::O_RDONLY, 0).unwrap();
            count()
        });
        during == Ok(before - 1) && count() == before
    }

    #[test]
    fn each_way_leads_to_an_empty_table() {
        for is_copied in [false, true] {
            let ended = in_child(|| {
                IS_COPIED.store(is_copied, Ordering::Relaxed);
                let many: Vec<_> =
                    (0..200).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
                let (number, text) = first_file();
                let limit = libc::rlimit { rlim_cur: 16, rlim_max: 16 };
                // SAFETY: the limit of the child alone.
                unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
                let at_limit = std::fs::File::open("/dev/null").is_err() && first_file().0 < 4;
                drop(many);
                !text.is_empty()
                    && number < 4
                    && at_limit
                    && is_unseen()
                    && IS_COPIED.load(Ordering::Relaxed) == is_copied
            });
            assert_eq!(ended, Ok(true), "copied: {is_copied}");
        }
    }

    /// The signals that this thread blocks.
    fn mask() -> u64 {
        let mut mask = 0u64;
        // SAFETY: a query, with room for the kernel's set.
        unsafe {
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, 0, &raw mut mask, 8);
        }
        mask
    }

    #[test]
    fn the_program_sees_one_thread_no_child_and_its_own_signals() {
        let ended = in_child(|| {
            let before = mask();
            let is_alone = || {
                let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
                // A process with several threads may not leave what they share.
                // SAFETY: takes no pointers.
                let leaves = unsafe { libc::unshare(libc::CLONE_SIGHAND | libc::CLONE_VM) } == 0;
                leaves && stat.rsplit(')').next().unwrap().split(' ').nth(18) == Some("1")
            };
            // The kernel takes back what a task shared a moment after its number.
            let is_soon = || (0..100_000).any(|_| is_alone());
            let alone = (0..300).all(|_| run(|_| ()).is_ok() && is_soon());
            errno::set(77);
            let kept = run(|_| errno::set(5)).is_ok() && errno::get() == 77;
            let (all, mut status) = (0x4000_0000, 0);
            // SAFETY: room for the status.
            let no_child = unsafe { libc::waitpid(-1, &mut status, all | libc::WNOHANG) } == -1;
            alone && kept && before == mask() && no_child
        });
        assert_eq!(ended, Ok(true));
    }

    #[test]
    #[cfg_attr(sanitized, ignore = "AddressSanitizer does not follow a change of the stack")]
    fn tasks_nest_and_panics_come_back() {
        let inner = run(|_| (run(|_| inside().get()), first_file().0)).unwrap();
        assert_eq!(inner, (Ok(true), 0), "in the same task");
        assert!(!inside().get());
        let panicked = std::panic::catch_unwind(|| {
            run(|_| -> u8 { std::panic::resume_unwind(Box::new(7u8)) })
        });
        assert_eq!(panicked.unwrap_err().downcast_ref::<u8>(), Some(&7));
        assert!(!inside().get() && run(|_| 5) == Ok(5));
    }

    #[test]
    fn more_tasks_than_stacks() {
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    run(|table| {
                        inside.fetch_add(1, Ordering::SeqCst);
                        while inside.load(Ordering::SeqCst) < 20 {
                            std::thread::yield_now();
                        }
                        assert!(table.read(c"/proc/self/comm").is_ok());
                    })
                    .unwrap();
                });
            }
        });
    }

    #[test]
    fn locks_of_the_program_stay() {
        let path = std::env::temp_dir().join(format!("vramtrace-locked-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        for is_copied in [false, true] {
            // SAFETY: a struct for which zeros are a value; in a child that is forked here.
            let ended = in_child(|| unsafe {
                let mut lock: libc::flock = std::mem::zeroed();
                lock.l_type = libc::F_WRLCK as i16;
                assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock), 0);
                IS_COPIED.store(is_copied, Ordering::Relaxed);
                run(|table| drop(table.open(&name, libc::O_RDWR, 0).unwrap())).unwrap();
                in_child(|| {
                    libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut lock) == 0
                        && lock.l_type == libc::F_WRLCK as i16
                }) == Ok(true)
            });
            assert_eq!(ended, Ok(true), "copied: {is_copied}");
        }
        std::fs::remove_file(path).unwrap();
    }
}
