//! A stack in text: the line that stands for it, the one that called it, and its frames.

use super::layout::room;
use crate::analysis::{NamedStack, autograd};
use crate::symbols::Frame;
use crate::units::{clean, shorten};

/// Maximum length of a function's name in characters. Names in C++ and Rust may have thousands.
const FUNCTION_WIDTH: usize = 70;

/// The frame that stands for a holder, with its forward operation in PyTorch's backward pass; or why there is none.
/// `full`: files with their whole path.
pub(super) fn lead(stack: &NamedStack, full: bool) -> String {
    match (stack.lead(), stack.forward_line()) {
        (Some(lead), Some(line)) => clean(&autograd::with_forward(&lead.function, &line)),
        (Some(lead), None) => words(lead, full),
        (None, _) => stack.why_no_frames().unwrap_or_default().to_string(),
    }
}

/// `called from train.py:41 main`.
pub(super) fn called_from(stack: &NamedStack, full: bool) -> Option<String> {
    stack.caller().map(|caller| format!("called from {}", words(caller, full)))
}

/// All frames, and those of the forward operation. Empty unless `full`.
pub(super) fn frames(stack: &NamedStack, full: bool) -> Vec<String> {
    if !full {
        return Vec::new();
    }
    let listed = |frame: &Frame| format!("  {}", listed(frame, full));
    let mut all: Vec<String> = stack.frames().map(listed).collect();
    if let Some(forward) = stack.forward() {
        all.push("forward operation:".to_string());
        all.extend(forward.frames().map(listed));
    }
    all
}

/// `modeling_gpt2.py:1291 < train.py:41`. `None`: the stack has no frames.
pub fn place(stack: &NamedStack) -> Option<String> {
    if stack.forward().is_some() {
        return stack.function().map(|name| clean(&name));
    }
    let lead = short(stack.lead()?);
    Some(match stack.caller() {
        Some(caller) => format!("{lead} < {}", short(caller)),
        None => lead,
    })
}

/// The same, or why there is none.
pub(super) fn place_or_why(stack: &NamedStack) -> String {
    place(stack).unwrap_or_else(|| stack.why_no_frames().unwrap_or_default().to_string())
}

/// `train.py:41`; the name of the function if file or line are unknown.
fn short(frame: &Frame) -> String {
    match frame.place().filter(|_| frame.line.is_some()) {
        Some(place) => clean(&place),
        // Without the library: a node of the autograd graph is always PyTorch's.
        None if autograd::node(&frame.function).is_some() => {
            autograd::display_name(&frame.function).into_owned()
        }
        None => words(frame, false),
    }
}

/// The frame that stands for a holder: `train.py:41 main`; `cublasCreate_v2 in libcublas.so.12` if no source file is
/// known.
pub(super) fn words(frame: &Frame, full: bool) -> String {
    match autograd::holder_name(&frame.function) {
        name if name == autograd::NO_LINE => name.into_owned(),
        _ => listed(frame, full),
    }
}

/// A frame in a list of a stack's frames.
pub(super) fn listed(frame: &Frame, full: bool) -> String {
    // A frame is indented by 10 characters at most.
    let most = FUNCTION_WIDTH.min(room(10));
    let function = shorten(&clean(&autograd::display_name(&frame.function)), most);
    let place = if full { frame.full_place() } else { frame.place() };
    match (place, frame.library_name()) {
        (Some(place), _) => format!("{} {function}", clean(&place)),
        (None, Some(library)) if !frame.function.starts_with(library) => {
            format!("{function} in {}", clean(library))
        }
        (None, _) => function,
    }
}
