//! Streams: creation and destruction; begin and end of captures.

use super::prelude::*;
use crate::hooks::call::attribution::watched_by;
use crate::hooks::process::pool_reserves::refresh_after_frees;
use crate::hooks::process::target::current_context;
use crate::hooks::process::texts::say_once;
use crate::model::attribution::driver_internal::{DriverActivity, Followed, Originator};
use crate::model::stream_captures::Origin;
use crate::runtime::log::Once;
use crate::runtime::thread_slot;
use std::ptr::null_mut;
use vramtrace_format::Cause;
use vramtrace_format::size::AsGiven;

/// Streams 0 to 2 are the default ones: legacy by default, legacy, per-thread.
pub const PER_THREAD_STREAM: u64 = 2;

/// The stream that a call names.
#[derive(Clone, Copy)]
pub struct StreamOfCall {
    handle: Stream,
    /// A `_ptsz` variant's stream 0 is the per-thread default one.
    is_per_thread: bool,
}

impl StreamOfCall {
    #[inline(always)]
    pub fn new<R: Row>(_: Call<R>, handle: Stream) -> StreamOfCall {
        StreamOfCall { handle, is_per_thread: R::IS_PER_THREAD }
    }

    #[inline(always)]
    pub fn id(self) -> u64 {
        match self.handle.is_null() && self.is_per_thread {
            true => PER_THREAD_STREAM,
            false => self.handle as u64,
        }
    }

    /// Whether a request on it becomes a graph node. The driver is asked only while a capture is in progress.
    #[inline(always)]
    pub fn is_captured(self, p: &Process) -> bool {
        p.stream_captures.any() && self.is_capturing()
    }

    /// The legacy stream cannot be captured, so it is not queried.
    #[cold]
    fn is_capturing(self) -> bool {
        if self.id() < PER_THREAD_STREAM {
            return false;
        }
        let stream = self.id() as Stream;
        // SAFETY: the program's own stream.
        let status = answer(0, |s| Some(unsafe { driver().stream_is_capturing?(stream, s) }));
        status.is_some_and(|status| status != CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// The context of a created stream; 0: the driver gives none.
    pub fn context(self) -> u64 {
        let stream = self.id() as Stream;
        // SAFETY: the program's own stream.
        let context = answer(null_mut(), |c| Some(unsafe { driver().stream_get_ctx?(stream, c) }));
        context.map_or(0, |context| context as u64)
    }

    /// A capture that begins or ends in it, without its context.
    fn origin(self) -> Origin {
        let stream = self.id();
        let thread = if stream == PER_THREAD_STREAM { thread_slot::tid() } else { 0 };
        Origin { stream, context: 0, thread }
    }
}

/// cuStreamBeginCapture and its like.
pub fn begin_capture(call: Call<impl Row>, stream: Stream) -> CUresult {
    let stream = StreamOfCall::new(call, stream);
    // Before the capture begins: a query of a stream's context would invalidate it.
    let context = match stream.id() {
        PER_THREAD_STREAM => current_context(),
        0..PER_THREAD_STREAM => 0,
        _ if stream.is_capturing() => 0,
        _ => stream.context(),
    };
    let result = call.forward();
    if result == 0 {
        call.p.stream_captures.began(Origin { context, ..stream.origin() });
    }
    result
}

/// cuStreamEndCapture. Its context is not needed: a thread's stream can be captured in one context at a time.
pub fn end_capture(call: Call<impl Row>, stream: Stream) -> CUresult {
    let stream = StreamOfCall::new(call, stream);
    let is_capturing = || stream.is_capturing();
    call.p.stream_captures.end(stream.origin(), is_capturing, || call.forward())
}

/// A new stream. Its line is taken before the call: programs make many in a row, and most are followed by
/// no reading.
pub fn create(call: Call<impl Row>) -> CUresult {
    let (p, target) = (call.p, current_target(call.p));
    let originator = (!p.trace_writer.is_silent()).then(|| Originator {
        context: target.context,
        site: site_at(p, call.api(), None, target),
        stack: stack(p),
        ..Originator::unnamed(Cause::Streams)
    });
    let followed = Followed { originator, ..DriverActivity::Streams.into() };
    let passed = || p.cap.limits(target.device).find(|(limit, counted)| counted > limit);
    let before = passed();
    let result = watched_by(call, followed, || call.forward());
    if let (None, Some((limit, _))) = (before, passed()) {
        let (device, limit) = (target.device.0, AsGiven(limit));
        say_once(&p.trace_writer, Once::Streams, || {
            format!(
                "cuda:{device}: streams took memory over the limit of {limit}, which is known only afterwards"
            )
        });
    }
    result
}

/// cuStreamDestroy. The driver may reuse the handle for a stream of another context at once. A capture
/// that began in the stream ends with it.
pub fn destroy(call: Call<impl Row>, stream: Stream) -> CUresult {
    let (p, stream) = (call.p, stream as u64);
    p.stream_targets.forget();
    let ending = p.stream_captures.ending(|origin| origin.stream == stream && origin.thread == 0);
    watched_by(call, DriverActivity::Streams, || {
        let result = call.forward();
        if result == 0 {
            p.stream_captures.ended(ending);
        }
        result
    })
}

/// cuStreamSynchronize, cuEventSynchronize and cuCtxSynchronize. A pool gives back what it holds above its threshold.
pub fn synchronize(call: Call<impl Row>) -> CUresult {
    let result = call.forward();
    refresh_after_frees(call.p);
    result
}
