//! Recording pauses while no thread can make room for events: see [`super::attempts`].
//!
//! Before the file is open, events are kept as those before the first one that opens it. Once a window is full and the next
//! one cannot be made, events are lost and counted, and the state is `HELD`. The thread that can make it, at its next call,
//! goes on: its window begins with the records of a recording that was off since then, and a checkpoint follows. Caps,
//! totals and definitions are not affected.

use super::attempts::Attempts;
use super::failure::Failure;
use super::{HELD, RUNNING, TraceWriter};
use crate::runtime::log;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vramtrace_format::Definition;

#[derive(Default)]
pub(super) struct Held {
    /// To open the file.
    pub(super) opening: Attempts,
    /// Events that were lost since the last time it went on.
    pub(super) lost: AtomicU64,
    /// The lines about the pause and its end were printed.
    said: AtomicBool,
    said_end: AtomicBool,
}

impl TraceWriter {
    /// This thread cannot make room for an event, which is lost.
    #[cold]
    pub(super) fn hold(&self, failure: Failure) {
        self.held.lost.fetch_add(1, Ordering::Relaxed);
        // With totals alone little is lost, and a later checkpoint has it.
        if self.turn(RUNNING, HELD) {
            self.short.end();
            self.say_held(failure, &self.path().unwrap_or_else(|| self.wanted()));
        }
    }

    pub(super) fn say_held(&self, failure: Failure, path: &Path) {
        self.show_recording(false);
        if !self.held.said.swap(true, Ordering::Relaxed) {
            log::line(format_args!(
                "cannot record into {}: {failure}; recording pauses until a thread can, the program goes on",
                path.display()
            ));
        }
    }

    /// Ends the pause, if this thread can.
    pub(super) fn resume_held(&self, now_ns: u64) {
        match self.trace().map(|trace| trace.resume(now_ns)) {
            Some(Err(failure)) => self.fail(failure, now_ns),
            _ if self.turn(HELD, RUNNING) => self.went_on(),
            _ => {}
        }
    }

    /// Recording goes on, and lacks the events that were lost.
    pub(super) fn went_on(&self) {
        let lost = self.held.lost.swap(0, Ordering::Relaxed);
        self.show_recording(true);
        if lost > 0 {
            self.owes_checkpoint.store(true, Ordering::Relaxed);
            self.due_ns.store(0, Ordering::Relaxed);
        }
        if self.held.said.load(Ordering::Relaxed) {
            let path = self.path().unwrap_or_default();
            let text =
                format!("{}: recording had paused, {lost} events are missing", path.display());
            if !self.held.said_end.swap(true, Ordering::Relaxed) {
                log::line(format_args!("{text}; it goes on"));
            }
            self.define(&Definition::Note { text });
        }
    }

    /// Does what other threads could not.
    pub(super) fn catch_up(&self, now_ns: u64) {
        if self.state.load(Ordering::Acquire) == HELD {
            self.resume_held(now_ns);
        } else if let Some(Err(failure)) = self.trace().map(|trace| trace.catch_up(now_ns)) {
            self.fail(failure, now_ns);
        }
    }
}
