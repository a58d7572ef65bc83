//! Native frames between an operation and the driver: of allocators, and of PyTorch's dispatcher. They request memory
//! for all operations alike, so that they name no holder.
//!
//! Programs that are not PyTorch have allocators of their own, often a function that calls a function that calls the
//! driver. A wrapper is such a function by two rules: its name says that it allocates, and several functions call it
//! ([`Symbols::is_wrapper`](crate::symbols::Symbols::is_wrapper)).

use vramtrace_format::layers::base_name;

use crate::symbols::{Frame, Language};

/// Namespaces and prefixes of functions that pass an operation on to the allocator.
const PASSES_ON: [&str; 10] = [
    "at::(anonymous namespace)::",
    "at::TensorIterator",
    "at::_ops::",
    "at::detail::",
    "at::empty",
    "at::meta::",
    "at::native::empty",
    "at::redispatch::",
    "c10::",
    "torch::autograd::VariableType::",
];

/// Whether a frame belongs to an allocator, or only passes an operation on to one.
pub(super) fn is_allocator(frame: &Frame) -> bool {
    if frame.language != Language::Native {
        return false;
    }
    // Without symbols the library tells: PyTorch's allocators are in libc10 and libc10_cuda.
    let of_c10 = || {
        let library = frame.library.as_deref().map(base_name);
        library.is_some_and(|name| name.starts_with("libc10"))
    };
    frame.function.contains("Allocator")
        || PASSES_ON.iter().any(|prefix| frame.function.starts_with(prefix))
        || of_c10()
}

/// Parts of the names of functions that keep memory for later requests: `ggml_cuda_pool_leg::alloc`,
/// `onnxruntime::BFCArena::Extend`.
const POOLS: [&str; 4] = ["pool", "arena", "cache", "allocator"];

/// Whether a function is a pool's by its name.
pub(super) fn is_pool(function: &str) -> bool {
    let name = function.to_ascii_lowercase();
    POOLS.iter().any(|part| name.contains(part))
}

/// Whether a frame belongs to PyTorch's caching allocator on the card.
pub(super) fn is_torch_cache(frame: &Frame) -> bool {
    let library = || frame.library.as_deref().map(base_name);
    frame.language == Language::Native
        && library().is_some_and(|name| name.starts_with("libc10_cuda"))
}

/// Whether a frame of PyTorch's allocator is of its backend cudaMallocAsync, where each tensor is an allocation of the driver.
pub(super) fn is_torch_async(frame: &Frame) -> bool {
    frame.function.contains("CUDACachingAllocator::CudaMallocAsync")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_by_their_names() {
        for name in ["ggml_cuda_pool_leg::alloc(unsigned long)", "onnxruntime::BFCArena::Extend"] {
            assert!(is_pool(name), "{name}");
        }
        for name in ["leaking_line", "main", "my_alloc", "checked_malloc", "cuMemAlloc_v2"] {
            assert!(!is_pool(name), "{name}");
        }
    }

    #[test]
    fn allocators_and_the_dispatcher_are_no_holders() {
        let native = |function: &str, library: &str| {
            Frame::of(Language::Native, function, "", &format!("/v/torch/lib/{library}"))
        };
        for (function, library) in [
            (
                "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::alloc_found_block",
                "libc10_cuda.so",
            ),
            ("libc10_cuda.so+0x1b9ba", "libc10_cuda.so"),
            ("at::detail::empty_cuda", "libtorch_cuda.so"),
            ("at::_ops::add_Tensor::call", "libtorch_cpu.so"),
            ("tsl::BFCAllocator::AllocateRaw", "libtensorflow_framework.so.2"),
        ] {
            assert!(is_allocator(&native(function, library)), "{function}");
        }
        for function in ["torch::autograd::accumulate", "at::native::embedding_dense_backward_cuda"]
        {
            assert!(!is_allocator(&native(function, "libtorch_cpu.so")), "{function}");
        }
    }
}
