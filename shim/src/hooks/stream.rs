//! Streams and events: made and destroyed; captures that begin and end.

use crate::driver::api::Api;
use crate::driver::capture_status::is_capturing;
use crate::driver::cuda::{
    CUgraphEdgeData, CUresult, CUstreamCaptureMode, Event, Graph, GreenCtx, Node, Stream,
};
use crate::hooks::attribution::{nameless, watched, watched_seldom};
use crate::hooks::call::Call;
use crate::hooks::state::Process;
use crate::hooks::target::current_target;
use crate::model::attribution::driver_internal::DriverActivity;
use core::ffi::c_void;

fn began(p: &'static Process, result: CUresult) -> CUresult {
    if result == 0 {
        p.stream_captures.began();
    }
    result
}

/// # Safety
/// As the driver's function.
pub unsafe fn begin_capture_v1(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Stream) -> CUresult>,
    stream: Stream,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    began(p, unsafe { call.real(stream) })
}

/// # Safety
/// As the driver's function.
pub unsafe fn begin_capture(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Stream, CUstreamCaptureMode) -> CUresult>,
    stream: Stream,
    mode: CUstreamCaptureMode,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    began(p, unsafe { call.real(stream, mode) })
}

/// # Safety
/// As the driver's function.
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
pub unsafe fn begin_capture_to_graph(
    p: &'static Process,
    call: &Call<
        unsafe extern "C-unwind" fn(
            Stream,
            Graph,
            *const Node,
            *const CUgraphEdgeData,
            usize,
            CUstreamCaptureMode,
        ) -> CUresult,
    >,
    stream: Stream,
    graph: Graph,
    dependencies: *const Node,
    edges: *const CUgraphEdgeData,
    count: usize,
    mode: CUstreamCaptureMode,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    began(p, unsafe { call.real(stream, graph, dependencies, edges, count, mode) })
}

/// # Safety
/// As the driver's function.
pub unsafe fn end_capture(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Stream, *mut Graph) -> CUresult>,
    stream: Stream,
    graph: *mut Graph,
) -> CUresult {
    let per_thread = call.api == Api::cuStreamEndCapture_ptsz;
    p.stream_captures
        // SAFETY: the program's own call, with its arguments.
        .end(|| is_capturing(stream, per_thread), || unsafe { call.real(stream, graph) })
}

/// # Safety
/// As cuStreamCreate.
pub unsafe fn create(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut Stream, u32) -> CUresult>,
    stream: *mut Stream,
    flags: u32,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let real = || unsafe { call.real(stream, flags) };
    watched(p, call.api, current_target(p), DriverActivity::Streams, nameless, real)
}

/// # Safety
/// As cuStreamCreateWithPriority.
pub unsafe fn create_with_priority(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut Stream, u32, i32) -> CUresult>,
    stream: *mut Stream,
    flags: u32,
    priority: i32,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let real = || unsafe { call.real(stream, flags, priority) };
    watched(p, call.api, current_target(p), DriverActivity::Streams, nameless, real)
}

/// # Safety
/// As cuGreenCtxStreamCreate.
pub unsafe fn create_in_green(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut Stream, GreenCtx, u32, i32) -> CUresult>,
    stream: *mut Stream,
    green: GreenCtx,
    flags: u32,
    priority: i32,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let real = || unsafe { call.real(stream, green, flags, priority) };
    watched(p, call.api, current_target(p), DriverActivity::Streams, nameless, real)
}

/// # Safety
/// As cuEventCreate.
pub unsafe fn create_event(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut Event, u32) -> CUresult>,
    event: *mut Event,
    flags: u32,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let real = || unsafe { call.real(event, flags) };
    watched_seldom(p, call.api, || current_target(p), DriverActivity::Streams, real)
}

/// # Safety
/// As cuEventDestroy.
pub unsafe fn destroy_event(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Event) -> CUresult>,
    event: Event,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let real = || unsafe { call.real(event) };
    watched_seldom(p, call.api, || current_target(p), DriverActivity::Streams, real)
}

/// Its handle may be given to another stream, of another context, as soon as it is gone.
///
/// # Safety
/// As the driver's function.
pub unsafe fn destroy(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Stream) -> CUresult>,
    stream: Stream,
) -> CUresult {
    p.stream_targets.forget();
    // SAFETY: the program's own call, with its arguments.
    let real = || unsafe { call.real(stream) };
    watched(p, call.api, current_target(p), DriverActivity::Streams, nameless, real)
}

/// cuStreamSynchronize and cuEventSynchronize: a pool gives back what it holds above its threshold.
///
/// # Safety
/// As the driver's function.
pub unsafe fn synchronize(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut c_void) -> CUresult>,
    handle: *mut c_void,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real(handle) };
    crate::hooks::pool_reserves::refresh_after_frees(p);
    result
}

/// # Safety
/// As the driver's function.
pub unsafe fn synchronize_context(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn() -> CUresult>,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real() };
    crate::hooks::pool_reserves::refresh_after_frees(p);
    result
}
