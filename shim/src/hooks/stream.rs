//! Streams and events: creation and destruction; begin and end of captures.

use crate::driver::api::Api;
use crate::driver::capture_status::is_capturing;
use crate::driver::cuda::{
    CUgraphEdgeData, CUresult, CUstreamCaptureMode, Event, Graph, GreenCtx, Node, Stream,
};
use crate::driver::param::{In, Out};
use crate::hooks::attribution::{nameless, watched, watched_seldom};
use crate::hooks::call::{Call, Function};
use crate::hooks::state::Process;
use crate::hooks::target::current_target;
use crate::model::attribution::driver_internal::DriverActivity;
use core::ffi::c_void;

/// After a call that begins a capture.
fn note_begin(p: &'static Process, result: CUresult) -> CUresult {
    if result == 0 {
        p.stream_captures.began();
    }
    result
}

pub fn begin_capture_v1(
    p: &'static Process,
    call: &Call<impl Function>,
    _stream: Stream,
) -> CUresult {
    note_begin(p, call.forward())
}

pub fn begin_capture(
    p: &'static Process,
    call: &Call<impl Function>,
    _stream: Stream,
    _mode: CUstreamCaptureMode,
) -> CUresult {
    note_begin(p, call.forward())
}

#[allow(clippy::too_many_arguments)]
pub fn begin_capture_to_graph(
    p: &'static Process,
    call: &Call<impl Function>,
    _stream: Stream,
    _graph: Graph,
    _dependencies: In<Node>,
    _edges: In<CUgraphEdgeData>,
    _count: usize,
    _mode: CUstreamCaptureMode,
) -> CUresult {
    note_begin(p, call.forward())
}

pub fn end_capture(
    p: &'static Process,
    call: &Call<impl Function>,
    stream: Stream,
    _graph: Out<Graph>,
) -> CUresult {
    let per_thread = call.api == Api::cuStreamEndCapture_ptsz;
    p.stream_captures.end(|| is_capturing(stream, per_thread), || call.forward())
}

/// cuStreamCreate.
pub fn create(
    p: &'static Process,
    call: &Call<impl Function>,
    _stream: Out<Stream>,
    _flags: u32,
) -> CUresult {
    let real = || call.forward();
    watched(p, call.api, current_target(p), DriverActivity::Streams, nameless, real)
}

/// cuStreamCreateWithPriority.
pub fn create_with_priority(
    p: &'static Process,
    call: &Call<impl Function>,
    _stream: Out<Stream>,
    _flags: u32,
    _priority: i32,
) -> CUresult {
    let real = || call.forward();
    watched(p, call.api, current_target(p), DriverActivity::Streams, nameless, real)
}

/// cuGreenCtxStreamCreate.
pub fn create_in_green(
    p: &'static Process,
    call: &Call<impl Function>,
    _stream: Out<Stream>,
    _green: GreenCtx,
    _flags: u32,
    _priority: i32,
) -> CUresult {
    let real = || call.forward();
    watched(p, call.api, current_target(p), DriverActivity::Streams, nameless, real)
}

/// cuEventCreate.
pub fn create_event(
    p: &'static Process,
    call: &Call<impl Function>,
    _event: Out<Event>,
    _flags: u32,
) -> CUresult {
    let real = || call.forward();
    watched_seldom(p, call.api, || current_target(p), DriverActivity::Streams, real)
}

/// cuEventDestroy.
pub fn destroy_event(p: &'static Process, call: &Call<impl Function>, _event: Event) -> CUresult {
    let real = || call.forward();
    watched_seldom(p, call.api, || current_target(p), DriverActivity::Streams, real)
}

/// cuStreamDestroy. The driver may reuse the handle for a stream of another context at once.
pub fn destroy(p: &'static Process, call: &Call<impl Function>, _stream: Stream) -> CUresult {
    p.stream_targets.forget();
    let real = || call.forward();
    watched(p, call.api, current_target(p), DriverActivity::Streams, nameless, real)
}

/// cuStreamSynchronize and cuEventSynchronize: a pool gives back what it holds above its threshold.
pub fn synchronize(
    p: &'static Process,
    call: &Call<impl Function>,
    _handle: *mut c_void,
) -> CUresult {
    let result = call.forward();
    crate::hooks::pool_reserves::refresh_after_frees(p);
    result
}

pub fn synchronize_context(p: &'static Process, call: &Call<impl Function>) -> CUresult {
    let result = call.forward();
    crate::hooks::pool_reserves::refresh_after_frees(p);
    result
}
