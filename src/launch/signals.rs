//! Forwards signals to the command. They are blocked in all threads of this process and one thread fetches them
//! with sigtimedwait, so that no handler is needed. The command starts with the original signal mask.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use libc::c_int;

/// The signals that are forwarded. SIGTSTP and SIGCONT keep their default action: a shell sends them to the whole
/// process group.
const PASSED: [c_int; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGWINCH,
];

#[derive(Clone, Copy, Debug)]
pub struct Signal {
    pub number: c_int,
    /// Sent by the terminal, to the whole foreground group.
    pub from_kernel: bool,
}

/// Signals arrive on the channel until this is dropped, which restores the mask.
pub struct Signals {
    before: libc::sigset_t,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Signals {
    pub fn catch(sender: Sender<Signal>) -> std::io::Result<Signals> {
        let set = passed_set();
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets live across the call, which fills `before` when it returns 0.
        let before = unsafe {
            match libc::pthread_sigmask(libc::SIG_BLOCK, &set, before.as_mut_ptr()) {
                0 => before.assume_init(),
                error => return Err(std::io::Error::from_raw_os_error(error)),
            }
        };
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || fetch(&set, &sender, &stop)
        });
        Ok(Signals { before, stop, thread: Some(thread) })
    }

    /// The signal mask before [`Signals::catch`], for the command.
    pub fn mask_before(&self) -> libc::sigset_t {
        self.before
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // SAFETY: the set was filled by pthread_sigmask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

fn passed_set() -> libc::sigset_t {
    // SAFETY: sigemptyset fills the set; the numbers are valid.
    unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        for signal in PASSED {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

fn fetch(set: &libc::sigset_t, sender: &Sender<Signal>, stop: &AtomicBool) {
    let a_moment = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    while !stop.load(Ordering::Relaxed) {
        let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
        // SAFETY: all three live across the call.
        let number = unsafe { libc::sigtimedwait(set, info.as_mut_ptr(), &a_moment) };
        if number > 0 {
            // SAFETY: a positive result means that it was filled.
            let from_kernel = unsafe { info.assume_init() }.si_code == libc::SI_KERNEL;
            if sender.send(Signal { number, from_kernel }).is_err() {
                return;
            }
        }
    }
}

/// Ends this process by the signal that ended the command, so that the parent sees the same status. Returns only
/// if the signal cannot end this process.
pub fn die_by(signal: c_int) {
    // SAFETY: plain calls; the set is filled before use.
    unsafe {
        // The command wrote its core file already.
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::signal(signal, libc::SIG_DFL);
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
        libc::raise(signal);
    }
}
