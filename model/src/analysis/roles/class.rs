//! The class of a stack: what its frames tell about the purpose of the memory that was allocated below them.
//!
//! Files and functions are compared, never lines: lines move with each version of PyTorch.
//! Functions are compared by the last part of their name, as Python before 3.11 and PyTorch's own
//! snapshots have no qualified names.

use rustc_hash::FxHashMap;
use vramtrace_format::{StackFlags, StackId};

use self::StackClass as C;
use super::Role;
use crate::analysis::{autograd, engines};
use crate::symbols::{Frame, Language, Symbols};
use crate::trace::Definitions;

/// What a frame says, or all frames of a stack together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::analysis) enum StackClass {
    /// It says nothing: no known frame of Python or of a framework.
    #[default]
    Unknown,
    /// Python code outside of modules, of backward and of optimizers.
    Outside,
    /// The same, in a constructor.
    Constructor,
    Load,
    /// `copy.deepcopy` of a module or tensor.
    Copy,
    Forward,
    /// A function or file with the name of a cache of keys and values.
    Cache,
    Backward,
    Accumulate,
    /// Between ranks, of gradients: what goes into a reduction, and its result.
    Reduce,
    Recompute,
    Optimizer,
    OptimizerState,
    /// Of a library or engine, or of graphs: the memory has this role whenever it is freed.
    Is(Role),
    /// Of a frame: code that was compiled runs here, whatever it is for.
    Compiled,
}

/// The part of a step that runs while memory of a class is allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::analysis) enum StepPart {
    #[default]
    Outside,
    Forward,
    Backward,
    Optimizer,
}

impl StackClass {
    /// The phase of an allocation of this class. `None`: it may happen in any phase.
    pub(in crate::analysis) fn phase(self) -> Option<StepPart> {
        match self {
            StackClass::Outside | StackClass::Constructor | StackClass::Load | StackClass::Copy => {
                Some(StepPart::Outside)
            }
            StackClass::Forward => Some(StepPart::Forward),
            StackClass::Backward
            | StackClass::Accumulate
            | StackClass::Reduce
            | StackClass::Recompute => Some(StepPart::Backward),
            StackClass::Optimizer | StackClass::OptimizerState => Some(StepPart::Optimizer),
            StackClass::Unknown | StackClass::Cache | StackClass::Is(_) | StackClass::Compiled => {
                None
            }
        }
    }
}

/// The classes of a trace's stacks.
#[derive(Clone, Debug, Default)]
pub(in crate::analysis) struct StackClasses {
    by: FxHashMap<StackId, StackClass>,
    /// The program uses PyTorch. Modules, steps and passes are PyTorch's: without it, only the memory of
    /// engines, libraries and graphs has a class.
    torch: bool,
}

impl StackClasses {
    /// Classifies each stack of a trace, by the marks of its frames.
    pub(in crate::analysis) fn new(definitions: &Definitions, symbols: &Symbols) -> StackClasses {
        let mut classes = StackClasses::default();
        classes.add(definitions, symbols, &definitions.stacks().ids().collect::<Vec<_>>());
        classes
    }

    /// Classifies some stacks more. `symbols` must name them.
    pub(super) fn add(&mut self, definitions: &Definitions, symbols: &Symbols, new: &[StackId]) {
        self.torch = self.torch || uses_torch(definitions, symbols);
        let marks: Vec<StackClass> = symbols.frames().iter().map(mark).collect();
        let stacks = definitions.stacks();
        let class = |id: StackId| {
            let frames = symbols.indexes(id);
            if frames.is_empty() {
                return without_frames(stacks.get(id)?.flags);
            }
            Some(of(frames.iter().map(|index| marks[*index as usize])))
        };
        self.by.extend(new.iter().map(|id| (*id, class(*id).unwrap_or_default())));
    }

    /// Whether the stack was classified.
    pub(super) fn has(&self, stack: StackId) -> bool {
        self.by.contains_key(&stack)
    }

    pub(in crate::analysis) fn get(&self, stack: StackId) -> StackClass {
        let class = self.by.get(&stack).copied().unwrap_or_default();
        match class {
            StackClass::Is(_) => class,
            _ if self.torch => class,
            _ => StackClass::Unknown,
        }
    }
}

fn uses_torch(definitions: &Definitions, symbols: &Symbols) -> bool {
    definitions.imported_from().is_some()
        || definitions.has_library("libc10")
        || definitions.has_library("libtorch")
        || symbols.frames().iter().any(|frame| frame.file.contains("/torch/"))
}

/// Without native frames, a thread without Python frames is one that runs backward.
fn without_frames(flags: StackFlags) -> Option<StackClass> {
    let no_python =
        flags.has(StackFlags::NO_PYTHON_THREAD) || flags.has(StackFlags::NO_PYTHON_FRAMES);
    (flags.has(StackFlags::NATIVE_OFF) && no_python).then_some(StackClass::Backward)
}

/// `marks`: innermost first.
fn of(marks: impl Iterator<Item = StackClass>) -> StackClass {
    let mut found = StackClass::Unknown;
    let (mut backward, mut recompute, mut compiled) = (false, false, false);
    // A vague class is replaced by that of a frame further out, until a frame gives a definite one.
    let vague = |class| {
        matches!(class, StackClass::Unknown | StackClass::Outside | StackClass::Constructor)
    };
    for mark in marks {
        match mark {
            StackClass::Unknown => {}
            StackClass::Compiled => compiled = true,
            StackClass::Backward => backward = true,
            StackClass::Recompute => recompute = true,
            class if found == StackClass::Unknown => found = class,
            class if vague(found) && (!vague(class) || class == StackClass::Constructor) => {
                found = class;
            }
            _ => {}
        }
    }
    match found {
        StackClass::Is(_) | StackClass::Accumulate | StackClass::Reduce => found,
        _ if recompute => StackClass::Recompute,
        _ if backward => StackClass::Backward,
        // A compiled function instead of a module.
        found if compiled && vague(found) => StackClass::Forward,
        found => found,
    }
}

/// Functions of a file that mean something, with spaces between them; none: all of the file.
type FileClass = (&'static str, &'static str, StackClass);

/// By the end of the file's path. The first that fits decides.
const PYTHON: [FileClass; 37] = [
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
    // Its caller says what for.
    ("/fsdp/_fully_shard/_fsdp_collectives.py", "allocate", C::Unknown),
    ("/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_reduce", C::Reduce),
    ("/fsdp/_fully_shard/_fsdp_collectives.py", "", C::Is(Role::Communication)),
    // A stage receives into buffers that it makes once.
    (
        "/torch/distributed/pipelining/stage.py",
        "_create_act_recv_info _create_grad_recv_info _prepare_forward_infra _prepare_backward_infra",
        C::Is(Role::Activations),
    ),
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

/// What a frame says.
pub(in crate::analysis) fn mark(frame: &Frame) -> StackClass {
    let class = match frame.language {
        Language::Native => native(frame),
        Language::Python if frame.file.ends_with("/torch/_dynamo/eval_frame.py") => {
            Some(C::Compiled)
        }
        Language::Python => python(frame),
    };
    class.unwrap_or_default()
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
        let place = if part.ends_with('/') { file.contains(part) } else { file.ends_with(part) };
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
    if file.contains("/torch/nn/modules/") && matches!(name, "__init__" | "reset_parameters") {
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
        _ if file.contains("/torch/") || file.starts_with('<') => None,
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
    if file.contains("/torch/optim/") {
        return !matches!(last(function), "__init__" | "zero_grad" | "add_param_group");
    }
    let step = matches!(last(function), "step" | "update_step" | "init_state" | "_init_group");
    let class = function.rsplit('.').nth(1).unwrap_or_default().to_ascii_lowercase();
    step && (file.contains("/optim/") || file.contains("/optimizers/") || class.contains("optim"))
}

fn last(function: &str) -> &str {
    function.rsplit('.').next().unwrap_or(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(marks: &[StackClass]) -> StackClass {
        of(marks.iter().copied())
    }

    #[test]
    fn the_innermost_frame_that_says_it_decides() {
        assert_eq!(class(&[]), C::Unknown);
        assert_eq!(class(&[C::Unknown]), C::Unknown);
        assert_eq!(class(&[C::Unknown, C::Outside]), C::Outside);
        assert_eq!(class(&[C::Outside, C::Constructor, C::Outside]), C::Constructor);
        assert_eq!(class(&[C::Outside, C::Forward, C::Outside]), C::Forward);
        assert_eq!(class(&[C::Forward, C::Optimizer]), C::Forward, "step(closure)");
        assert_eq!(class(&[C::Cache, C::Forward]), C::Cache);
        assert_eq!(class(&[C::Compiled, C::Outside]), C::Forward, "a compiled function");
        assert_eq!(class(&[C::Compiled, C::Optimizer]), C::Optimizer, "a compiled step");
        assert_eq!(class(&[C::Outside, C::Load, C::Outside]), C::Load);
    }

    #[test]
    fn backward_is_where_its_engine_runs_whatever_is_called_there() {
        assert_eq!(class(&[C::Unknown, C::Backward, C::Backward]), C::Backward);
        assert_eq!(class(&[C::Outside, C::Backward]), C::Backward);
        assert_eq!(class(&[C::Forward, C::Recompute]), C::Recompute);
        assert_eq!(class(&[C::Is(Role::Workspace), C::Backward]), C::Is(Role::Workspace));
        assert_eq!(class(&[C::Accumulate, C::Backward]), C::Accumulate);
        assert_eq!(class(&[C::Is(Role::Communication), C::Accumulate]), C::Is(Role::Communication));
    }

    fn python(file: &str, function: &str) -> StackClass {
        mark(&Frame::of(Language::Python, function, file, ""))
    }

    fn native(library: &str, function: &str) -> StackClass {
        mark(&Frame::of(Language::Native, function, "", library))
    }

    #[test]
    fn python_frames_by_file_and_function() {
        let torch = |file: &str| format!("/v/lib/python3.12/site-packages/torch/{file}");
        let fsdp = torch("distributed/fsdp/_fully_shard/_fsdp_collectives.py");
        let stage = torch("distributed/pipelining/stage.py");
        for (file, function, mark) in [
            (torch("nn/modules/module.py"), "Module._call_impl", C::Forward),
            (torch("nn/modules/module.py"), "_call_impl", C::Forward),
            (torch("nn/modules/module.py"), "Module._apply", C::Load),
            (torch("nn/modules/linear.py"), "Linear.__init__", C::Load),
            (torch("nn/modules/linear.py"), "Linear.forward", C::Unknown),
            (torch("optim/adam.py"), "Adam._init_group", C::OptimizerState),
            (torch("optim/adam.py"), "_multi_tensor_adam", C::Optimizer),
            (torch("optim/sgd.py"), "SGD.step", C::Optimizer),
            (torch("optim/optimizer.py"), "Optimizer.zero_grad", C::Unknown),
            (torch("optim/lr_scheduler.py"), "LRScheduler.step", C::Unknown),
            (torch("autograd/function.py"), "BackwardCFunction.apply", C::Backward),
            (torch("autograd/function.py"), "Function.apply", C::Unknown),
            (torch("_tensor.py"), "Tensor.backward", C::Backward),
            (torch("utils/checkpoint.py"), "_checkpoint_hook.unpack_hook", C::Recompute),
            (fsdp.clone(), "DefaultAllocMixin.allocate", C::Unknown),
            (fsdp.clone(), "foreach_reduce", C::Reduce),
            (fsdp.clone(), "foreach_all_gather", C::Is(Role::Communication)),
            (stage, "PipelineStage._create_act_recv_info", C::Is(Role::Activations)),
            ("/v/transformers/cache_utils.py".into(), "DynamicLayer.update", C::Cache),
            ("/home/me/attention.py".into(), "make_kv_cache", C::Cache),
            ("/home/me/train.py".into(), "Net.__init__", C::Constructor),
            ("/home/me/train.py".into(), "step", C::Outside),
            ("/home/me/train.py".into(), "Trainer.optimizer_step", C::Outside),
            ("/v/apex/optimizers/fused_adam.py".into(), "FusedAdam.step", C::Optimizer),
            ("/v/apex/optimizers/fused_adam.py".into(), "FusedAdam.__init__", C::Constructor),
            ("<string>".into(), "<module>", C::Unknown),
            ("/home/me/ops.py".into(), "Rotate.backward", C::Backward),
            (torch("_dynamo/eval_frame.py"), "_TorchDynamoContext._fn", C::Compiled),
        ] {
            assert_eq!(python(&file, function), mark, "{file} {function}");
        }
    }

    #[test]
    fn native_frames_by_function_and_library() {
        for (library, function, mark) in [
            ("/x/libtorch_cuda.so", "at::cuda::getCUDABlasLtWorkspace", C::Is(Role::Workspace)),
            ("/x/libcublas.so.13", "libcublas.so.13+0x5b45ee", C::Is(Role::Workspace)),
            ("/x/libnccl.so.2", "ncclCommInitRank", C::Is(Role::Communication)),
            ("/x/libtorch_cuda.so", "ncclAlloc", C::Is(Role::Communication)),
            ("/x/libtorch_cpu.so", "torch::autograd::AccumulateGrad::apply", C::Accumulate),
            ("/x/libtorch_cpu.so", "torch::autograd::generated::MmBackward0::apply", C::Backward),
            ("/x/libtorch_cpu.so", "torch::autograd::Engine::thread_main", C::Backward),
            ("/x/libtorch_cpu.so", "at::_ops::mm::call", C::Unknown),
        ] {
            assert_eq!(native(library, function), mark, "{function}");
        }
    }
}
