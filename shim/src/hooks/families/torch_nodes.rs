//! The function of libtorch_cpu.so that numbers the nodes of PyTorch's autograd graph. Each node's constructor calls it, on
//! the thread of the forward operation. This library interposes it and returns the real function's number.
//!
//! PyTorch may call it with locks of its own held. As in [`crate::hooks::families::torch_calls`] nothing here waits for
//! the GIL or for the loader, and nothing calls the driver. A caller that is linked to no library with the function
//! is the exception: then the loader is asked for libtorch_cpu.so.

use crate::driver::api::Api;
use crate::hooks::families::torch_calls;
use crate::runtime::clock;

pub const NUMBER: Api = Api::_ZN2at15sequence_number17get_and_incrementEv;

/// A node is made: returns its number.
#[inline]
pub fn made(api: Api, caller: usize) -> u64 {
    let Some(real) = torch_calls::real(api, caller) else { return without_function() };
    // SAFETY: `static uint64_t at::sequence_number::get_and_increment()`, the program's own call.
    let number = unsafe { core::mem::transmute::<usize, extern "C-unwind" fn() -> u64>(real) }();
    torch_calls::run(api, |p| p.capture.node_made(number, real, &p.trace_writer));
    number
}

/// The number of a node where the real function cannot be found, the time: like the real ones it grows on each thread, which is
/// what the engine orders nodes by.
#[cold]
fn without_function() -> u64 {
    clock::real_mono_ns()
}
