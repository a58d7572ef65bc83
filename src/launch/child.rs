//! Starts the command and waits for it. One event loop with three sources: signals to forward, the timer of the
//! process monitor, the end of the command.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crossbeam_channel::{after, bounded, select, unbounded};

use super::monitor::{MonitorReport, ProcessMonitor};
use super::signals::{Signal, Signals};
use crate::error::Failure;

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Exited(u8),
    Signalled(i32),
}

impl Status {
    /// As shells show it: 128 + signal.
    pub fn code(self) -> u8 {
        match self {
            Status::Exited(code) => code,
            Status::Signalled(signal) => 128u8.wrapping_add(signal as u8),
        }
    }
}

/// Exit statuses of env(1).
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

pub fn run(
    command: &[OsString],
    variables: &[(&'static str, OsString)],
    quiet_stdout: bool,
    mut monitor: ProcessMonitor,
) -> Result<(Status, MonitorReport), Failure> {
    let (signal_sender, signals) = unbounded();
    // Blocked before the command starts, so that none is lost between.
    let catching = Signals::catch(signal_sender)?;
    let mask = catching.mask_before();
    let mut child = Command::new(&command[0]);
    child.args(&command[1..]).envs(variables.iter().map(|(name, value)| (name, value)));
    if quiet_stdout {
        child.stdout(std::io::stderr().as_fd().try_clone_to_owned()?);
    }
    // SAFETY: one async-signal-safe call between fork and exec.
    unsafe {
        child.pre_exec(move || {
            libc::pthread_sigmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
            Ok(())
        });
    }
    let mut child = child.spawn().map_err(|error| not_started(&command[0], &error))?;
    let pid = child.id() as libc::pid_t;
    monitor.follow(pid);

    let (ended_sender, ended) = bounded(1);
    let waiter = std::thread::spawn(move || {
        wait_without_reaping(pid);
        let _ = ended_sender.send(());
    });
    let start = Instant::now();
    let mut looks = 0;
    loop {
        let next = time_of_look(looks).saturating_sub(start.elapsed());
        select! {
            recv(signals) -> signal => if let Ok(signal) = signal { forward(signal, pid) },
            recv(after(next)) -> _ => {
                monitor.look();
                looks += 1;
            }
            recv(ended) -> _ => break,
        }
    }
    // The process is a zombie until here, so its pid was not reused and `forward` could not signal another process.
    let status = child.wait()?;
    let _ = waiter.join();
    // Signals that arrived while the command ended must not end this process: they are dropped before the mask is
    // restored.
    drop(catching);
    Ok((status_of(status), monitor.end()))
}

/// When the monitor looks for the n-th time, since the start: at 0.1, 0.2, 0.4, 0.8 s, then every second.
fn time_of_look(looks: u32) -> Duration {
    match looks {
        0..=3 => Duration::from_millis(100 << looks),
        _ => Duration::from_secs(looks as u64 - 3),
    }
}

fn wait_without_reaping(pid: libc::pid_t) {
    loop {
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::uninit();
        let flags = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: `info` lives across the call.
        let result = unsafe { libc::waitid(libc::P_PID, pid as _, info.as_mut_ptr(), flags) };
        if result == 0 || std::io::Error::last_os_error().kind() != ErrorKind::Interrupted {
            return;
        }
    }
}

/// Forwards a signal, unless the terminal sent it and the command is in the same group and has it already.
fn forward(signal: Signal, pid: libc::pid_t) {
    // SAFETY: plain calls; the child is not reaped yet, so the pid is its own.
    unsafe {
        if !(signal.from_kernel && libc::getpgid(pid) == libc::getpgrp()) {
            libc::kill(pid, signal.number);
        }
    }
}

fn status_of(status: ExitStatus) -> Status {
    match status.signal() {
        Some(signal) => Status::Signalled(signal),
        None => Status::Exited(status.code().unwrap_or(1) as u8),
    }
}

fn not_started(program: &OsString, error: &std::io::Error) -> Failure {
    let code = match error.kind() {
        ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    };
    let why = match error.kind() {
        ErrorKind::NotFound => "no such command".to_string(),
        _ => error.to_string(),
    };
    Failure { code, message: format!("{}: {why}; nothing was run", program.display()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_early_and_then_once_a_second() {
        let at: Vec<u128> = (0..7).map(|n| time_of_look(n).as_millis()).collect();
        assert_eq!(at, [100, 200, 400, 800, 1000, 2000, 3000]);
    }

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(Status::Exited(3).code(), 3);
        assert_eq!(Status::Signalled(libc::SIGTERM).code(), 143);
    }
}
