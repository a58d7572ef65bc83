//! The stack of the call that is under way.

use crate::hooks::state::Process;
use vramtrace_format::StackId;

/// Its number; 0 where no stacks are taken.
#[inline]
pub fn stack(p: &'static Process) -> StackId {
    p.capture.stack(&p.trace_writer)
}

/// That of a block of PyTorch's cache.
#[inline]
pub fn block_stack(p: &'static Process) -> StackId {
    p.capture.block_stack(p.config.tensors, &p.trace_writer)
}
