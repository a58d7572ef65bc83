//! Queries the driver whether a stream is being captured.

use super::cuda::{CU_STREAM_CAPTURE_STATUS_NONE, Stream};
use super::depth::inside;
use super::functions::driver;

/// The legacy stream cannot be captured, so it is not queried.
#[cold]
pub(crate) fn is_capturing(stream: Stream, per_thread: bool) -> bool {
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
