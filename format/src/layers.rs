//! Classifies source files and libraries by name, for reports of what holds memory: system layer, framework, package or
//! the program's own code. The recorder's summary and all reports use the same rules.

use std::path::Path;

use crate::header::Header;

/// The layer of a source file or library, from the lowest up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// The driver, the recorder, the CUDA, C and C++ runtimes, and the Python interpreter.
    Plumbing,
    /// A framework or library that allocates memory for its callers.
    Framework,
    /// Other packages.
    Package,
    /// Code in the directory of the program or its script.
    Own,
}

/// Where the files of a traced program are.
#[derive(Clone, Debug, Default)]
pub struct Places {
    executable: String,
    /// File name of the script, or else of the executable.
    program: String,
    /// Directories of the program's own files, with a `/` at the end. The root is never one of them.
    directories: Vec<String>,
    /// The program's text was given on the command line (`-c`).
    inline: bool,
    /// Of `python -m package.module`: the package's file or directory below any directory, `/package.py` and
    /// `/package/`.
    module: Option<[String; 2]>,
    /// The script through which one of [`RUNNERS`] is started: `/venv/bin/pytest`.
    launcher: Option<String>,
    /// Libraries that replaced the beginning of the recorder's functions: they hand on the requests of others.
    patched_by: Vec<String>,
}

/// The script or the module that the interpreter of this command line runs. Neither: no interpreter, a text (`-c`), or its
/// standard input.
fn runs(command: &[String]) -> [Option<&str>; 2] {
    let mut arguments = command.iter().map(String::as_str);
    if !arguments.next().is_some_and(is_python) {
        return [None; 2];
    }
    while let Some(argument) = arguments.next() {
        match argument {
            "-m" => return [None, arguments.next()],
            "-c" | "-" => return [None; 2],
            "-W" | "-X" | "--check-hash-based-pycs" => drop(arguments.next()),
            option if option.starts_with('-') => {}
            script => return [Some(script), None],
        }
    }
    [None; 2]
}

/// Whether a path is of an interpreter of Python.
fn is_python(path: &str) -> bool {
    base_name(path).starts_with("python")
}

/// Commands of [`RUNNERS`], by the begin of their names.
const LAUNCHERS: [&str; 4] = ["pytest", "py.test", "ipython", "jupyter"];

/// The script of such a command: pip writes it beside the interpreter, without `.py` in its name.
fn launcher(command: &[String]) -> Option<&str> {
    let [Some(script), _] = runs(command) else { return None };
    let (directory, name) = script.rsplit_once('/')?;
    let beside = command[0].rsplit_once('/').is_some_and(|(of, _)| of == directory);
    let runs = LAUNCHERS.iter().any(|launcher| name.starts_with(launcher));
    (beside && runs && !name.ends_with(".py")).then_some(script)
}

/// Packages of [`Layer::Framework`] by their import names, with their common names.
const FRAMEWORKS: [(&str, &str); 19] = [
    ("torch", "PyTorch"),
    ("torchgen", "torchgen"),
    ("functorch", "PyTorch"),
    ("numpy", "numpy"),
    ("cupy", "CuPy"),
    ("cupyx", "CuPy"),
    ("cupy_backends", "CuPy"),
    ("jax", "XLA"),
    ("jaxlib", "XLA"),
    ("tensorflow", "TensorFlow"),
    ("keras", "TensorFlow"),
    ("triton", "Triton"),
    ("numba", "numba"),
    ("numba_cuda", "numba_cuda"),
    ("rmm", "RMM"),
    ("cuda", "cuda"),
    ("pycuda", "pycuda"),
    ("nvidia", "nvidia"),
    ("pybind11", "pybind11"),
];

/// Prefixes of file names of libraries, with the libraries' common names.
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

/// Packages that run the program's code, as the interpreter does: they allocate nothing for themselves. vramtrace's own is
/// one, its decorators and magics call the program's functions.
const RUNNERS: &str =
    "vramtrace IPython ipykernel ipykernel_launcher _pytest pytest pluggy xdist execnet";

/// The module that runs a notebook's cells.
const NOTEBOOK: &str = "ipykernel_launcher";

/// Packages that are known below any directory: they are installed to a directory of their own, or imported from their
/// source tree.
const ELSEWHERE: [&str; 8] =
    ["torch", "vllm", "sglang", "transformers", "diffusers", "accelerate", "deepspeed", "megatron"];

/// Python files of PyTorch with functions that only dispatch calls, and these functions. An empty list: all functions.
const DISPATCH: [(&str, &[&str]); 9] = [
    ("/torch/nn/modules/module.py", &["_call_impl", "_wrapped_call_impl", "__call__"]),
    ("/torch/nn/modules/container.py", &["forward"]),
    ("/torch/_ops.py", &[]),
    ("/torch/_tensor.py", &["__torch_function__", "wrapped", "backward"]),
    ("/torch/overrides.py", &[]),
    ("/torch/utils/_contextlib.py", &[]),
    ("/torch/utils/_device.py", &[]),
    ("/torch/autograd/function.py", &["apply"]),
    ("/torch/_dynamo/eval_frame.py", &[]),
];

/// Prefixes of file names of libraries of [`Layer::Plumbing`].
const PLUMBING: &str = "libcuda.so libcudart libnvidia- libvramtrace libc.so libc-2 libm.so libstdc++ libc++ \
     libgcc_s libpthread libdl.so ld-linux libpython _ctypes libffi [vdso]";

impl Places {
    /// From the header of the program's trace.
    pub fn of(header: &Header) -> Places {
        let working = Path::new(&header.working_directory);
        let [given, module] = runs(&header.command);
        // The launcher of a script (torchrun, accelerate) may be a module or a script itself.
        let script = header.command.iter().skip(1).find(|argument| argument.ends_with(".py"));
        let script = script.map(String::as_str).or(given);
        let module = module.filter(|_| script.is_none());
        // A process that replaced its command line by a title: `VLLM::EngineCore`.
        let title = header.command.first().map(String::as_str);
        let title = title.filter(|title| is_python(&header.executable) && !is_python(title));
        let named = script.or(module).or(title).unwrap_or(&header.executable);
        let program = if named == NOTEBOOK { "notebook" } else { base_name(named) }.to_string();
        let launcher = launcher(&header.command);
        let module = module.map(|module| {
            let package = module.split('.').next().unwrap_or(module);
            [format!("/{package}.py"), format!("/{package}/")]
        });
        let script = script.filter(|script| Some(*script) != launcher);
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
            // The text with which multiprocessing starts a process is not the program's.
            inline: header.command.iter().any(|argument| argument == "-c")
                && !header.command.iter().any(|argument| argument.contains("multiprocessing")),
            module,
            launcher: launcher.map(str::to_string),
            patched_by: Vec::new(),
        }
    }

    /// The same, with the libraries of [`crate::PATCHED_BY`]. The program itself is never one of them: its frames say who
    /// requested memory.
    pub fn patched_by(mut self, libraries: Vec<String>) -> Places {
        self.patched_by = libraries;
        self.patched_by.retain(|path| *path != self.executable);
        self
    }

    /// The layer of a Python source file.
    pub fn python(&self, file: &str) -> Layer {
        if let Some(package) = self.package(file) {
            return match FRAMEWORKS.iter().any(|(name, _)| *name == package) {
                true => Layer::Framework,
                false if is_runner(package) => Layer::Plumbing,
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
                // Code of the standard library: importlib, dataclasses.
                _ => Layer::Plumbing,
            };
        }
        match file {
            _ if is_generated(file) => Layer::Framework,
            _ if is_of_python(file) || self.launcher.as_deref() == Some(file) => Layer::Plumbing,
            _ if self.is_own_file(file) || file.contains("/ipykernel_") => Layer::Own,
            _ => Layer::Package,
        }
    }

    /// As [`package`], also one that is known [`ELSEWHERE`].
    fn package<'f>(&self, file: &'f str) -> Option<&'f str> {
        let known = |part: &&str| ELSEWHERE.contains(part);
        let other = || is_generated(file) || is_of_python(file) || self.is_own_file(file);
        package(file).or_else(|| file.split('/').find(known).filter(|_| !other()))
    }

    /// The package that a Python source file belongs to. `None`: it belongs to none, or to one that runs the program's
    /// code.
    pub fn package_of_source<'f>(&self, file: &'f str) -> Option<&'f str> {
        self.package(file).filter(|package| !is_runner(package))
    }

    fn is_own_file(&self, file: &str) -> bool {
        // Compilers and old versions of Python store names relative to their working directory.
        !file.starts_with('/')
            || self.directories.iter().any(|directory| file.starts_with(directory.as_str()))
            || self
                .module
                .as_ref()
                .is_some_and(|[alone, package]| file.ends_with(alone) || file.contains(package))
    }

    /// The layer of native code. `library`: the path of its library or executable. `file`: its source file; empty: not
    /// known.
    pub fn native(&self, library: Option<&str>, file: &str) -> Layer {
        let Some(library) = library else { return Layer::Package };
        let name = base_name(library);
        if is_plumbing(name)
            || is_of_interpreter(library)
            || self.patched_by.iter().any(|path| path == library)
        {
            return Layer::Plumbing;
        }
        let of_others = ["/rustc/", "/.cargo/registry/", "/usr/include/", "/usr/lib/gcc/"];
        if of_others.iter().any(|part| file.contains(part)) {
            return Layer::Framework;
        }
        if library == self.executable || !file.is_empty() && self.is_own_file(file) {
            return Layer::Own;
        }
        match title(name).is_some() || package(library).is_some() {
            true => Layer::Framework,
            false => Layer::Package,
        }
    }

    /// File name of the program's script, or else of its executable.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Path of the executable.
    pub fn executable(&self) -> &str {
        &self.executable
    }

    /// The common name of the library at this path, or else its file name. `None`: [`Layer::Plumbing`].
    pub fn library(&self, path: &str) -> Option<String> {
        if self.patched_by.iter().any(|one| one == path) { None } else { self.library_itself(path) }
    }

    /// The same, also of a library that replaced the beginning of functions: for memory that it requested for itself.
    pub fn library_itself(&self, path: &str) -> Option<String> {
        let name = base_name(path);
        if is_plumbing(name) || is_of_interpreter(path) {
            return None;
        }
        Some(match title(name) {
            Some(title) => title.to_string(),
            None if path == self.executable => name.to_string(),
            None => package(path).map_or_else(|| name.to_string(), package_title),
        })
    }
}

fn is_runner(package: &str) -> bool {
    RUNNERS.split(' ').any(|runner| runner == package)
}

/// Whether a library is of [`Layer::Plumbing`]. `name`: its file name.
pub fn is_plumbing(name: &str) -> bool {
    PLUMBING.split(' ').any(|prefix| name.starts_with(prefix))
}

/// Whether it is an extension module of Python's standard library: `_asyncio`, for example, calls the program's code.
fn is_of_interpreter(library: &str) -> bool {
    library.contains("/lib-dynload/")
}

/// The common name of a known library. `name`: its file name.
pub fn title(name: &str) -> Option<&'static str> {
    LIBRARIES.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, title)| *title)
}

/// The common name of a Python package; its import name if no other is known.
pub fn package_title(package: &str) -> String {
    let known = FRAMEWORKS.iter().find(|(name, _)| *name == package);
    known.map_or(package, |(_, title)| title).to_string()
}

/// Whether a Python file is of the standard library, or none.
fn is_of_python(file: &str) -> bool {
    file.contains("/lib/python3") || file.is_empty()
}

/// Whether PyTorch's compiler wrote a Python file: `ab/cabx4...py`, in a directory of any cache.
pub fn is_generated(file: &str) -> bool {
    let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
    name.len() > 40 && name.get(1..3) == Some(base_name(folder)) || file.contains("/torchinductor_")
}

/// Whether a Python function of PyTorch only dispatches calls. `function`: its qualified name.
pub fn is_dispatch(file: &str, function: &str) -> bool {
    let name = function.rsplit('.').next().unwrap_or_default();
    DISPATCH.iter().any(|(path, functions)| {
        file.ends_with(path) && (functions.is_empty() || functions.contains(&name))
    })
}

/// The last part of a path.
pub fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The installed package (import name) that a file belongs to. `None`: it is in no `site-packages` or `dist-packages`.
pub fn package(file: &str) -> Option<&str> {
    let rest = ["/site-packages/", "/dist-packages/"]
        .iter()
        .find_map(|directory| file.rsplit_once(directory).map(|(_, rest)| rest))?;
    let first = rest.split('/').next()?;
    // A package of one file, `six.py` or `_x.cpython-311-x86_64-linux-gnu.so`.
    Some(first.split('.').next().unwrap_or(first))
}
