//! Stream captures in progress. During one, requests on its streams become graph nodes, and some driver
//! calls are not permitted. So captures are counted, and a stream's state is queried only while one is
//! in progress.

use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Default)]
pub struct StreamCaptures {
    running: AtomicU32,
}

impl StreamCaptures {
    /// Whether a stream of this process is being captured: then the recorder's only driver call is
    /// cuStreamIsCapturing.
    #[inline]
    pub fn any(&self) -> bool {
        self.running.load(Ordering::Relaxed) != 0
    }

    pub fn began(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls cuStreamEndCapture by `real`. A failure may or may not end the capture, so the stream's
    /// state is compared before and after.
    pub fn end<R>(&self, is_capturing: impl Fn() -> bool, real: impl FnOnce() -> R) -> R {
        let before = is_capturing();
        let result = real();
        if before && !is_capturing() {
            let less = |running: u32| running.checked_sub(1);
            let _ = self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
        result
    }

    /// Whether a request on a stream becomes a graph node. Queries the stream only while a capture is
    /// in progress.
    #[inline]
    pub fn takes(&self, is_capturing: impl FnOnce() -> bool) -> bool {
        self.any() && is_capturing()
    }
}
