//! What a frame is to the one who asks who holds memory: its layer and library ([`vramtrace_format::layers`]), whether it
//! belongs to an allocator, and whether it only passes a call on.
//!
//! Frames of allocators and of PyTorch's dispatcher request memory for all operations alike, so that they name no holder.
//! Programs that are not PyTorch have allocators of their own, often a function that calls a function that calls the
//! driver. A wrapper is such a function by two rules: its name says that it allocates, and several functions call it
//! ([`Symbols::wrappers`](crate::symbols::Symbols::wrappers)).

pub use vramtrace_format::layers::Layer;
use vramtrace_format::{Header, layers};

use crate::analysis::engines;
use crate::symbols::{Frame, Language, Symbols};

/// Where a traced program's own files are.
#[derive(Clone, Debug)]
pub struct Places(layers::Places);

impl Places {
    pub fn of(header: &Header) -> Places {
        Places(layers::Places::of(header))
    }

    /// The same, with the libraries that hand on the requests of others.
    pub fn of_trace(header: &Header, symbols: &Symbols) -> Places {
        Places(layers::Places::of(header).patched_by(symbols.patched_by.clone()))
    }

    pub fn layer(&self, frame: &Frame) -> Layer {
        match frame.language {
            Language::Python => self.0.python(&frame.file),
            Language::Native => self.0.native(frame.library.as_deref(), &frame.file),
        }
    }

    /// The name of the program itself.
    pub fn program(&self) -> &str {
        self.0.program()
    }

    /// The name of what asked the driver for memory, for a frame that may stand for it. `None`:
    /// it asks on behalf of the frame further out.
    pub fn library(&self, frame: &Frame) -> Option<String> {
        let Some(path) = frame.library.as_deref() else {
            // Native code outside any library: made at run time.
            let native = frame.language == Language::Native;
            let package = self.0.package_of_source(&frame.file).filter(|_| !native);
            return package.map(layers::package_title);
        };
        // What a library that hands on requests needs for itself is known by its functions alone.
        let title = match engines::purpose(frame) {
            Some(_) => self.0.library_itself(path)?,
            None => self.0.library(path)?,
        };
        Some(match title.as_str() {
            // Linked into the framework.
            "PyTorch" if frame.function.starts_with("nccl") => "NCCL".into(),
            // PyTorch allocates it from its own segments.
            "PyTorch" if frame.function.contains("CUDABlas") => "cuBLAS".into(),
            _ => title,
        })
    }
}

/// A Python frame of PyTorch that only passes a call on.
pub fn is_dispatch(frame: &Frame) -> bool {
    layers::is_dispatch(&frame.file, &frame.function)
}

/// What shows the users of a pool that hides them, by the library's name.
pub fn pool_hint(library: &str) -> Option<&'static str> {
    Some(match library {
        "XLA" => {
            "XLA hands out pieces of few large allocations: XLA_PYTHON_CLIENT_ALLOCATOR=platform \
             shows each buffer"
        }
        "TensorFlow" => {
            "TensorFlow hands out pieces of few large allocations: \
             TF_GPU_ALLOCATOR=cuda_malloc_async shows each tensor"
        }
        "CuPy" => {
            "CuPy keeps freed memory in a pool: cupy.cuda.set_allocator(None) shows each array"
        }
        _ => return None,
    })
}

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
    let of_c10 = || frame.library_name().is_some_and(|name| name.starts_with("libc10"));
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
    frame.library_name().is_some_and(|name| name.starts_with("libc10_cuda"))
}

/// Names of functions in packages that wrap other functions.
const WRAPPERS: [&str; 12] = [
    "wrapper",
    "wrapper_fn",
    "wrapped",
    "wrapped_fn",
    "wrapped_func",
    "inner",
    "_fn",
    "_call_impl",
    "_wrapped_call_impl",
    "__call__",
    "decorate_context",
    "_use_grad",
];

/// Whether a frame is of a function of a package that only calls the function that it wraps.
pub fn wraps(frame: &Frame, layer: Layer) -> bool {
    let name = frame.function.rsplit('.').next().unwrap_or_default();
    layer < Layer::Own && WRAPPERS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::Layer::{Framework, Own, Package, Plumbing};
    use super::*;

    fn places(command: &[&str]) -> Places {
        Places::of(&Header {
            executable: "/usr/bin/prog".into(),
            working_directory: "/home/me/run".into(),
            command: command.iter().map(|argument| argument.to_string()).collect(),
            ..Header::default()
        })
    }

    impl Places {
        fn of_python(&self, function: &str, file: &str) -> Layer {
            self.layer(&Frame::of(Language::Python, function, file, ""))
        }
    }

    #[test]
    fn python_files_by_layer() {
        let places = places(&["python", "/home/me/src/train.py"]);
        for (file, layer) in [
            ("/home/me/src/train.py", Own),
            ("/home/me/run/helper.py", Own),
            ("train.py", Own),
            ("<stdin>", Own),
            ("/tmp/ipykernel_77/1.py", Own),
            ("/home/me/run/.venv/lib/python3.11/site-packages/torch/nn/module.py", Framework),
            ("/home/me/run/.venv/lib/python3.11/site-packages/transformers/gpt2.py", Package),
            ("/usr/lib/python3/dist-packages/numpy/core.py", Framework),
            ("/usr/lib/python3.11/threading.py", Plumbing),
            ("<frozen importlib._bootstrap>", Plumbing),
            ("<string>", Plumbing),
            ("/opt/pytorch/torch/nn/module.py", Framework),
            ("/tmp/torchinductor_me/ab/cab.py", Framework),
            ("/home/me/run/cache/vllm/h4/ch4oswevcto74pq2a2xk7aq6e2jzuvsl24nhefzhl.py", Framework),
            ("/conda/envs/torch/lib/python3.12/threading.py", Plumbing),
            ("/opt/other/tool.py", Package),
            ("/v/site-packages/_pytest/python.py", Plumbing),
            ("/v/site-packages/IPython/core/interactiveshell.py", Plumbing),
            ("", Plumbing),
        ] {
            assert_eq!(places.of_python("f", file), layer, "{file}");
        }
        let inline = self::places(&["python", "-c", "import torch"]);
        assert_eq!(inline.of_python("<module>", "<string>"), Own);
        let spawned = self::places(&["python", "-c", "from multiprocessing.spawn import main"]);
        assert_eq!(spawned.of_python("<module>", "<string>"), Plumbing);
        // What pip wrote beside the interpreter only starts a package.
        let started = self::places(&["/v/bin/python3", "/v/bin/pytest", "tests"]);
        let layer = |file| started.of_python("<module>", file);
        assert_eq!(layer("/v/bin/pytest"), Plumbing);
        assert_eq!(layer("/v/bin/other.py"), Package, "its directory is not the program's");
        let other = self::places(&["/v/bin/python3", "/v/bin/train", "big"]);
        let layer = other.of_python("main", "/v/bin/train");
        assert_eq!(layer, Own, "a script of another package may be the program");
        let notebook = self::places(&["/v/bin/python3", "-m", "ipykernel_launcher"]);
        assert_eq!(notebook.program(), "notebook");
        // Started in the root: not everything is its own.
        let root = Places::of(&Header { working_directory: "/".into(), ..Header::default() });
        assert_eq!(root.of_python("f", "/opt/other/tool.py"), Package);
    }

    #[test]
    fn native_code_by_layer_and_library() {
        let places = places(&["prog"]);
        for (function, file, library, layer, title) in [
            ("cuMemAlloc_v2", "", "/usr/lib/libcuda.so.1", Plumbing, None),
            ("cudaMalloc", "", "/x/libcudart.so.12", Plumbing, None),
            ("cublasCreate_v2", "", "/x/libcublas.so.12", Framework, Some("cuBLAS")),
            ("f", "", "/x/libcublasLt.so.12", Framework, Some("cuBLAS")),
            ("f", "", "/x/libnccl.so.2", Framework, Some("NCCL")),
            ("ncclCommInitRank", "", "/x/libtorch_cuda.so", Framework, Some("NCCL")),
            ("c10::alloc", "", "/x/libc10_cuda.so", Framework, Some("PyTorch")),
            ("getCurrentCUDABlasHandle", "", "/x/libtorch_cuda.so", Framework, Some("cuBLAS")),
            ("main", "", "/usr/bin/prog", Own, Some("prog")),
            (
                "core::ops::call_once",
                "/rustc/abc/library/core/x.rs",
                "/usr/bin/prog",
                Framework,
                Some("prog"),
            ),
            ("f", "/home/me/run/k.cu", "/x/libmine.so", Own, Some("libmine.so")),
            ("f", "", "/x/libmine.so", Package, Some("libmine.so")),
            (
                "f",
                "",
                "/v/site-packages/cupy/_core.cpython-311-x86_64-linux-gnu.so",
                Framework,
                Some("CuPy"),
            ),
            ("f", "", "/v/site-packages/xformers/_C.so", Framework, Some("xformers")),
        ] {
            let frame = Frame::of(Language::Native, function, file, library);
            assert_eq!(places.layer(&frame), layer, "{function} {library}");
            assert_eq!(places.library(&frame).as_deref(), title, "{function} {library}");
        }
    }

    #[test]
    fn a_hint_for_each_pool_that_hides_its_users() {
        let hint = |library| pool_hint(library).unwrap_or_default();
        assert!(hint("TensorFlow").contains("TF_GPU_ALLOCATOR=cuda_malloc_async"));
        assert!(hint("CuPy").contains("set_allocator(None)") && hint("cuBLAS").is_empty());
    }

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

    #[test]
    fn a_wrapper_passes_a_call_on_and_a_function_of_the_program_does_not() {
        let python = |function, file| Frame::of(Language::Python, function, file, "");
        let wrapper = python("can_return_tuple.<locals>.wrapper", "/v/transformers/generic.py");
        assert!(wraps(&wrapper, Package) && !wraps(&python("wrapper", "/me/train.py"), Own));
        let module = python("Module._call_impl", "/v/site-packages/torch/nn/modules/module.py");
        assert!(is_dispatch(&module) && !is_dispatch(&wrapper));
    }
}
