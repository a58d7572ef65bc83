//! What determines the stream and the pool of PyTorch's blocks ([`crate::model::torch_lanes`]): the function of
//! libc10_cuda.so that sets a thread's current stream, and the driver's answers about captures.
//!
//! The function is the only one that changes the current stream, and PyTorch calls it through its linkage table even
//! from inside the library. So the recorder need not ask `getCurrentCUDAStream`: that one's first call on a thread takes
//! the loader's lock, which may not happen below PyTorch's lock.

use crate::driver::api::Api;
use crate::driver::cuda::{CU_STREAM_CAPTURE_STATUS_ACTIVE, CUstreamCaptureStatus};
use crate::driver::param::Out;
use crate::hooks::families::torch::CUDA;
use crate::hooks::families::torch_calls;
use crate::hooks::process::state::Process;
use crate::model::torch_lanes;
use crate::runtime::found::hold;
use crate::runtime::log;
use crate::runtime::mapped_modules::Loaded;
use std::sync::atomic::Ordering;
use vramtrace_format::{BLOCK_STREAMS, Definition};

pub const SET_CURRENT: Api = Api::_ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE;

/// `c10::cuda::setCurrentCUDAStream(CUDAStream)`. The argument is a structure of 16 bytes in two registers: type and
/// index of the device in the low two bytes of the first, the stream's id in the second.
#[inline]
pub fn set_current(api: Api, device: u64, stream: u64, caller: usize) {
    let [kind, index, ..] = device.to_le_bytes();
    if kind == CUDA {
        torch_lanes::set_stream(index, stream);
    }
    let Some(real) = torch_calls::real(api, caller) else { without_function() };
    // SAFETY: the real function of this name, with the registers of the program's own call.
    unsafe { core::mem::transmute::<usize, extern "C-unwind" fn(u64, u64)>(real)(device, stream) }
}

/// Only a caller that is linked to the function, or has looked it up, comes here: there is one. To go on without it would
/// mean kernels on another stream than the program chose, and wrong results.
#[cold]
fn without_function() -> ! {
    log::line(format_args!("c10::cuda::setCurrentCUDAStream was called, and no library has it"));
    std::process::abort()
}

/// A successful call of cuStreamGetCaptureInfo.
#[inline]
pub fn capture_info(status: Out<CUstreamCaptureStatus>, id: Out<u64>) {
    let is_active = status.get() == Some(CU_STREAM_CAPTURE_STATUS_ACTIVE);
    torch_lanes::set_capture(if is_active { id.get() } else { None });
}

/// Notes in the trace, once, that blocks have their streams: the function above is in a library that reports blocks, unless
/// PyTorch is older than it.
#[cold]
pub fn note_recorded(p: &'static Process) {
    let is_noted = &p.torch_totals.are_streams_noted;
    if is_noted.load(Ordering::Relaxed) {
        return;
    }
    let has_function = |library: Loaded| {
        // SAFETY: it is loaded, and held.
        unsafe { library.object() }.function(SET_CURRENT.name().as_bytes()).is_some()
    };
    if hold(|| torch_calls::callers().any(has_function)) == Some(true) {
        let value = "current".into();
        let noted =
            p.trace_writer.try_define(&Definition::Setting { name: BLOCK_STREAMS.into(), value });
        is_noted.store(noted, Ordering::Relaxed);
    }
}
