//! Starts the command and waits for it. One loop on one thread with two sources: signals, of which SIGCHLD tells that
//! the command stopped or ended, and the time of the process monitor.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use libc::{c_int, pid_t};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, waitid};

use super::inherited::Inherited;
use super::monitor::{MonitorReport, ProcessMonitor};
use super::signals;
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

/// `signal 9 (SIGKILL)`; of others than the usual ones the number alone.
pub fn signal_name(signal: c_int) -> String {
    const NAMES: &str = "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM";
    let name = NAMES.split(' ').zip(1..).find(|(_, number)| *number == signal);
    format!("signal {signal}{}", name.map_or(String::new(), |(name, _)| format!(" (SIG{name})")))
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
    let mut child = Command::new(&command[0]);
    child.args(&command[1..]).envs(variables.iter().map(|(name, value)| (name, value)));
    if quiet_stdout {
        child.stdout(std::io::stderr().as_fd().try_clone_to_owned()?);
    }
    // Before the command starts, so that no signal is lost between.
    let inherited = std::sync::Arc::new(Inherited::take()?);
    let of_child = std::sync::Arc::clone(&inherited);
    // SAFETY: async-signal-safe calls between fork and exec.
    unsafe {
        child.pre_exec(move || {
            of_child.restore();
            Ok(())
        });
    }
    let started = child.spawn().map_err(|error| not_started(&command[0], &error));
    let ended = started.and_then(|mut child| {
        let pid = child.id() as pid_t;
        monitor.follow(pid as u32);
        wait(pid, &mut monitor);
        // The process is a zombie until here, so its pid was not reused and no signal reached another process.
        Ok(child.wait()?)
    });
    // Signals that arrived while the command ended must not end this process.
    signals::discard();
    inherited.restore_mask();
    let status = ended?;
    let exited = Status::Exited(status.code().unwrap_or(1) as u8);
    Ok((status.signal().map_or(exited, Status::Signalled), monitor.end()))
}

/// The monitor looks after 0.1 s, then each time after twice as long, at last once a second; and at most a part of the time,
/// one in so many.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(1);
const SHARE: u32 = 20;

/// Until the command has ended; it is not reaped.
fn wait(pid: pid_t, monitor: &mut ProcessMonitor) {
    let (mut pause, mut look) = (FIRST_LOOK, Instant::now() + FIRST_LOOK);
    while !has_ended(pid) {
        match signals::next(look.saturating_duration_since(Instant::now())) {
            Some(signal) if signal.number() == libc::SIGCHLD => stop_with(pid),
            Some(signal) if signal.is_for(pid) => signal.send_to(pid),
            None if Instant::now() >= look => {
                let begin = Instant::now();
                monitor.look(begin);
                pause = (pause * 2).min(LAST_PAUSE);
                look = Instant::now() + pause.max(begin.elapsed() * SHARE);
            }
            _ => {}
        }
    }
}

/// After SIGCHLD. If the command was stopped, as by Ctrl-Z, this process stops too, so that its shell goes on. What
/// continues this process continues the command.
fn stop_with(pid: pid_t) {
    let mut state = newest_change(pid);
    while let Some(signal) = state.and_then(|state| state.stopping_signal()) {
        if !signals::stop_by(signal) {
            return;
        }
        state = newest_change(pid);
        if state.is_none() {
            resume(pid);
        }
    }
}

/// Continues the command, which is still stopped, and its process group if that is not the one of this process.
fn resume(pid: pid_t) {
    // SAFETY: plain calls; the command is not reaped yet, so pid and group are its own.
    unsafe {
        let group = libc::getpgid(pid);
        let is_other = group > 0 && group != libc::getpgrp();
        libc::kill(if is_other { -group } else { pid }, libc::SIGCONT);
    }
}

/// True also where the kernel does not tell: what reaps the command then waits for its end.
fn has_ended(pid: pid_t) -> bool {
    !matches!(change(pid, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT), Ok(None))
}

/// The state that the command is in now, if it was stopped or continued since the last call.
fn newest_change(pid: pid_t) -> Option<WaitIdStatus> {
    let next = || change(pid, WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED).ok().flatten();
    std::iter::from_fn(next).last()
}

/// A change of state of the command. `None`: there is none.
fn change(pid: pid_t, which: WaitIdOptions) -> rustix::io::Result<Option<WaitIdStatus>> {
    let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
    waitid(WaitId::Pid(pid), which | WaitIdOptions::NOHANG)
}

fn not_started(program: &OsString, error: &std::io::Error) -> Failure {
    let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    let why = match error.kind() {
        ErrorKind::NotFound if Path::new(program).exists() => {
            "its interpreter does not exist".to_string()
        }
        ErrorKind::NotFound => "no such command".to_string(),
        ErrorKind::WouldBlock => {
            "no further process is permitted (ulimit -u, or pids.max of the cgroup)".to_string()
        }
        _ => error.to_string(),
    };
    Failure { code, message: format!("{}: {why}; nothing was run", program.display()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(Status::Exited(3).code(), 3);
        assert_eq!(Status::Signalled(libc::SIGTERM).code(), 143);
    }
}
