//! Stream captures in progress. During one, requests on its streams become graph nodes, and calls
//! that the library would like to make may be illegal: so they are counted, and the driver is asked
//! about a stream only while one runs.

use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Default)]
pub struct StreamCaptures {
    running: AtomicU32,
}

impl StreamCaptures {
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
    pub fn end<R>(&self, is_capturing: impl Fn() -> bool, real: impl FnOnce() -> R) -> R {
        let before = is_capturing();
        let result = real();
        if before && !is_capturing() {
            let less = |running: u32| running.checked_sub(1);
            let _ = self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
        result
    }

    /// Whether a request on a stream becomes a node of a graph: asks whether the stream is being
    /// captured, only while some capture runs.
    #[inline]
    pub fn takes(&self, is_capturing: impl FnOnce() -> bool) -> bool {
        self.any() && is_capturing()
    }
}
