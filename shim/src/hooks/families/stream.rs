//! Streams and events: creation and destruction; begin and end of captures.

use crate::driver::api::Api;
use crate::driver::capture_status::is_capturing;
use crate::driver::cuda::{
    CUgraphEdgeData, CUresult, CUstreamCaptureMode, CUstreamCigCaptureParams, Event, Graph,
    GreenCtx, Node, Stream,
};
use crate::driver::param::{In, Out};
use crate::hooks::call::attribution::{nameless, watched, watched_seldom};
use crate::hooks::call::request::site;
use crate::hooks::call::{Call, Function, hooks};
use crate::hooks::families::ordered::{PER_THREAD_STREAM, context_of, stream_id};
use crate::hooks::process::stacks::stack;
use crate::hooks::process::state::Process;
use crate::hooks::process::target::{current_context, current_target};
use crate::hooks::process::texts::say_once;
use crate::model::attribution::driver_internal::{DriverActivity, Followed, Originator};
use crate::model::stream_captures::Origin;
use crate::runtime::thread_slot;
use core::ffi::c_void;
use std::sync::atomic::AtomicBool;
use vramtrace_format::size::AsGiven;
use vramtrace_format::{Cause, PoolId};

/// The stream of a capture, with its context and thread. To be called before the capture begins: a
/// query of a stream's context would invalidate it.
fn origin(stream: Stream, per_thread: bool) -> Origin {
    match stream_id(stream, per_thread) {
        PER_THREAD_STREAM => Origin {
            stream: PER_THREAD_STREAM,
            context: current_context(),
            thread: thread_slot::tid(),
        },
        stream_id @ 0..PER_THREAD_STREAM => Origin { stream: stream_id, context: 0, thread: 0 },
        stream_id => {
            let asks = !is_capturing(stream, per_thread);
            let context = if asks { context_of(stream, per_thread) } else { 0 };
            Origin { stream: stream_id, context, thread: 0 }
        }
    }
}

fn begin(p: &'static Process, call: &Call<impl Function>, stream: Stream) -> CUresult {
    let per_thread = matches!(
        call.api,
        Api::cuStreamBeginCapture_ptsz
            | Api::cuStreamBeginCapture_v2_ptsz
            | Api::cuStreamBeginCaptureToGraph_ptsz
            | Api::cuStreamBeginRecaptureToGraph_ptsz
            | Api::cuStreamBeginCaptureToCig_ptsz
    );
    let origin = origin(stream, per_thread);
    let result = call.forward();
    if result == 0 {
        p.stream_captures.began(origin);
    }
    result
}

hooks! { p, call:
    begin_capture_v1(stream: Stream) = begin(p, call, stream);
    begin_capture(stream: Stream, mode: CUstreamCaptureMode) = begin(p, call, stream);
    begin_capture_to_graph(
        stream: Stream,
        graph: Graph,
        dependencies: In<Node>,
        edges: In<CUgraphEdgeData>,
        count: usize,
        mode: CUstreamCaptureMode,
    ) = begin(p, call, stream);
    /// cuStreamBeginRecaptureToGraph. `changed` is called by the driver, in this call or a later one.
    begin_recapture(
        stream: Stream,
        mode: CUstreamCaptureMode,
        graph: Graph,
        changed: *mut c_void,
        data: *mut c_void,
    ) = begin(p, call, stream);
    /// A capture into a command list of a graphics API.
    begin_cig(stream: Stream, params: *mut CUstreamCigCaptureParams) = begin(p, call, stream);
    end_cig(stream: Stream) = end(p, call, stream);
    end_capture(stream: Stream, graph: Out<Graph>) = end(p, call, stream);
    /// cuStreamCreate.
    create(stream: Out<Stream>, flags: u32) = made(p, call);
    /// cuStreamCreateWithPriority.
    create_with_priority(stream: Out<Stream>, flags: u32, priority: i32) = made(p, call);
    /// cuGreenCtxStreamCreate.
    create_in_green(stream: Out<Stream>, green: GreenCtx, flags: u32, priority: i32) = made(p, call);
    /// cuEventCreate.
    create_event(event: Out<Event>, flags: u32) = event_changes(p, call);
    /// cuEventDestroy.
    destroy_event(event: Event) = event_changes(p, call);
    /// cuStreamSynchronize, cuEventSynchronize and cuCtxSynchronize_v2.
    synchronize(handle: *mut c_void) = synchronized(p, call);
    synchronize_context() = synchronized(p, call);
}

fn end(p: &'static Process, call: &Call<impl Function>, stream: Stream) -> CUresult {
    let per_thread =
        matches!(call.api, Api::cuStreamEndCapture_ptsz | Api::cuStreamEndCaptureToCig_ptsz);
    // Its context is not needed: a thread's stream can be captured in one context at a time.
    let stream_id = stream_id(stream, per_thread);
    let thread = if stream_id == PER_THREAD_STREAM { thread_slot::tid() } else { 0 };
    let origin = Origin { stream: stream_id, context: 0, thread };
    p.stream_captures.end(origin, || is_capturing(stream, per_thread), || call.forward())
}

/// A new stream. Its line is taken before the call: programs make many in a row, and most are followed by
/// no reading.
fn made(p: &'static Process, call: &Call<impl Function>) -> CUresult {
    let (target, real) = (current_target(p), || call.forward());
    let originator = (!p.trace_writer.is_silent()).then(|| Originator {
        context: target.context,
        site: site(p, call.api, None, target, PoolId(0), 0),
        stack: stack(p),
        ..Originator::unnamed(Cause::Streams)
    });
    let followed = Followed { originator, ..DriverActivity::Streams.into() };
    let passed = || {
        let own = p.cap.limit(target.device).map(|limit| (limit, p.cap.counted(target.device, 0)));
        let limits = own.into_iter().chain(p.cap.enforced_by_group(target.device));
        limits.filter(|(limit, counted)| counted > limit).map(|(limit, _)| limit).next()
    };
    let before = passed();
    let result = watched(p, call.api, target, followed, nameless, real);
    if let (None, Some(limit)) = (before, passed()) {
        static SAID: AtomicBool = AtomicBool::new(false);
        let (device, limit) = (target.device.0, AsGiven(limit));
        say_once(&p.trace_writer, &SAID, || {
            format!(
                "cuda:{device}: streams took memory over the limit of {limit}, which is known only afterwards"
            )
        });
    }
    result
}

fn event_changes(p: &'static Process, call: &Call<impl Function>) -> CUresult {
    let real = || call.forward();
    watched_seldom(p, call.api, || current_target(p), || DriverActivity::Streams, real)
}

/// cuStreamDestroy. The driver may reuse the handle for a stream of another context at once. A capture
/// that began in the stream ends with it.
pub fn destroy(p: &'static Process, call: &Call<impl Function>, stream: Stream) -> CUresult {
    p.stream_targets.forget();
    let (target, stream) = (current_target(p), stream as u64);
    let ending = p.stream_captures.ending(|origin| origin.stream == stream && origin.thread == 0);
    let real = || {
        let result = call.forward();
        if result == 0 {
            p.stream_captures.ended(ending);
        }
        result
    };
    watched(p, call.api, target, DriverActivity::Streams, nameless, real)
}

/// A pool gives back what it holds above its threshold.
fn synchronized(p: &'static Process, call: &Call<impl Function>) -> CUresult {
    let result = call.forward();
    crate::hooks::process::pool_reserves::refresh_after_frees(p);
    result
}
