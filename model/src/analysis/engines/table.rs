//! The engines and libraries whose native functions have one purpose each. Another engine is added here, and to the
//! list in docs/gpu-evidence.md, which a test compares with this one.
//!
//! A row names a function by the begin of its demangled name, without parameters. So `llama_kv_cache` is each class
//! and function whose name begins so. Names are taken that stay between versions: no lines, no templates.

use super::{Engine, FunctionRole, Role};

/// Of one engine no row may hide another: the first that fits decides.
pub(super) const ENGINES: &[Engine] = &[
    Engine {
        name: "llama.cpp, whisper.cpp, ggml",
        source: "src/llama-*.cpp, tools/mtmd, ggml/src/ggml-alloc.c, ggml-backend.cpp, ggml-cuda of llama.cpp, as in llama-cpp-sys-4 0.11.0",
        names_holders: true,
        rows: &[
            function("ggml_cuda_pool", Role::Workspace, "scratch memory of an operation"),
            function(
                "ggml_backend_cuda_context::cublas_handle",
                Role::Workspace,
                "the workspace that ggml gives to cuBLAS",
            ),
            function("ggml_cuda_op_", Role::Workspace, "scratch memory of an operation, cuBLAS"),
            function(
                "ggml_cuda_mul_mat",
                Role::Workspace,
                "scratch memory of an operation, cuBLAS",
            ),
            function(
                "ggml_backend_cuda_graph_compute",
                Role::Workspace,
                "scratch memory of an operation, cuBLAS",
            ),
            function("ggml_gallocr_", Role::Activations, "compute buffers"),
            function("ggml_backend_sched_", Role::Activations, "compute buffers"),
            function("llama_context::output_reserve", Role::Activations, "logits, embeddings"),
            function("llama_kv_", Role::KvCache, "keys and values"),
            function("llama_memory_recurrent", Role::KvCache, "state of recurrent layers"),
            function("llama_memory_hybrid", Role::KvCache, "keys, values and state"),
            function("llama_dsv4_comp_state", Role::KvCache, "compressed keys and values"),
            function("llama_io_", Role::KvCache, "a saved state of a sequence"),
            function("whisper_kv_cache", Role::KvCache, "keys and values"),
            function("ggml_backend_cuda_split_buffer", Role::Weights, "weights on several cards"),
            function("llama_model", Role::Weights, "the model"),
            function("llama_moe_cache", Role::Weights, "experts that are on the card"),
            function("llama_adapter", Role::Weights, "LoRA, control vectors"),
            function("clip_model_loader", Role::Weights, "the model of images and sound"),
            function("whisper_model_load", Role::Weights, "the model"),
        ],
    },
    Engine {
        name: "ONNX Runtime",
        source: "onnxruntime/core/framework, core/providers/cuda; src/models of onnxruntime-genai",
        names_holders: true,
        rows: &[
            function("onnxruntime::session_state_utils::", Role::Weights, "initializers"),
            function("onnxruntime::SessionState::", Role::Weights, "initializers, packed again"),
            function("onnxruntime::ExecutionFrame::", Role::Activations, "outputs of nodes"),
            function("onnxruntime::IExecutionFrame::", Role::Activations, "outputs of nodes"),
            function("onnxruntime::cuda::", Role::Workspace, "scratch memory of a node"),
            function(
                "onnxruntime::CUDAExecutionProvider",
                Role::Workspace,
                "handles of cuBLAS, cuDNN",
            ),
            function("onnxruntime::utils::CopyInputs", Role::Input, "inputs"),
            function("Generators::DefaultKeyValueCache", Role::KvCache, "keys and values"),
            function("Generators::CombinedKeyValueCache", Role::KvCache, "keys and values"),
            function("Generators::WindowedKeyValueCache", Role::KvCache, "keys and values"),
        ],
    },
    Engine {
        name: "XGBoost",
        source: "symbols of libxgboost.so 3.2.0",
        names_holders: true,
        rows: &[
            function("xgboost::EllpackPage", Role::Input, "the data, in bins"),
            function("xgboost::data::", Role::Input, "the data"),
            function("xgboost::SparsePage", Role::Input, "the data, by row"),
            function("xgboost::MetaInfo", Role::Input, "labels, weights of rows"),
            function("xgboost::obj::", Role::Gradients, "gradients of rows"),
            function("xgboost::tree::", Role::Workspace, "histograms, rows of nodes, splits"),
            function("xgboost::common::Sketch", Role::Workspace, "quantiles of columns"),
            function("xgboost::common::Segmented", Role::Workspace, "sorting, quantiles"),
            function("xgboost::common::cuda_impl::", Role::Workspace, "sampling, means"),
            function("xgboost::metric::", Role::Workspace, "metrics"),
            function("xgboost::linear::", Role::Workspace, "updates of a linear model"),
            function("xgboost::ltr::", Role::Workspace, "ranking"),
            function("xgboost::predictor::", Role::Activations, "predictions"),
            function("xgboost::gbm::", Role::Activations, "predictions"),
        ],
    },
    Engine {
        name: "cuBLAS, cuDNN, cuSOLVER, cuSPARSE, cuFFT, cuTENSOR",
        source: "file names of the libraries, names of their functions",
        names_holders: false,
        rows: &[
            function("cublasCreate", Role::Workspace, "linked into a framework"),
            function("cudnnCreate", Role::Workspace, "linked into a framework"),
            function("cusolverDnCreate", Role::Workspace, "linked into a framework"),
            library("libcublas", Role::Workspace, "its workspace"),
            library("libcudnn", Role::Workspace, "its workspace"),
            library("libcusolver", Role::Workspace, "its workspace"),
            library("libcusparse", Role::Workspace, "its workspace"),
            library("libcufft", Role::Workspace, "its workspace"),
            library("libcutensor", Role::Workspace, "its workspace"),
        ],
    },
    Engine {
        name: "comfy-aimdo",
        source: "names of its functions, as in comfy-aimdo 0.6.0",
        names_holders: false,
        rows: &[
            of("vbar_", "aimdo", Role::PagedWeights, "pages of weights"),
            of("physical_page_", "aimdo", Role::PagedWeights, "pages of weights"),
            of("vrambuf_", "aimdo", Role::Workspace, "what weights are cast in"),
        ],
    },
    Engine {
        name: "NCCL, NVSHMEM",
        source: "file names of the libraries, names of their functions",
        names_holders: false,
        rows: &[
            function("nccl", Role::Communication, "linked into a framework"),
            library("libnccl", Role::Communication, "buffers of channels"),
            library("libnvshmem", Role::Communication, "the symmetric heap"),
        ],
    },
    Engine {
        name: "CUDA graphs",
        source: "the CUDA driver's and runtime's API",
        names_holders: false,
        rows: &[
            function("cudaGraphInstantiate", Role::GraphMemory, "an executable graph"),
            function("cuGraphInstantiate", Role::GraphMemory, "an executable graph"),
        ],
    },
];

const fn function(begin: &'static str, role: Role, what: &'static str) -> FunctionRole {
    FunctionRole { function: begin, library: "", role, what }
}

const fn of(
    begin: &'static str,
    library: &'static str,
    role: Role,
    what: &'static str,
) -> FunctionRole {
    FunctionRole { function: begin, library, role, what }
}

const fn library(begin: &'static str, role: Role, what: &'static str) -> FunctionRole {
    FunctionRole { function: "", library: begin, role, what }
}
