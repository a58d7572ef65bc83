//! Signals while a command runs. All are blocked, and one thread waits for them with sigtimedwait: no handler, no
//! further thread and no descriptor is needed. [`Inherited`](super::inherited::Inherited) blocks them.

use std::mem::MaybeUninit;
use std::time::Duration;

use libc::{c_int, pid_t, siginfo_t, sigset_t};

use vramtrace_format::proc::Stat;

/// A signal that this process got.
#[derive(Clone, Copy)]
pub struct Signal {
    info: siginfo_t,
}

/// Signals that the kernel sends to a whole process group of a terminal, or to the leader of a session.
const OF_TERMINAL: [c_int; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGWINCH,
];

/// Waits for a signal. `None`: there was none in this time, or the process was stopped and continued.
pub fn next(at_most: Duration) -> Option<Signal> {
    let mut all = MaybeUninit::uninit();
    // SAFETY: sigfillset fills the set.
    let all = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        all.assume_init()
    };
    wait(&all, at_most)
}

fn wait(which: &sigset_t, at_most: Duration) -> Option<Signal> {
    let timeout = libc::timespec {
        tv_sec: at_most.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    let mut info = MaybeUninit::<siginfo_t>::uninit();
    // SAFETY: all three live across the call; a positive result means that `info` was filled.
    unsafe {
        let number = libc::sigtimedwait(which, info.as_mut_ptr(), &timeout);
        (number > 0).then(|| Signal { info: info.assume_init() })
    }
}

fn only(signal: c_int) -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset fills the set; the number is valid.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        set.assume_init()
    }
}

/// Discards the signals that are pending.
pub fn discard() {
    while next(Duration::ZERO).is_some() {}
}

impl Signal {
    pub fn number(&self) -> c_int {
        self.info.si_signo
    }

    /// Whether the command is to get this signal: without this process between, it would have got it, and it has not
    /// got it already.
    pub fn is_for(&self, command: pid_t) -> bool {
        let by_kernel = self.info.si_code == libc::SI_KERNEL;
        match self.number() {
            libc::SIGCHLD => false,
            // The time that this process itself took.
            libc::SIGXCPU if by_kernel => false,
            number if by_kernel && OF_TERMINAL.contains(&number) => {
                self.of_terminal_is_for(command)
            }
            _ => !self.is_from_below(command),
        }
    }

    /// Whether this process sent it, or the command or a descendant. A failed write sends SIGPIPE or SIGXFSZ in the
    /// writer's name; the command means its group, and has the signal already, or its parent. A descendant that has ended
    /// meanwhile cannot be told from a `kill` elsewhere: the command then gets the signal again.
    fn is_from_below(&self, command: pid_t) -> bool {
        let by_process = [libc::SI_USER, libc::SI_QUEUE, libc::SI_TKILL];
        if !by_process.contains(&self.info.si_code) {
            return false;
        }
        // SAFETY: these codes fill the field. 0: a process of an outer pid namespace. getpid always succeeds.
        let (sender, own) = unsafe { (self.info.si_pid(), libc::getpid()) };
        sender == own || sender != 0 && is_below(sender as u32, command as u32)
    }

    /// The terminal sends to a group, or, when it is closed, to the leader of the session alone.
    fn of_terminal_is_for(&self, command: pid_t) -> bool {
        // SAFETY: plain calls; the command is not reaped yet, so the pid is its own.
        unsafe {
            let session = libc::getsid(0);
            let to_leader = matches!(self.number(), libc::SIGHUP | libc::SIGCONT);
            libc::getsid(command) == session
                && (libc::getpgid(command) != libc::getpgrp()
                    || to_leader && session == libc::getpid())
        }
    }

    /// Sends the command this signal, with its value if it has one.
    pub fn send_to(&self, command: pid_t) {
        // SAFETY: plain calls; the command is not reaped yet, so the pid is its own.
        unsafe {
            if self.info.si_code != libc::SI_QUEUE
                || libc::syscall(libc::SYS_rt_sigqueueinfo, command, self.number(), &self.info) != 0
            {
                libc::kill(command, self.number());
            }
        }
    }
}

/// Stops this process by the signal that stopped the command, so that the parent sees the same, until SIGCONT. False
/// if this process does not stop: the kernel stops no group whose parents are in other sessions.
pub fn stop_by(signal: c_int) -> bool {
    // SAFETY: plain calls on filled sets.
    unsafe {
        let mut pending = MaybeUninit::uninit();
        libc::sigpending(pending.as_mut_ptr());
        // It was continued already.
        if libc::sigismember(pending.as_ptr(), libc::SIGCONT) != 1 {
            let stop = only(signal);
            let before = libc::signal(signal, libc::SIG_DFL);
            // One that the terminal sent here too becomes one with it.
            libc::kill(libc::getpid(), signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &stop, std::ptr::null_mut());
            libc::pthread_sigmask(libc::SIG_BLOCK, &stop, std::ptr::null_mut());
            libc::signal(signal, before);
        }
    }
    wait(&only(libc::SIGCONT), Duration::ZERO).is_some()
}

/// Ends this process by the signal that ended the command, so that the parent sees the same status. Returns only
/// if the signal cannot end this process.
pub fn die_by(signal: c_int) {
    // SAFETY: plain calls on a filled set.
    unsafe {
        // The command wrote its core file already.
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::signal(signal, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &only(signal), std::ptr::null_mut());
        libc::raise(signal);
    }
}

/// Whether this is the process `root` or a descendant.
fn is_below(pid: u32, root: u32) -> bool {
    /// Deeper chains of parents are cut, as pids may be reused while one is read.
    const DEEPEST: usize = 1000;
    let parent = |pid: &u32| Stat::of(*pid).map(|stat| stat.parent).filter(|pid| *pid > 0);
    std::iter::successors(Some(pid), parent).take(DEEPEST).any(|pid| pid == root)
}
