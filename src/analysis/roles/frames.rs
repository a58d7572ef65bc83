//! What one frame says about the purpose of the memory that was allocated below it.
//!
//! Files and functions are compared, never lines: lines move with each version of PyTorch.
//! Functions are compared by the last part of their name, as Python before 3.11 and PyTorch's own
//! snapshots have no qualified names.

use super::Role;
use crate::analysis::{autograd, engines};
use crate::symbols::{Frame, Language};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::analysis) enum FrameMark {
    /// It says nothing.
    None,
    /// Python code of the program or of a library: not of PyTorch.
    Other,
    /// The same, in a constructor.
    Constructor,
    /// The call of a module.
    Module,
    /// Code that was compiled runs here, whatever it is for.
    Compiled,
    /// Weights are made, moved or read here.
    Load,
    /// A tensor is copied with the object that has it.
    Copy,
    Cache,
    /// A backward step, or what starts it.
    Backward,
    /// A gradient gets its place.
    Accumulate,
    /// A forward step that is made again in backward.
    Recompute,
    Optimizer,
    /// State of an optimizer is made here.
    OptimizerState,
    /// The memory has this role whenever it is freed.
    Is(Role),
}

/// Functions of a file that mean something; none: all of the file.
type Row = (&'static str, &'static [&'static str], FrameMark);

/// By the end of the file's path. The first that fits decides.
const PYTHON: [Row; 35] = [
    (
        "/torch/nn/modules/module.py",
        &["_call_impl", "_wrapped_call_impl", "__call__"],
        FrameMark::Module,
    ),
    (
        "/torch/nn/modules/module.py",
        &[
            "_apply",
            "to",
            "cuda",
            "to_empty",
            "load_state_dict",
            "_load_from_state_dict",
            "half",
            "float",
            "bfloat16",
        ],
        FrameMark::Load,
    ),
    ("/torch/nn/parameter.py", &["__deepcopy__"], FrameMark::Copy),
    ("/torch/nn/parameter.py", &["__new__", "materialize"], FrameMark::Load),
    ("/torch/_tensor.py", &["__deepcopy__"], FrameMark::Copy),
    ("/torch/serialization.py", &[], FrameMark::Load),
    (
        "/torch/_utils.py",
        &["_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter"],
        FrameMark::Load,
    ),
    ("/safetensors/torch.py", &[], FrameMark::Load),
    ("/transformers/core_model_loading.py", &[], FrameMark::Load),
    (
        "/transformers/modeling_utils.py",
        &[
            "from_pretrained",
            "_load_state_dict_into_meta_model",
            "_load_pretrained_model",
            "caching_allocator_warmup",
        ],
        FrameMark::Load,
    ),
    (
        "/accelerate/utils/modeling.py",
        &["set_module_tensor_to_device", "load_checkpoint_in_model"],
        FrameMark::Load,
    ),
    ("/diffusers/models/model_loading_utils.py", &[], FrameMark::Load),
    (
        "/fsdp/_flat_param.py",
        &["__init__", "_init_flat_param_and_metadata", "flatten_tensors", "shard", "_get_shard"],
        FrameMark::Load,
    ),
    ("/fsdp/_fully_shard/_fsdp_param.py", &["_init_sharded_param"], FrameMark::Load),
    ("/fsdp/_fully_shard/_fsdp_collectives.py", &[], FrameMark::Is(Role::Communication)),
    ("/torch/nn/parallel/distributed.py", &[], FrameMark::Is(Role::Communication)),
    ("/torch/distributed/distributed_c10d.py", &[], FrameMark::Is(Role::Communication)),
    ("/torch/distributed/_functional_collectives.py", &[], FrameMark::Is(Role::Communication)),
    (
        "/torch/distributed/utils.py",
        &["_broadcast_coalesced", "_sync_module_states", "_verify_param_shape_across_processes"],
        FrameMark::Is(Role::Communication),
    ),
    ("/torch/autograd/function.py", &["backward", "vjp", "apply_backward"], FrameMark::Backward),
    ("/torch/autograd/__init__.py", &["backward", "grad", "_make_grads"], FrameMark::Backward),
    ("/torch/autograd/graph.py", &["_engine_run_backward"], FrameMark::Backward),
    ("/torch/_tensor.py", &["backward"], FrameMark::Backward),
    (
        "/torch/utils/checkpoint.py",
        &["unpack_hook", "recompute_fn", "backward"],
        FrameMark::Recompute,
    ),
    (
        "/torch/_functorch/_aot_autograd/runtime_wrappers.py",
        &["backward", "_backward_impl", "impl_fn"],
        FrameMark::Backward,
    ),
    (
        "/torch/optim/optimizer.py",
        &["load_state_dict", "_process_value_according_to_param_policy"],
        FrameMark::OptimizerState,
    ),
    ("/torch/optim/optimizer.py", &["zero_grad"], FrameMark::None),
    (
        "/torch/cuda/graphs.py",
        &["capture_begin", "graph_pool_handle", "make_graphed_callables"],
        FrameMark::Is(Role::GraphMemory),
    ),
    (
        "/torch/_inductor/cudagraph_trees.py",
        &["_record", "record_function", "run_first_inputs"],
        FrameMark::Is(Role::GraphMemory),
    ),
    ("/transformers/cache_utils.py", &[], FrameMark::Cache),
    (
        "/vllm/v1/worker/gpu_model_runner.py",
        &["initialize_kv_cache", "_allocate_kv_cache_tensors"],
        FrameMark::Cache,
    ),
    ("/vllm/worker/cache_engine.py", &[], FrameMark::Cache),
    ("/sglang/srt/mem_cache/memory_pool.py", &[], FrameMark::Cache),
    ("/vllm/model_executor/model_loader/", &[], FrameMark::Load),
    ("/sglang/srt/model_loader/", &[], FrameMark::Load),
];

/// Parts of function names that only caches of keys and values have, in lower case.
const CACHE_NAMES: [&str; 5] =
    ["kv_cache", "kvcache", "kv_pool", "tokentokvpool", "past_key_value"];

/// Parts of PyTorch's native functions. `engines` has those of others.
const NATIVE: [(&str, FrameMark); 9] = [
    ("Workspace", FrameMark::Is(Role::Workspace)),
    ("getCurrentCUDABlasHandle", FrameMark::Is(Role::Workspace)),
    ("getCudnnHandle", FrameMark::Is(Role::Workspace)),
    ("c10d::Reducer", FrameMark::Is(Role::Communication)),
    ("c10d::ProcessGroup", FrameMark::Is(Role::Communication)),
    ("torch::autograd::AccumulateGrad::", FrameMark::Accumulate),
    ("torch::autograd::Engine::", FrameMark::Backward),
    ("torch::autograd::Node::operator()", FrameMark::Backward),
    ("torch::autograd::PyNode::apply", FrameMark::Backward),
];

pub(in crate::analysis) fn mark(frame: &Frame) -> FrameMark {
    match frame.language {
        Language::Native => native(frame),
        Language::Python => python(frame),
    }
}

fn native(frame: &Frame) -> FrameMark {
    let function = &*frame.function;
    if let Some((_, mark)) = NATIVE.iter().find(|(part, _)| function.contains(part)) {
        return *mark;
    }
    if autograd::node(function).is_some() {
        return FrameMark::Backward;
    }
    engines::purpose(frame).map_or(FrameMark::None, |purpose| FrameMark::Is(purpose.role))
}

fn python(frame: &Frame) -> FrameMark {
    let (file, name) = (&*frame.file, last(&frame.function));
    let fits = |(part, functions, _): &&Row| {
        let place = match part.ends_with('/') {
            true => file.contains(part),
            false => file.ends_with(part),
        };
        place && (functions.is_empty() || functions.contains(&name))
    };
    if let Some((_, _, mark)) = PYTHON.iter().find(fits) {
        return *mark;
    }
    if file.ends_with("/torch/_dynamo/eval_frame.py") {
        return FrameMark::Compiled;
    }
    // A custom function's own backward runs below this one.
    if file.ends_with("/torch/autograd/function.py") {
        let backward = frame.function.contains("BackwardCFunction");
        return if backward { FrameMark::Backward } else { FrameMark::None };
    }
    if is_optimizer(file, &frame.function) {
        return match name.contains("init_group") || name.contains("init_state") {
            true => FrameMark::OptimizerState,
            false => FrameMark::Optimizer,
        };
    }
    if is_in(file, "/torch/nn/modules/") && matches!(name, "__init__" | "reset_parameters") {
        return FrameMark::Load;
    }
    let lower = frame.function.to_ascii_lowercase();
    if CACHE_NAMES.iter().any(|part| lower.contains(part)) {
        return FrameMark::Cache;
    }
    match name {
        "from_pretrained" | "load_state_dict" => FrameMark::Load,
        // What users write for autograd, and what starts it.
        "backward" => FrameMark::Backward,
        _ if is_in(file, "/torch/") || file.starts_with('<') => FrameMark::None,
        "__init__" => FrameMark::Constructor,
        _ => FrameMark::Other,
    }
}

/// PyTorch's optimizers, and those of others that keep its names: `step` of a file or class that
/// is called optimizer.
fn is_optimizer(file: &str, function: &str) -> bool {
    if file.ends_with("/lr_scheduler.py") {
        return false;
    }
    if is_in(file, "/torch/optim/") {
        return !matches!(last(function), "__init__" | "zero_grad" | "add_param_group");
    }
    let step = matches!(last(function), "step" | "update_step" | "init_state" | "_init_group");
    let class = function.rsplit('.').nth(1).unwrap_or_default().to_ascii_lowercase();
    step && (is_in(file, "/optim/") || is_in(file, "/optimizers/") || class.contains("optim"))
}

fn is_in(file: &str, folder: &str) -> bool {
    file.contains(folder)
}

fn last(function: &str) -> &str {
    function.rsplit('.').next().unwrap_or(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(file: &str, function: &str) -> FrameMark {
        let frame = Frame {
            language: Language::Python,
            function: function.into(),
            file: file.into(),
            line: Some(1),
            library: None,
        };
        mark(&frame)
    }

    fn native(library: &str, function: &str) -> FrameMark {
        let frame = Frame {
            language: Language::Native,
            function: function.into(),
            file: "".into(),
            line: None,
            library: Some(library.into()),
        };
        mark(&frame)
    }

    #[test]
    fn python_frames_by_file_and_function() {
        let torch = |file: &str| format!("/v/lib/python3.12/site-packages/torch/{file}");
        for (file, function, mark) in [
            (torch("nn/modules/module.py"), "Module._call_impl", FrameMark::Module),
            (torch("nn/modules/module.py"), "_call_impl", FrameMark::Module),
            (torch("nn/modules/module.py"), "Module._apply", FrameMark::Load),
            (torch("nn/modules/linear.py"), "Linear.__init__", FrameMark::Load),
            (torch("nn/modules/linear.py"), "Linear.forward", FrameMark::None),
            (torch("optim/adam.py"), "Adam._init_group", FrameMark::OptimizerState),
            (torch("optim/adam.py"), "_multi_tensor_adam", FrameMark::Optimizer),
            (torch("optim/sgd.py"), "SGD.step", FrameMark::Optimizer),
            (torch("optim/optimizer.py"), "Optimizer.zero_grad", FrameMark::None),
            (torch("optim/lr_scheduler.py"), "LRScheduler.step", FrameMark::None),
            (torch("autograd/function.py"), "BackwardCFunction.apply", FrameMark::Backward),
            (torch("autograd/function.py"), "Function.apply", FrameMark::None),
            (torch("_tensor.py"), "Tensor.backward", FrameMark::Backward),
            (torch("utils/checkpoint.py"), "_checkpoint_hook.unpack_hook", FrameMark::Recompute),
            ("/v/transformers/cache_utils.py".into(), "DynamicLayer.update", FrameMark::Cache),
            ("/home/me/attention.py".into(), "make_kv_cache", FrameMark::Cache),
            ("/home/me/train.py".into(), "Net.__init__", FrameMark::Constructor),
            ("/home/me/train.py".into(), "step", FrameMark::Other),
            ("/home/me/train.py".into(), "Trainer.optimizer_step", FrameMark::Other),
            ("/v/apex/optimizers/fused_adam.py".into(), "FusedAdam.step", FrameMark::Optimizer),
            (
                "/v/apex/optimizers/fused_adam.py".into(),
                "FusedAdam.__init__",
                FrameMark::Constructor,
            ),
            ("<string>".into(), "<module>", FrameMark::None),
            ("/home/me/ops.py".into(), "Rotate.backward", FrameMark::Backward),
            (torch("_dynamo/eval_frame.py"), "_TorchDynamoContext._fn", FrameMark::Compiled),
        ] {
            assert_eq!(python(&file, function), mark, "{file} {function}");
        }
    }

    #[test]
    fn native_frames_by_function_and_library() {
        for (library, function, mark) in [
            (
                "/x/libtorch_cuda.so",
                "at::cuda::getCUDABlasLtWorkspace",
                FrameMark::Is(Role::Workspace),
            ),
            ("/x/libcublas.so.13", "libcublas.so.13+0x5b45ee", FrameMark::Is(Role::Workspace)),
            ("/x/libnccl.so.2", "ncclCommInitRank", FrameMark::Is(Role::Communication)),
            ("/x/libtorch_cuda.so", "ncclAlloc", FrameMark::Is(Role::Communication)),
            ("/x/libtorch_cpu.so", "torch::autograd::AccumulateGrad::apply", FrameMark::Accumulate),
            (
                "/x/libtorch_cpu.so",
                "torch::autograd::generated::MmBackward0::apply",
                FrameMark::Backward,
            ),
            ("/x/libtorch_cpu.so", "torch::autograd::Engine::thread_main", FrameMark::Backward),
            ("/x/libtorch_cpu.so", "at::_ops::mm::call", FrameMark::None),
        ] {
            assert_eq!(native(library, function), mark, "{function}");
        }
    }
}
