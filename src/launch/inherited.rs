//! What this process inherited and then changes, or Rust's runtime does: a command that it runs gets all of it as it
//! was.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use libc::{c_int, sigaction, sigset_t};

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

/// What a command gets. The child calls [`Inherited::restore`] between fork and exec.
pub struct Inherited {
    mask: sigset_t,
    /// The process that starts it.
    parent: libc::pid_t,
}

impl Inherited {
    /// Takes this process's signal mask. All its signals are blocked until [`Inherited::restore_mask`].
    pub fn take() -> io::Result<Inherited> {
        // SAFETY: plain calls on sets of our own, which they fill.
        unsafe {
            let (mut all, mut mask) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all);
            match libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut mask) {
                0 => Ok(Inherited { mask, parent: libc::getpid() }),
                error => Err(io::Error::from_raw_os_error(error)),
            }
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
        }
        restore_sigpipe();
        restore_action(libc::SIGCHLD, &SIGCHLD_IGNORED);
        set_mask(&self.mask);
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
