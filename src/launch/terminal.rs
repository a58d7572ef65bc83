//! The foreground process group of the terminal, for commands that make a group of their own, as interactive shells.

use std::fs::File;
use std::os::fd::AsRawFd;

use libc::pid_t;
use vramtrace_reader::files;

/// The terminal of this session.
pub struct Terminal {
    device: File,
}

impl Terminal {
    /// `None`: the session has none.
    pub fn open() -> Option<Terminal> {
        Some(Terminal { device: files::terminal().ok()? })
    }

    pub fn foreground(&self) -> Option<pid_t> {
        // SAFETY: the descriptor is open.
        let group = unsafe { libc::tcgetpgrp(self.device.as_raw_fd()) };
        (group > 0).then_some(group)
    }

    /// Makes this group the foreground group. SIGTTOU must be blocked.
    pub fn give_to(&self, group: pid_t) {
        // SAFETY: the descriptor is open.
        unsafe { libc::tcsetpgrp(self.device.as_raw_fd(), group) };
    }
}
