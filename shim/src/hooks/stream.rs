//! Streams: captures that begin and end, streams that end.

use crate::entry::Api;
use crate::entry::Call;
use crate::entry::cuda::{CUgraphEdgeData, CUresult, CUstreamCaptureMode, Graph, Node, Stream};
use crate::process::Process;
use core::ffi::c_void;

fn began(p: &'static Process, result: CUresult) -> CUresult {
    if result == 0 {
        p.captures.began();
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
    p.captures.end(stream, per_thread, || unsafe { call.real(stream, graph) })
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
    p.routes.forget();
    unsafe { call.real(stream) }
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
    let result = unsafe { call.real(handle) };
    super::pool::look_after_frees(p);
    result
}

/// # Safety
/// As the driver's function.
pub unsafe fn synchronize_context(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn() -> CUresult>,
) -> CUresult {
    let result = unsafe { call.real() };
    super::pool::look_after_frees(p);
    result
}
