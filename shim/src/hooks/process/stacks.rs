//! The call stack of the current call.

use crate::hooks::process::state::{self, Process};
use vramtrace_format::StackId;

/// Captures the stack and returns its id; 0 where stacks are off.
#[inline]
pub fn stack(p: &'static Process) -> StackId {
    p.capture.stack(&p.trace_writer)
}

/// The same for a block of PyTorch's cache.
#[inline(always)]
pub fn block_stack(p: &'static Process) -> StackId {
    match state::hot().reports.takes_no_stacks() {
        true => StackId(0),
        false => p.capture.block_stack(&p.trace_writer),
    }
}
