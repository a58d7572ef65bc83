//! One line on stderr: `vramtrace: ...`, written at once, without a lock or an allocation.

use crate::runtime::stderr;
use std::fmt::{Arguments, Write};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use vramtrace_format::shown::shown;

/// Longest line, with its end.
const MAX: usize = 1024;

struct Line {
    bytes: [u8; MAX],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        // Values of the environment may hold characters that break or colour the line.
        for character in text.chars().map(shown) {
            let end = self.len + character.len_utf8();
            if end > MAX - 1 {
                break;
            }
            character.encode_utf8(&mut self.bytes[self.len..end]);
            self.len = end;
        }
        Ok(())
    }
}

/// A line that is too long is cut. Nothing is written if stderr is closed or would block.
pub fn line(what: Arguments) {
    let mut line = Line { bytes: [0; MAX], len: 0 };
    let _ = write!(line, "vramtrace: {what}");
    line.bytes[line.len] = b'\n';
    stderr::write(&line.bytes[..=line.len]);
}

/// What is said once: by a process, or by the first of its forked children that comes there.
#[derive(Clone, Copy)]
pub enum Once {
    Panic,
    NoHostMemory,
    OnlyWarns,
    NoNativeStacks,
    EarlyRanges,
    NvtxStrings,
    Devices,
    DriverInternal,
    Pools,
    Streams,
    RoundedAsByDefault,
    NoTask,
    NvmlIsSilent,
}

static SAID: AtomicU32 = AtomicU32::new(0);

impl Once {
    /// True for the first caller.
    pub fn begins(self) -> bool {
        let bit = 1 << self as u32;
        SAID.load(Relaxed) & bit == 0 && SAID.fetch_or(bit, Relaxed) & bit == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use testkit::{in_child, redirect};

    #[test]
    fn a_line_is_one_line() {
        let (mut out, into) = std::io::pipe().unwrap();
        // In a child, so that the test's own stderr stays.
        let ended = in_child(|| {
            redirect(2, &into);
            line(format_args!("VRAMTRACE_MAX={}: no\nsize \x1b[31m \u{9b}32m\u{202e}", "5"));
            line(format_args!("{:2000}", "é"));
            true
        });
        assert_eq!(ended, Ok(true));
        drop(into);
        let mut text = String::new();
        out.read_to_string(&mut text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], "vramtrace: VRAMTRACE_MAX=5: no?size ?[31m ?32m?");
        assert_eq!(lines[1].len(), MAX - 1);
    }

    #[test]
    fn nobody_reads_stderr() {
        let (out, into) = std::io::pipe().unwrap();
        drop(out);
        let ended = in_child(|| {
            // Rust's runtime ignores SIGPIPE in test binaries; a C program does not.
            // SAFETY: the child has no other thread, and its default action runs no code.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            redirect(2, &into);
            line(format_args!("into nowhere"));
            // SAFETY: the child's own, which `line` alone uses.
            unsafe { libc::close(2) };
            line(format_args!("closed"));
            true
        });
        assert_eq!(ended, Ok(true));
    }

    #[test]
    fn a_signal_of_the_programs_stays_pending() {
        let (out, into) = std::io::pipe().unwrap();
        drop(out);
        // SAFETY: the child has no other thread; the sets are its own, and begin empty.
        let ended = in_child(|| unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&mut set, libc::SIGXFSZ);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            libc::raise(libc::SIGXFSZ);
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            redirect(2, &into);
            line(format_args!("into nowhere"));
            libc::sigpending(&mut set);
            let left = (libc::SIGXFSZ, libc::SIGPIPE);
            libc::sigismember(&set, left.0) == 1 && libc::sigismember(&set, left.1) == 0
        });
        assert_eq!(ended, Ok(true));
    }
}
