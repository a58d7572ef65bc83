//! Why the requests of a run cannot be read from its trace: messages.

use super::recorded::InForce;
use crate::trace::Definitions;

/// The message for a trace with samples of the blocks.
pub const NOT_OF_SAMPLES: &str = "samples of PyTorch's blocks were recorded \
    (VRAMTRACE_RECORD=sampled), and this needs all of them; record with VRAMTRACE_RECORD=full";

/// The message for a trace without blocks: the probable reason, and what to do.
pub fn why_no_blocks(definitions: &Definitions) -> &'static str {
    let conf = InForce::of(definitions);
    if conf.name().contains("cudaMallocAsync") {
        return "the run used backend:cudaMallocAsync: memory comes from the driver's own pool, \
                and PyTorch's cache had none; record it with the default backend";
    }
    if definitions.setting("PYTORCH_NO_CUDA_MEMORY_CACHING").is_some() {
        return "the run had PYTORCH_NO_CUDA_MEMORY_CACHING set: nothing was cached, and none of \
                these settings counts; record it without";
    }
    let modules = definitions.stacks().modules();
    match modules.iter().any(|module| module.path.contains("libc10_cuda")) {
        true => {
            "PyTorch was there, and none of its tensors were recorded: a pluggable allocator was \
             in its place, or the run was recorded with VRAMTRACE_TENSORS=off"
        }
        false => {
            "no tensors of PyTorch were recorded: give a trace of a PyTorch run, a PyTorch memory \
             snapshot, or a CSV with the columns action,addr,size,stream"
        }
    }
}
