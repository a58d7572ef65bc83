//! What this process inherited and then changes, or Rust's runtime does: a command that it runs gets all of it as it
//! was.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use libc::{c_int, itimerval, sigaction, sigset_t};

use super::signals;

/// Rust's runtime ignores SIGPIPE before `main`.
static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);
static SIGCHLD_IGNORED: AtomicBool = AtomicBool::new(false);
/// Standard descriptors that were closed, as bits. Rust's runtime opens /dev/null in their place.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Runs before Rust's runtime starts.
extern "C" fn note() {
    SIGPIPE_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    SIGCHLD_IGNORED.store(is_ignored(libc::SIGCHLD), Ordering::Relaxed);
    // SAFETY: plain calls.
    unsafe {
        // The kernel keeps no status of children where SIGCHLD is ignored.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        for descriptor in 0..3 {
            if libc::fcntl(descriptor, libc::F_GETFD) < 0 {
                CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
            }
        }
    }
}

fn is_ignored(signal: c_int) -> bool {
    // SAFETY: a query; `action` is room for one.
    unsafe {
        let mut action = std::mem::zeroed::<sigaction>();
        libc::sigaction(signal, std::ptr::null(), &mut action);
        action.sa_sigaction == libc::SIG_IGN
    }
}

#[used]
// SAFETY: the C library calls each entry of this section once; `note` ignores its arguments.
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

/// Gives SIGPIPE the action that it had when this process started.
pub fn restore_sigpipe() {
    restore_action(libc::SIGPIPE, &SIGPIPE_IGNORED);
}

fn restore_action(signal: c_int, ignored: &AtomicBool) {
    let ignored = ignored.load(Ordering::Relaxed);
    // SAFETY: no handler of this process exists for these signals.
    unsafe { libc::signal(signal, if ignored { libc::SIG_IGN } else { libc::SIG_DFL }) };
}

/// Each timer of setitimer(2). They survive exec and are not inherited by a forked child.
const TIMERS: [c_int; 3] = [libc::ITIMER_REAL, libc::ITIMER_VIRTUAL, libc::ITIMER_PROF];

/// What a command gets. The child calls [`Inherited::restore`] between fork and exec.
pub struct Inherited {
    mask: sigset_t,
    /// Signals that were blocked and pending.
    pending: sigset_t,
    timers: [itimerval; 3],
    /// Orphans of its descendants become its children.
    adopts_orphans: bool,
    /// The process that starts it.
    parent: libc::pid_t,
}

impl Inherited {
    /// Takes this process's signal mask, pending signals and timers. All its signals are blocked until [`Inherited::restore_mask`].
    pub fn take() -> io::Result<Inherited> {
        // SAFETY: plain calls; each structure is filled by them, or stays empty.
        unsafe {
            let mut all = MaybeUninit::uninit();
            libc::sigfillset(all.as_mut_ptr());
            let mut inherited = Inherited {
                mask: std::mem::zeroed(),
                pending: std::mem::zeroed(),
                timers: std::mem::zeroed(),
                adopts_orphans: false,
                parent: libc::getpid(),
            };
            match libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), &mut inherited.mask) {
                0 => {}
                error => return Err(io::Error::from_raw_os_error(error)),
            }
            while let Some(signal) = signals::next(Duration::ZERO) {
                libc::sigaddset(&mut inherited.pending, signal.number());
            }
            let none = std::mem::zeroed::<itimerval>();
            for (which, timer) in TIMERS.into_iter().zip(&mut inherited.timers) {
                libc::syscall(libc::SYS_setitimer, which, &none, timer);
            }
            let mut adopts: c_int = 0;
            libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &mut adopts);
            inherited.adopts_orphans = adopts != 0;
            Ok(inherited)
        }
    }

    /// In the child, between fork and exec: makes only async-signal-safe calls.
    pub fn restore(&self) {
        // SAFETY: plain calls on this process's own settings.
        unsafe {
            // If this launcher is killed, the command is, as if the signal had reached it.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // It may have been killed before that. 0: it is in another pid namespace.
            if ![self.parent, 0].contains(&libc::getppid()) {
                libc::raise(libc::SIGKILL);
            }
            for descriptor in 0..3 {
                if CLOSED.load(Ordering::Relaxed) & 1 << descriptor != 0 {
                    libc::close(descriptor);
                }
            }
            restore_sigpipe();
            restore_action(libc::SIGCHLD, &SIGCHLD_IGNORED);
            if self.adopts_orphans {
                libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
            }
            for (which, timer) in TIMERS.into_iter().zip(&self.timers) {
                libc::syscall(libc::SYS_setitimer, which, timer, 0);
            }
            // Rust's runtime has unblocked all.
            let mut all = MaybeUninit::uninit();
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
            for signal in 1..=libc::SIGRTMAX() {
                if libc::sigismember(&self.pending, signal) == 1 {
                    libc::kill(libc::getpid(), signal);
                }
            }
            set_mask(&self.mask);
        }
    }

    /// In this process, after the command ended.
    pub fn restore_mask(&self) {
        set_mask(&self.mask);
    }
}

/// By the kernel's call: that of the C library leaves out the signals that it uses itself.
fn set_mask(mask: &sigset_t) {
    const BYTES: usize = 8;
    // SAFETY: the kernel reads the first 64 bits of the set.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, mask, 0, BYTES) };
}
