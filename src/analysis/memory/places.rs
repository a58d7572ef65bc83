//! What a frame is to the one who asks who holds memory: [`vramtrace_format::layers`], by frames.

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
        Places(layers::Places::of(header).patched_by(symbols.patched_by().to_vec()))
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
            return (!native)
                .then(|| layers::package_of_source(&frame.file))
                .flatten()
                .map(layers::package_title);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn places(command: &[&str]) -> Places {
        Places::of(&Header {
            executable: "/usr/bin/prog".into(),
            working_directory: "/home/me/run".into(),
            command: command.iter().map(|argument| argument.to_string()).collect(),
            ..Header::default()
        })
    }

    #[test]
    fn python_files_by_layer() {
        let places = places(&["python", "/home/me/src/train.py"]);
        for (file, layer) in [
            ("/home/me/src/train.py", Layer::Own),
            ("/home/me/run/helper.py", Layer::Own),
            ("train.py", Layer::Own),
            ("<stdin>", Layer::Own),
            ("/tmp/ipykernel_77/1.py", Layer::Own),
            (
                "/home/me/run/.venv/lib/python3.11/site-packages/torch/nn/module.py",
                Layer::Framework,
            ),
            (
                "/home/me/run/.venv/lib/python3.11/site-packages/transformers/gpt2.py",
                Layer::Package,
            ),
            ("/usr/lib/python3/dist-packages/numpy/core.py", Layer::Framework),
            ("/usr/lib/python3.11/threading.py", Layer::Plumbing),
            ("<frozen importlib._bootstrap>", Layer::Plumbing),
            ("<string>", Layer::Plumbing),
            ("/opt/pytorch/torch/nn/module.py", Layer::Framework),
            ("/tmp/torchinductor_me/ab/cab.py", Layer::Framework),
            ("/opt/other/tool.py", Layer::Package),
            ("/v/site-packages/_pytest/python.py", Layer::Plumbing),
            ("/v/site-packages/IPython/core/interactiveshell.py", Layer::Plumbing),
            ("", Layer::Plumbing),
        ] {
            assert_eq!(places.layer(&Frame::of(Language::Python, "f", file, "")), layer, "{file}");
        }
        let inline = self::places(&["python", "-c", "import torch"]);
        assert_eq!(
            inline.layer(&Frame::of(Language::Python, "<module>", "<string>", "")),
            Layer::Own
        );
        // What pip wrote beside the interpreter only starts a package.
        let started = self::places(&["/v/bin/python3", "/v/bin/pytest", "tests"]);
        let layer = |file| started.layer(&Frame::of(Language::Python, "<module>", file, ""));
        assert_eq!(layer("/v/bin/pytest"), Layer::Plumbing);
        assert_eq!(layer("/v/bin/other.py"), Layer::Package, "its directory is not the program's");
        let other = self::places(&["/v/bin/python3", "/v/bin/train", "big"]);
        let script = Frame::of(Language::Python, "main", "/v/bin/train", "");
        assert_eq!(
            other.layer(&script),
            Layer::Own,
            "a script of another package may be the program"
        );
        assert_eq!(
            self::places(&["/v/bin/python3", "-m", "ipykernel_launcher"]).program(),
            "notebook"
        );
        // Started in the root: not everything is its own.
        let root = Places::of(&Header { working_directory: "/".into(), ..Header::default() });
        let other = Frame::of(Language::Python, "f", "/opt/other/tool.py", "");
        assert_eq!(root.layer(&other), Layer::Package);
    }

    #[test]
    fn native_code_by_layer_and_library() {
        let places = places(&["prog"]);
        for (function, file, library, layer, title) in [
            ("cuMemAlloc_v2", "", "/usr/lib/libcuda.so.1", Layer::Plumbing, None),
            ("cudaMalloc", "", "/x/libcudart.so.12", Layer::Plumbing, None),
            ("cublasCreate_v2", "", "/x/libcublas.so.12", Layer::Framework, Some("cuBLAS")),
            ("f", "", "/x/libcublasLt.so.12", Layer::Framework, Some("cuBLAS")),
            ("f", "", "/x/libnccl.so.2", Layer::Framework, Some("NCCL")),
            ("ncclCommInitRank", "", "/x/libtorch_cuda.so", Layer::Framework, Some("NCCL")),
            ("c10::alloc", "", "/x/libc10_cuda.so", Layer::Framework, Some("PyTorch")),
            (
                "at::cuda::getCurrentCUDABlasHandle",
                "",
                "/x/libtorch_cuda.so",
                Layer::Framework,
                Some("cuBLAS"),
            ),
            ("main", "", "/usr/bin/prog", Layer::Own, Some("prog")),
            (
                "core::ops::call_once",
                "/rustc/abc/library/core/x.rs",
                "/usr/bin/prog",
                Layer::Framework,
                Some("prog"),
            ),
            ("f", "/home/me/run/k.cu", "/x/libmine.so", Layer::Own, Some("libmine.so")),
            ("f", "", "/x/libmine.so", Layer::Package, Some("libmine.so")),
            (
                "f",
                "",
                "/v/site-packages/cupy/_core.cpython-311-x86_64-linux-gnu.so",
                Layer::Framework,
                Some("CuPy"),
            ),
            ("f", "", "/v/site-packages/xformers/_C.so", Layer::Framework, Some("xformers")),
        ] {
            let frame = Frame::of(Language::Native, function, file, library);
            assert_eq!(places.layer(&frame), layer, "{function} {library}");
            assert_eq!(places.library(&frame).as_deref(), title, "{function} {library}");
        }
    }

    #[test]
    fn a_hint_for_each_pool_that_hides_its_users() {
        for (library, setting) in [
            ("XLA", "XLA_PYTHON_CLIENT_ALLOCATOR=platform"),
            ("TensorFlow", "TF_GPU_ALLOCATOR=cuda_malloc_async"),
            ("CuPy", "set_allocator(None)"),
        ] {
            assert!(pool_hint(library).unwrap().contains(setting));
        }
        assert_eq!(pool_hint("cuBLAS"), None);
    }
}
