//! Stream captures in progress. During one, requests on its streams become graph nodes, and some driver
//! calls are not permitted: they would invalidate it. So captures are counted, and a stream's state is
//! queried only while one is in progress.
//!
//! A capture ends with cuStreamEndCapture on the stream where it began. It also ends, and nothing says
//! so, when that stream, its context or the thread of a per-thread default stream ends. So each capture
//! is listed with what it ends with. A stream that joined a capture by an event may end before: the
//! capture goes on. (Measured on an H100, driver 580.)

use crate::runtime::fallible::TryPush;
use crate::runtime::lock::Lock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The stream where a capture began. `thread` is 0 but for the per-thread default stream, of which each
/// thread has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub stream: u64,
    /// The handle of the stream's context; 0: not known.
    pub context: u64,
    pub thread: i32,
}

#[derive(Debug)]
struct Capture {
    /// Handles are reused, numbers are not.
    number: u64,
    origin: Origin,
}

#[derive(Default)]
struct Listed {
    captures: Vec<Capture>,
    last: u64,
    /// Captures that the list has no host memory for.
    unlisted: u32,
}

#[derive(Default)]
pub struct StreamCaptures {
    /// The number of captures in `listed`.
    running: AtomicU32,
    /// Elsewhere: calls read the other field alone.
    listed: Box<Lock<Listed>>,
}

/// The captures that a call may end. Taken before the call: after it, a new stream may have the same
/// handle and be captured already.
#[derive(Debug, Default)]
#[must_use]
pub struct Ending {
    numbers: Vec<u64>,
}

impl StreamCaptures {
    /// Whether a stream of this process is being captured: then the recorder's only driver call is
    /// cuStreamIsCapturing.
    #[inline]
    pub fn any(&self) -> bool {
        self.running.load(Ordering::Relaxed) != 0
    }

    pub fn began(&self, origin: Origin) {
        self.change(|listed| {
            listed.last += 1;
            let number = listed.last;
            if listed.captures.try_push(Capture { number, origin }).is_err() {
                listed.unlisted += 1;
            }
        });
    }

    /// Calls cuStreamEndCapture by `real`. A failure may or may not end the capture, so the stream's
    /// state is compared before and after.
    pub fn end<R>(
        &self,
        origin: Origin,
        is_capturing: impl Fn() -> bool,
        real: impl FnOnce() -> R,
    ) -> R {
        let ending =
            self.ending(|known| known.stream == origin.stream && known.thread == origin.thread);
        let before = is_capturing();
        let result = real();
        if before && !is_capturing() {
            match ending.numbers.is_empty() {
                true => self.change(|listed| listed.unlisted = listed.unlisted.saturating_sub(1)),
                false => self.ended(ending),
            }
        }
        result
    }

    /// Before a call that ends the streams which `which` names.
    pub fn ending(&self, which: impl Fn(&Origin) -> bool) -> Ending {
        let mut ending = Ending::default();
        if !self.any() {
            return ending;
        }
        let listed = self.listed.lock();
        for capture in listed.captures.iter().filter(|capture| which(&capture.origin)) {
            // Without host memory the capture counts on: requests that only a reading of the pools
            // would show to fit are then refused.
            let _ = ending.numbers.try_push(capture.number);
        }
        ending
    }

    /// After that call, if it succeeded.
    pub fn ended(&self, ending: Ending) {
        if !ending.numbers.is_empty() {
            self.change(|listed| {
                listed.captures.retain(|capture| !ending.numbers.contains(&capture.number));
            });
        }
    }

    /// Removes the captures of per-thread streams whose thread has ended.
    pub fn forget_ended_threads(&self, lives: impl Fn(i32) -> bool) {
        if self.any() {
            self.change(|listed| {
                listed.captures.retain(|capture| match capture.origin.thread {
                    0 => true,
                    thread => lives(thread),
                });
            });
        }
    }

    fn change(&self, change: impl FnOnce(&mut Listed)) {
        let mut listed = self.listed.lock();
        change(&mut listed);
        let running = (listed.captures.len() as u32).saturating_add(listed.unlisted);
        self.running.store(running, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_STREAM: Origin = Origin { stream: 0x500, context: 0x10, thread: 0 };
    const OF_THREAD: Origin = Origin { stream: 2, context: 0x10, thread: 77 };

    #[test]
    fn a_capture_ends_with_its_stream_and_not_with_another_of_the_same_handle() {
        let captures = StreamCaptures::default();
        captures.began(OF_STREAM);
        let none = captures.ending(|origin| origin.stream == 0x600);
        captures.ended(none);
        assert!(captures.any());
        let ending = captures.ending(|origin| origin.stream == OF_STREAM.stream);
        // The driver has given the handle out again before its call returned.
        captures.began(OF_STREAM);
        captures.ended(ending);
        assert!(captures.any());
        let again = captures.ending(|origin| origin.stream == OF_STREAM.stream);
        captures.ended(again);
        assert!(!captures.any());
    }

    #[test]
    fn a_capture_ends_with_its_context() {
        let captures = StreamCaptures::default();
        captures.began(OF_STREAM);
        captures.began(OF_THREAD);
        captures.began(Origin { context: 0x20, ..OF_STREAM });
        let ending = captures.ending(|origin| origin.context == 0x10);
        captures.ended(ending);
        assert!(captures.any(), "of another context");
        let ending = captures.ending(|origin| origin.context == 0x20);
        captures.ended(ending);
        assert!(!captures.any());
    }

    #[test]
    fn a_capture_of_a_per_thread_stream_ends_with_the_thread() {
        let captures = StreamCaptures::default();
        captures.began(OF_STREAM);
        captures.began(OF_THREAD);
        captures.began(Origin { thread: 78, ..OF_THREAD });
        captures.forget_ended_threads(|thread| thread == 78);
        captures.end(Origin { thread: 79, ..OF_THREAD }, || false, || ());
        assert_eq!(captures.running.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_failed_end_leaves_a_capture_that_goes_on() {
        let captures = StreamCaptures::default();
        captures.began(OF_STREAM);
        let state = std::cell::Cell::new(true);
        captures.end(OF_STREAM, || state.get(), || ());
        assert!(captures.any());
        captures.end(OF_STREAM, || state.get(), || state.set(false));
        assert!(!captures.any());
    }
}
