//! Stream captures in progress. During one, requests on its streams become graph nodes, and calls
//! that we would like to make may be illegal: so we count, and only while one runs we ask.

use crate::entry::cuda::{CU_STREAM_CAPTURE_STATUS_NONE, Stream};
use crate::entry::{driver, inside};
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Default)]
pub struct Captures {
    running: AtomicU32,
}

impl Captures {
    /// Some stream of this process is being captured: no driver call of ours but
    /// cuStreamIsCapturing.
    #[inline]
    pub fn any(&self) -> bool {
        self.running.load(Ordering::Relaxed) != 0
    }

    pub fn began(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls cuStreamEndCapture through `real`. It may fail and end the capture, or fail and leave
    /// it: the stream's own state before and after tells.
    pub fn end<R>(&self, stream: Stream, per_thread: bool, real: impl FnOnce() -> R) -> R {
        let before = is_capturing(stream, per_thread);
        let result = real();
        if before && !is_capturing(stream, per_thread) {
            let less = |running: u32| running.checked_sub(1);
            let _ = self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
        result
    }

    /// Whether a request on this stream becomes a node of a graph. Asks the driver only while
    /// some capture runs; the legacy stream cannot be captured.
    #[inline]
    pub fn takes(&self, stream: Stream, per_thread: bool) -> bool {
        self.any() && is_capturing(stream, per_thread)
    }
}

#[cold]
fn is_capturing(stream: Stream, per_thread: bool) -> bool {
    let handle = stream as u64;
    if handle == 1 || (handle == 0 && !per_thread) {
        return false;
    }
    let ask = match per_thread {
        true => driver().stream_is_capturing_ptsz.or(driver().stream_is_capturing),
        false => driver().stream_is_capturing,
    };
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the program's own stream, and room for the answer.
    let result = ask.map(|ask| inside(|| unsafe { ask(stream, &mut status) }));
    result == Some(0) && status != CU_STREAM_CAPTURE_STATUS_NONE
}
