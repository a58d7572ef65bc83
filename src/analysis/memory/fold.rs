//! Frames that only pass a call on: of frameworks, of their wrappers, of the interpreter. Reports hide
//! them unless all frames are asked for.

use super::places::{Layer, is_dispatch};
use crate::analysis::{autograd, engines};
use crate::symbols::{Frame, Language};

/// Names of functions in packages that wrap other functions.
const WRAPPERS: [&str; 11] = [
    "wrapper",
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

/// Whether a report hides this frame. `python`: the frame's stack has Python frames.
pub(in crate::analysis) fn folds(frame: &Frame, layer: Layer, python: bool) -> bool {
    match frame.language {
        Language::Native => match layer {
            Layer::Plumbing => true,
            // In a stack without Python, only the backward node names the operation; of an engine, its functions.
            Layer::Framework => {
                let node = !python && autograd::node(&frame.function).is_some();
                !node && !engines::names_holder(frame)
            }
            Layer::Package | Layer::Own => false,
        },
        Language::Python => {
            let name = frame.function.rsplit('.').next().unwrap_or_default();
            let wraps = layer < Layer::Own && WRAPPERS.contains(&name);
            layer == Layer::Plumbing || is_dispatch(frame) || wraps
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_pass_a_call_on_are_hidden_and_requesters_are_not() {
        let frame = |language, function: &str, file: &str| Frame::of(language, function, file, "");
        let python = |function, file| frame(Language::Python, function, file);
        let module = python("Module._call_impl", "/v/site-packages/torch/nn/modules/module.py");
        assert!(folds(&module, Layer::Framework, true));
        let linear = python("Linear.forward", "/v/site-packages/torch/nn/modules/linear.py");
        assert!(!folds(&linear, Layer::Framework, true));
        let wrapper = python("can_return_tuple.<locals>.wrapper", "/v/transformers/generic.py");
        assert!(folds(&wrapper, Layer::Package, true));
        assert!(!folds(&python("wrapper", "/me/train.py"), Layer::Own, true));
        assert!(folds(
            &python("_find_and_load", "<frozen importlib._bootstrap>"),
            Layer::Plumbing,
            true
        ));
        let node = "torch::autograd::generated::MmBackward0::apply";
        assert!(!folds(&frame(Language::Native, node, ""), Layer::Framework, false));
        let engine = "torch::autograd::Engine::thread_main";
        assert!(folds(&frame(Language::Native, engine, ""), Layer::Framework, false));
        assert!(!folds(&frame(Language::Native, "main", "a.c"), Layer::Own, false));
    }
}
