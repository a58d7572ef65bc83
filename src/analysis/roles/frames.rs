//! What one frame says about the purpose of the memory that was allocated below it.
//!
//! Files and functions are compared, never lines: lines move with each version of PyTorch.
//! Functions are compared by the last part of their name, as Python before 3.11 and PyTorch's own
//! snapshots have no qualified names.

use super::Role;
use super::stack_class::{StackClass, StackClass as C};
use crate::analysis::{autograd, engines};
use crate::symbols::{Frame, Language};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::analysis) enum FrameMark {
    /// It says nothing.
    None,
    /// Code that was compiled runs here, whatever it is for.
    Compiled,
    /// The class of a stack in which no other frame says more.
    Class(StackClass),
}

/// Functions of a file that mean something, with spaces between them; none: all of the file.
type FileClass = (&'static str, &'static str, StackClass);

/// By the end of the file's path. The first that fits decides.
const PYTHON: [FileClass; 34] = [
    ("/torch/nn/modules/module.py", "_call_impl _wrapped_call_impl __call__", C::Forward),
    (
        "/torch/nn/modules/module.py",
        "_apply to cuda to_empty load_state_dict _load_from_state_dict half float bfloat16",
        C::Load,
    ),
    ("/torch/nn/parameter.py", "__deepcopy__", C::Copy),
    ("/torch/nn/parameter.py", "__new__ materialize", C::Load),
    ("/torch/_tensor.py", "__deepcopy__", C::Copy),
    ("/torch/serialization.py", "", C::Load),
    ("/torch/_utils.py", "_rebuild_tensor _rebuild_tensor_v2 _rebuild_parameter", C::Load),
    ("/safetensors/torch.py", "", C::Load),
    ("/transformers/core_model_loading.py", "", C::Load),
    (
        "/transformers/modeling_utils.py",
        "from_pretrained _load_state_dict_into_meta_model _load_pretrained_model caching_allocator_warmup",
        C::Load,
    ),
    (
        "/accelerate/utils/modeling.py",
        "set_module_tensor_to_device load_checkpoint_in_model",
        C::Load,
    ),
    ("/diffusers/models/model_loading_utils.py", "", C::Load),
    (
        "/fsdp/_flat_param.py",
        "__init__ _init_flat_param_and_metadata flatten_tensors shard _get_shard",
        C::Load,
    ),
    ("/fsdp/_fully_shard/_fsdp_param.py", "_init_sharded_param", C::Load),
    ("/fsdp/_fully_shard/_fsdp_collectives.py", "", C::Is(Role::Communication)),
    ("/torch/nn/parallel/distributed.py", "", C::Is(Role::Communication)),
    ("/torch/distributed/distributed_c10d.py", "", C::Is(Role::Communication)),
    ("/torch/distributed/_functional_collectives.py", "", C::Is(Role::Communication)),
    (
        "/torch/distributed/utils.py",
        "_broadcast_coalesced _sync_module_states _verify_param_shape_across_processes",
        C::Is(Role::Communication),
    ),
    ("/torch/autograd/function.py", "backward vjp apply_backward", C::Backward),
    ("/torch/autograd/__init__.py", "backward grad _make_grads", C::Backward),
    ("/torch/autograd/graph.py", "_engine_run_backward", C::Backward),
    ("/torch/_tensor.py", "backward", C::Backward),
    ("/torch/utils/checkpoint.py", "unpack_hook recompute_fn backward", C::Recompute),
    (
        "/torch/_functorch/_aot_autograd/runtime_wrappers.py",
        "backward _backward_impl impl_fn",
        C::Backward,
    ),
    (
        "/torch/optim/optimizer.py",
        "load_state_dict _process_value_according_to_param_policy",
        C::OptimizerState,
    ),
    (
        "/torch/cuda/graphs.py",
        "capture_begin graph_pool_handle make_graphed_callables",
        C::Is(Role::GraphMemory),
    ),
    (
        "/torch/_inductor/cudagraph_trees.py",
        "_record record_function run_first_inputs",
        C::Is(Role::GraphMemory),
    ),
    ("/transformers/cache_utils.py", "", C::Cache),
    (
        "/vllm/v1/worker/gpu_model_runner.py",
        "initialize_kv_cache _allocate_kv_cache_tensors",
        C::Cache,
    ),
    ("/vllm/worker/cache_engine.py", "", C::Cache),
    ("/sglang/srt/mem_cache/memory_pool.py", "", C::Cache),
    ("/vllm/model_executor/model_loader/", "", C::Load),
    ("/sglang/srt/model_loader/", "", C::Load),
];

/// Parts of function names that only caches of keys and values have, in lower case.
const CACHE_NAMES: [&str; 5] =
    ["kv_cache", "kvcache", "kv_pool", "tokentokvpool", "past_key_value"];

/// Parts of PyTorch's native functions. `engines` has those of others.
const NATIVE: [(&str, StackClass); 9] = [
    ("Workspace", C::Is(Role::Workspace)),
    ("getCurrentCUDABlasHandle", C::Is(Role::Workspace)),
    ("getCudnnHandle", C::Is(Role::Workspace)),
    ("c10d::Reducer", C::Is(Role::Communication)),
    ("c10d::ProcessGroup", C::Is(Role::Communication)),
    ("torch::autograd::AccumulateGrad::", C::Accumulate),
    ("torch::autograd::Engine::", C::Backward),
    ("torch::autograd::Node::operator()", C::Backward),
    ("torch::autograd::PyNode::apply", C::Backward),
];

pub(in crate::analysis) fn mark(frame: &Frame) -> FrameMark {
    let class = match frame.language {
        Language::Native => native(frame),
        Language::Python if frame.file.ends_with("/torch/_dynamo/eval_frame.py") => {
            return FrameMark::Compiled;
        }
        Language::Python => python(frame),
    };
    class.map_or(FrameMark::None, FrameMark::Class)
}

fn native(frame: &Frame) -> Option<StackClass> {
    let function = &*frame.function;
    if let Some((_, class)) = NATIVE.iter().find(|(part, _)| function.contains(part)) {
        return Some(*class);
    }
    if autograd::node(function).is_some() {
        return Some(C::Backward);
    }
    engines::purpose(frame).map(|purpose| C::Is(purpose.role))
}

fn python(frame: &Frame) -> Option<StackClass> {
    let (file, name) = (&*frame.file, last(&frame.function));
    let fits = |(part, functions, _): &&FileClass| {
        let place = match part.ends_with('/') {
            true => file.contains(part),
            false => file.ends_with(part),
        };
        place && (functions.is_empty() || functions.split(' ').any(|function| function == name))
    };
    if let Some((_, _, class)) = PYTHON.iter().find(fits) {
        return Some(*class);
    }
    // A custom function's own backward runs below this one.
    if file.ends_with("/torch/autograd/function.py") {
        return frame.function.contains("BackwardCFunction").then_some(C::Backward);
    }
    if is_optimizer(file, &frame.function) {
        return Some(match name.contains("init_group") || name.contains("init_state") {
            true => C::OptimizerState,
            false => C::Optimizer,
        });
    }
    if is_in(file, "/torch/nn/modules/") && matches!(name, "__init__" | "reset_parameters") {
        return Some(C::Load);
    }
    let lower = frame.function.to_ascii_lowercase();
    if CACHE_NAMES.iter().any(|part| lower.contains(part)) {
        return Some(C::Cache);
    }
    match name {
        "from_pretrained" | "load_state_dict" => Some(C::Load),
        // What users write for autograd, and what starts it.
        "backward" => Some(C::Backward),
        _ if is_in(file, "/torch/") || file.starts_with('<') => None,
        "__init__" => Some(C::Constructor),
        _ => Some(C::Outside),
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
    use super::FrameMark::Class as M;
    use super::*;

    fn python(file: &str, function: &str) -> FrameMark {
        mark(&Frame::of(Language::Python, function, file, ""))
    }

    fn native(library: &str, function: &str) -> FrameMark {
        mark(&Frame::of(Language::Native, function, "", library))
    }

    #[test]
    fn python_frames_by_file_and_function() {
        let torch = |file: &str| format!("/v/lib/python3.12/site-packages/torch/{file}");
        for (file, function, mark) in [
            (torch("nn/modules/module.py"), "Module._call_impl", M(C::Forward)),
            (torch("nn/modules/module.py"), "_call_impl", M(C::Forward)),
            (torch("nn/modules/module.py"), "Module._apply", M(C::Load)),
            (torch("nn/modules/linear.py"), "Linear.__init__", M(C::Load)),
            (torch("nn/modules/linear.py"), "Linear.forward", FrameMark::None),
            (torch("optim/adam.py"), "Adam._init_group", M(C::OptimizerState)),
            (torch("optim/adam.py"), "_multi_tensor_adam", M(C::Optimizer)),
            (torch("optim/sgd.py"), "SGD.step", M(C::Optimizer)),
            (torch("optim/optimizer.py"), "Optimizer.zero_grad", FrameMark::None),
            (torch("optim/lr_scheduler.py"), "LRScheduler.step", FrameMark::None),
            (torch("autograd/function.py"), "BackwardCFunction.apply", M(C::Backward)),
            (torch("autograd/function.py"), "Function.apply", FrameMark::None),
            (torch("_tensor.py"), "Tensor.backward", M(C::Backward)),
            (torch("utils/checkpoint.py"), "_checkpoint_hook.unpack_hook", M(C::Recompute)),
            ("/v/transformers/cache_utils.py".into(), "DynamicLayer.update", M(C::Cache)),
            ("/home/me/attention.py".into(), "make_kv_cache", M(C::Cache)),
            ("/home/me/train.py".into(), "Net.__init__", M(C::Constructor)),
            ("/home/me/train.py".into(), "step", M(C::Outside)),
            ("/home/me/train.py".into(), "Trainer.optimizer_step", M(C::Outside)),
            ("/v/apex/optimizers/fused_adam.py".into(), "FusedAdam.step", M(C::Optimizer)),
            ("/v/apex/optimizers/fused_adam.py".into(), "FusedAdam.__init__", M(C::Constructor)),
            ("<string>".into(), "<module>", FrameMark::None),
            ("/home/me/ops.py".into(), "Rotate.backward", M(C::Backward)),
            (torch("_dynamo/eval_frame.py"), "_TorchDynamoContext._fn", FrameMark::Compiled),
        ] {
            assert_eq!(python(&file, function), mark, "{file} {function}");
        }
    }

    #[test]
    fn native_frames_by_function_and_library() {
        for (library, function, mark) in [
            ("/x/libtorch_cuda.so", "at::cuda::getCUDABlasLtWorkspace", M(C::Is(Role::Workspace))),
            ("/x/libcublas.so.13", "libcublas.so.13+0x5b45ee", M(C::Is(Role::Workspace))),
            ("/x/libnccl.so.2", "ncclCommInitRank", M(C::Is(Role::Communication))),
            ("/x/libtorch_cuda.so", "ncclAlloc", M(C::Is(Role::Communication))),
            ("/x/libtorch_cpu.so", "torch::autograd::AccumulateGrad::apply", M(C::Accumulate)),
            (
                "/x/libtorch_cpu.so",
                "torch::autograd::generated::MmBackward0::apply",
                M(C::Backward),
            ),
            ("/x/libtorch_cpu.so", "torch::autograd::Engine::thread_main", M(C::Backward)),
            ("/x/libtorch_cpu.so", "at::_ops::mm::call", FrameMark::None),
        ] {
            assert_eq!(native(library, function), mark, "{function}");
        }
    }
}
