//! The stream and the private pool that PyTorch's allocator serves this thread's requests from.
//!
//! The allocator reuses free blocks within one stream and one pool only, and its reports name neither. Both are noted
//! when the calls that determine them pass on the thread, so that a block's report reads them and calls nothing:
//!
//! * The stream is the thread's current one for the device. It is the default stream, id 0, until
//!   `c10::cuda::setCurrentCUDAStream` sets another. Ids are PyTorch's own; those of external streams are handles.
//! * The pool is private to a CUDA graph if the request's stream is being captured. While captures are in progress, the
//!   allocator asks the driver for that (cuStreamGetCaptureInfo) before it looks for a block.

use crate::runtime::rare::rare;
use crate::runtime::thread_slot::next_block;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vramtrace_format::{DeviceId, PoolId};

/// Where a request is served from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    pub stream: u64,
    /// The driver's id of the capture, plus 1; 0: the default pool.
    pub capture: u64,
}

/// This thread's stream for the device is another from now on.
pub fn set_stream(device: u8, stream: u64) {
    if let Some(current) = next_block().streams.get(usize::from(device)) {
        current.set(stream);
    }
}

/// The driver's answer about a stream: the id of its capture.
pub fn set_capture(id: Option<u64>) {
    next_block().capture.set(id.map_or(0, |id| id.wrapping_add(1)));
}

/// The lane of a request that was served now. `captures`: whether any capture is in progress.
#[inline(always)]
pub fn current(device: DeviceId, captures: impl FnOnce() -> bool) -> Lane {
    let next = next_block();
    let stream = next.streams.get(usize::from(device.0)).map_or(0, Cell::get);
    let mut capture = next.capture.get();
    if capture != 0 {
        rare();
        // An answer is for one request: the next one asks again.
        capture = if captures() { next.capture.take() } else { 0 };
    }
    Lane { stream, capture }
}

/// Captures that have a number of their own; further ones share the last number.
pub const MOST: usize = 1 << 10;

/// Small numbers of captures, from 1, in the order of their first blocks.
pub struct CaptureNumbers([AtomicU64; MOST]);

impl Default for CaptureNumbers {
    fn default() -> Self {
        CaptureNumbers([const { AtomicU64::new(0) }; MOST])
    }
}

impl CaptureNumbers {
    /// The number of a [`Lane::capture`], as the pool of a block's site; 0 for none.
    pub fn pool(&self, capture: u64) -> PoolId {
        if capture == 0 {
            return PoolId(0);
        }
        let is_of = |known: &AtomicU64| {
            let id = known.load(Relaxed);
            id == capture
                || id == 0
                    && known
                        .compare_exchange(0, capture, Relaxed, Relaxed)
                        .map_or_else(|id| id == capture, |_| true)
        };
        PoolId(self.0.iter().position(is_of).map_or(MOST, |index| index + 1) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_streams_by_device() {
        let device = DeviceId(3);
        set_stream(3, 0x23);
        assert_eq!(current(device, || false), Lane { stream: 0x23, capture: 0 });
        assert_eq!(current(DeviceId(2), || false).stream, 0);
        std::thread::spawn(move || assert_eq!(current(device, || false).stream, 0)).join().unwrap();
        for unknown in [16, 254, DeviceId::UNKNOWN.0] {
            set_stream(unknown, 7);
            assert_eq!(current(DeviceId(unknown), || false).stream, 0);
        }
        set_stream(3, 0);
        assert_eq!(current(device, || false), Lane::default());
    }

    #[test]
    fn an_answer_about_a_capture_is_for_one_request() {
        set_capture(Some(0));
        assert_eq!(current(DeviceId(0), || false).capture, 0, "none is in progress");
        assert_eq!(current(DeviceId(0), || true).capture, 1);
        assert_eq!(current(DeviceId(0), || true).capture, 0);
        set_capture(Some(5));
        set_capture(None);
        assert_eq!(current(DeviceId(0), || true).capture, 0);
    }

    #[test]
    fn captures_are_numbered_and_the_last_number_is_shared() {
        let numbers = CaptureNumbers::default();
        assert_eq!(numbers.pool(0), PoolId(0));
        for capture in 1..=MOST as u64 + 9 {
            let expected = PoolId((capture as usize).min(MOST) as u16);
            assert_eq!(numbers.pool(capture * 7), expected);
            assert_eq!(numbers.pool(capture * 7), expected);
        }
        assert_eq!(numbers.pool(7), PoolId(1));
    }
}
