//! The nodes of PyTorch's autograd graph, by the C++ functions that run them.
//!
//! Backward runs on threads of PyTorch without Python frames. The node of the graph, such as
//! `ConvolutionBackward0` or `AccumulateGrad`, then names the operation that requested the memory.

use std::borrow::Cow;

const NAMESPACE: &str = "torch::autograd::";
/// Classes of the engine that runs all nodes: they name no operation.
const ENGINE: [&str; 8] =
    ["Engine", "Node", "NodeTask", "GraphTask", "InputBuffer", "ReadyQueue", "python", "impl"];

/// The node's class of a demangled function, without parameters: `MulBackward0` of
/// `torch::autograd::generated::MulBackward0::apply`. `None`: the function belongs to no node.
pub fn node(function: &str) -> Option<&str> {
    let rest = function.strip_prefix(NAMESPACE)?;
    let rest = rest.strip_prefix("generated::").unwrap_or(rest);
    // A node that a user wrote in C++: the user's class is the template's parameter.
    if let Some(written) = rest.strip_prefix("CppNode<") {
        let class = written.split_once(">::")?.0;
        return Some(class.rsplit("::").next().unwrap_or(class));
    }
    if let Some((class, _)) = rest.split_once("_apply_functional") {
        return is_class(class).then_some(class);
    }
    let (class, method) = rest.split_once("::")?;
    let runs = ["apply", "operator()", "release_variables", "apply_with_saved", "apply_impl"];
    let runs = runs.iter().any(|name| method.starts_with(name)) && !ENGINE.contains(&class);
    (runs && is_class(class)).then_some(class)
}

fn is_class(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The name of a function in reports: `MulBackward0 (backward)` for a node's, else the function.
pub fn display_name(function: &str) -> Cow<'_, str> {
    match node(function) {
        Some(class) => Cow::Owned(format!("{class} (backward)")),
        None => Cow::Borrowed(function),
    }
}

/// What stands for a holder whose stack has only the engine's own functions above the allocator.
pub const NO_LINE: &str = "autograd thread, no line";

/// The name of a holder whose forward operation is at a known line: `MulBackward0 of model.py:7`.
pub fn with_forward(function: &str, line: &str) -> String {
    let name = match node(function) {
        Some(class) => class,
        None if is_of_engine(function) => ENGINE_NAME,
        None => function,
    };
    format!("{name} of {line}")
}

/// Stands for the engine's own functions, which add up gradients.
const ENGINE_NAME: &str = "autograd thread";

fn is_of_engine(function: &str) -> bool {
    function
        .strip_prefix(NAMESPACE)
        .is_some_and(|rest| ENGINE.iter().any(|class| rest.starts_with(&format!("{class}::"))))
}

/// The name of the function that stands for a holder: as [`display_name`], or [`NO_LINE`].
pub fn holder_name(function: &str) -> Cow<'_, str> {
    if is_of_engine(function) { Cow::Borrowed(NO_LINE) } else { display_name(function) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_of_the_engine_alone_names_no_line() {
        for function in
            ["torch::autograd::Engine::thread_main", "torch::autograd::Node::operator()"]
        {
            assert_eq!(holder_name(function), NO_LINE);
        }
        assert_eq!(holder_name("torch::autograd::accumulate"), "torch::autograd::accumulate");
        let node = "torch::autograd::generated::MulBackward0::apply";
        assert_eq!(holder_name(node), "MulBackward0 (backward)");
    }
    use crate::symbols::native::demangle;

    #[test]
    fn nodes_of_symbols_as_libraries_have_them() {
        for (symbol, class) in [
            (
                "_ZN5torch8autograd9generated20ConvolutionBackward05applyEOSt6vectorIN2at6TensorESaIS5_EE",
                "ConvolutionBackward0",
            ),
            (
                "_ZN5torch8autograd14AccumulateGrad5applyEOSt6vectorIN2at6TensorESaIS4_EE",
                "AccumulateGrad",
            ),
            ("_ZN5torch8autograd10CopySlices5applyEOSt6vectorIN2at6TensorESaIS4_EE", "CopySlices"),
            ("_ZN5torch8autograd9generated12MulBackward017release_variablesEv", "MulBackward0"),
            (
                "_ZN5torch8autograd9generated60ScaledDotProductEfficientAttentionBackward0_apply_functionalEOSt6vectorIN2at6TensorESaIS4_EE",
                "ScaledDotProductEfficientAttentionBackward0",
            ),
            (
                "_ZN5torch8autograd7CppNodeIN4mine10RoiAlignFnEE5applyEOSt6vectorIN2at6TensorESaIS7_EE",
                "RoiAlignFn",
            ),
        ] {
            let function = demangle(symbol);
            assert_eq!(node(&function), Some(class), "{function}");
        }
        assert_eq!(
            display_name("torch::autograd::generated::NativeLayerNormBackward0::apply"),
            "NativeLayerNormBackward0 (backward)"
        );
    }

    #[test]
    fn functions_of_the_engine_have_no_node() {
        for symbol in [
            "_ZN5torch8autograd4NodeclEOSt6vectorIN2at6TensorESaIS4_EE",
            "_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9GraphTaskEE",
            "_ZN5torch8autograd6python12PythonEngine11thread_initEiRKSt10shared_ptrINS0_10ReadyQueueEEb",
            "_ZN5torch8autograd12VariableType12_GLOBAL__N_13addEv",
            "_ZN2at6native5emptyEv",
            "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
        ] {
            let function = demangle(symbol);
            assert_eq!(node(&function), None, "{function}");
            assert_eq!(display_name(&function), function);
        }
        for name in ["", "torch::autograd::", "torch::autograd::CppNode<", "apply"] {
            assert_eq!(node(name), None, "{name}");
        }
    }
}
