//! What a frame is to the one who asks who holds memory: plumbing, a framework's inside, a
//! package, the program's own.

use std::path::Path;

use vramtrace_format::Header;

use crate::symbols::{Frame, Language, base_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// The driver, the runtimes of CUDA, C and C++, the interpreter's library.
    Plumbing,
    /// Inside of a framework or library that allocates for others.
    Framework,
    /// Other packages: what people call and read.
    Package,
    /// In the program's own tree.
    Own,
}

/// Where a traced program's own files are.
#[derive(Clone, Debug)]
pub struct Places {
    executable: String,
    /// What people call the program: its script, or its executable.
    program: String,
    /// With a `/` at the end; none of them is the root.
    directories: Vec<String>,
    /// The program came on the command line.
    inline: bool,
}

/// Packages whose inside tells nothing about who wanted the memory.
const FRAMEWORKS: [&str; 19] = [
    "torch",
    "torchgen",
    "functorch",
    "numpy",
    "cupy",
    "cupyx",
    "cupy_backends",
    "jax",
    "jaxlib",
    "tensorflow",
    "keras",
    "triton",
    "numba",
    "numba_cuda",
    "rmm",
    "cuda",
    "pycuda",
    "nvidia",
    "pybind11",
];

/// Libraries by the beginning of their file name, and what people call them.
const LIBRARIES: [(&str, &str); 32] = [
    ("libcublas", "cuBLAS"),
    ("libcudnn", "cuDNN"),
    ("libnccl", "NCCL"),
    ("libcufft", "cuFFT"),
    ("libcusolver", "cuSOLVER"),
    ("libcusparse", "cuSPARSE"),
    ("libcurand", "cuRAND"),
    ("libcutensor", "cuTENSOR"),
    ("libcutlass", "CUTLASS"),
    ("libnvrtc", "NVRTC"),
    ("libnvshmem", "NVSHMEM"),
    ("libnvJitLink", "nvJitLink"),
    ("libnvinfer", "TensorRT"),
    ("libnpp", "NPP"),
    ("libcupti", "CUPTI"),
    ("libc10", "PyTorch"),
    ("libtorch", "PyTorch"),
    ("libtensorflow", "TensorFlow"),
    ("_pywrap_tensorflow", "TensorFlow"),
    ("xla_extension", "XLA"),
    ("xla_cuda", "XLA"),
    ("libpjrt", "XLA"),
    ("pjrt_c_api", "XLA"),
    ("libxla", "XLA"),
    ("librmm", "RMM"),
    ("libonnxruntime", "ONNX Runtime"),
    ("libggml", "ggml"),
    ("libllama", "llama.cpp"),
    ("libtriton", "Triton"),
    ("libucp", "UCX"),
    ("libuct", "UCX"),
    ("libmpi", "MPI"),
];

/// Python packages under other names than their own.
const PACKAGES: [(&str, &str); 11] = [
    ("torch", "PyTorch"),
    ("functorch", "PyTorch"),
    ("cupy", "CuPy"),
    ("cupyx", "CuPy"),
    ("cupy_backends", "CuPy"),
    ("jax", "XLA"),
    ("jaxlib", "XLA"),
    ("tensorflow", "TensorFlow"),
    ("keras", "TensorFlow"),
    ("rmm", "RMM"),
    ("triton", "Triton"),
];

const PLUMBING: [&str; 17] = [
    "libcuda.so",
    "libcudart",
    "libnvidia-",
    "libvramtrace",
    "libc.so",
    "libc-2",
    "libm.so",
    "libstdc++",
    "libc++",
    "libgcc_s",
    "libpthread",
    "libdl.so",
    "ld-linux",
    "libpython",
    "_ctypes",
    "libffi",
    "[vdso]",
];

impl Places {
    pub fn of(header: &Header) -> Places {
        let working = Path::new(&header.working_directory);
        let script = header.command.iter().skip(1).find(|argument| argument.ends_with(".py"));
        let named = script.unwrap_or(&header.executable);
        let program = base_name(named).to_string();
        let script = script.and_then(|script| Some(working.join(script).parent()?.to_path_buf()));
        let directories = [Some(working.to_path_buf()), script];
        let directories = directories.into_iter().flatten().filter_map(|directory| {
            let text = directory.to_str()?.trim_end_matches('/');
            (!text.is_empty()).then(|| format!("{text}/"))
        });
        Places {
            executable: header.executable.clone(),
            program,
            directories: directories.collect(),
            inline: header.command.iter().any(|argument| argument == "-c"),
        }
    }

    pub fn layer(&self, frame: &Frame) -> Layer {
        match frame.language {
            Language::Python => self.python(&frame.file),
            Language::Native => self.native(frame),
        }
    }

    fn python(&self, file: &str) -> Layer {
        if let Some(package) = package(file) {
            return match FRAMEWORKS.contains(&package) {
                true => Layer::Framework,
                false => Layer::Package,
            };
        }
        if file.starts_with('<') {
            return match file {
                "<stdin>" => Layer::Own,
                "<string>" if self.inline => Layer::Own,
                _ if file.starts_with("<ipython-input") => Layer::Own,
                _ if file.starts_with("<eval_with_key>") || file.starts_with("<__array") => {
                    Layer::Framework
                }
                // Made by the interpreter: importlib, dataclasses.
                _ => Layer::Plumbing,
            };
        }
        if file.contains("/torchinductor_") {
            return Layer::Framework;
        }
        if file.contains("/lib/python3") || file.is_empty() {
            return Layer::Plumbing;
        }
        if self.is_own_file(file) || file.contains("/ipykernel_") {
            return Layer::Own;
        }
        // A framework's source tree that is used in place.
        let mut parts = file.split('/');
        match parts.any(|part| part == "torch") {
            true => Layer::Framework,
            false => Layer::Package,
        }
    }

    fn is_own_file(&self, file: &str) -> bool {
        // Compilers and old Pythons give names relative to where they were started.
        !file.starts_with('/')
            || self.directories.iter().any(|directory| file.starts_with(directory.as_str()))
    }

    fn native(&self, frame: &Frame) -> Layer {
        let Some(library) = frame.library.as_deref() else { return Layer::Package };
        let name = base_name(library);
        if PLUMBING.iter().any(|prefix| name.starts_with(prefix)) {
            return Layer::Plumbing;
        }
        let file = &*frame.file;
        let of_others = ["/rustc/", "/.cargo/registry/", "/usr/include/", "/usr/lib/gcc/"];
        if of_others.iter().any(|part| file.contains(part)) {
            return Layer::Framework;
        }
        if library == self.executable || !file.is_empty() && self.is_own_file(file) {
            return Layer::Own;
        }
        match LIBRARIES.iter().any(|(prefix, _)| name.starts_with(prefix))
            || package(library).is_some()
        {
            true => Layer::Framework,
            false => Layer::Package,
        }
    }

    /// The name of the program itself.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// The name of what asked the driver for memory, for a frame that may stand for it. `None`:
    /// it asks on behalf of the frame further out.
    pub fn library(&self, frame: &Frame) -> Option<String> {
        let titled = |package: &str| {
            let known = PACKAGES.iter().find(|(name, _)| *name == package);
            known.map_or_else(|| package.to_string(), |(_, title)| title.to_string())
        };
        let Some(path) = frame.library.as_deref() else {
            // Native code outside any library: made at run time.
            let native = frame.language == Language::Native;
            return (!native).then(|| package(&frame.file)).flatten().map(titled);
        };
        let name = base_name(path);
        if PLUMBING.iter().any(|prefix| name.starts_with(prefix)) {
            return None;
        }
        let known = LIBRARIES.iter().find(|(prefix, _)| name.starts_with(prefix));
        let title = match known {
            // Linked into the framework.
            Some((_, "PyTorch")) if frame.function.starts_with("nccl") => "NCCL".into(),
            // PyTorch allocates it from its own segments.
            Some((_, "PyTorch")) if frame.function.contains("CUDABlas") => "cuBLAS".into(),
            Some((_, title)) => title.to_string(),
            None if path == self.executable => name.to_string(),
            None => package(path).map_or_else(|| name.to_string(), titled),
        };
        Some(title)
    }
}

/// The installed package that a file belongs to.
fn package(file: &str) -> Option<&str> {
    let rest = ["/site-packages/", "/dist-packages/"]
        .iter()
        .find_map(|directory| file.rsplit_once(directory).map(|(_, rest)| rest))?;
    let first = rest.split('/').next()?;
    // A package of one file, `six.py` or `_x.cpython-311-x86_64-linux-gnu.so`.
    Some(first.split('.').next().unwrap_or(first))
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

    fn frame(language: Language, function: &str, file: &str, library: &str) -> Frame {
        Frame {
            language,
            function: function.into(),
            file: file.into(),
            line: Some(1),
            library: (!library.is_empty()).then(|| library.into()),
        }
    }

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
            ("", Layer::Plumbing),
        ] {
            assert_eq!(places.layer(&frame(Language::Python, "f", file, "")), layer, "{file}");
        }
        let inline = self::places(&["python", "-c", "import torch"]);
        assert_eq!(inline.layer(&frame(Language::Python, "<module>", "<string>", "")), Layer::Own);
        // Started in the root: not everything is its own.
        let root = Places::of(&Header { working_directory: "/".into(), ..Header::default() });
        let other = frame(Language::Python, "f", "/opt/other/tool.py", "");
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
            let frame = frame(Language::Native, function, file, library);
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
