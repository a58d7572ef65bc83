//! The JSON form of a stack, the same in all documents.

use serde::Serialize;
use vramtrace_format::StackId;

use crate::analysis::{StackClassifier, autograd};
use crate::symbols::{Frame, Language, Symbols};

/// Flattened into the facts of a stack.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StackFacts {
    /// Innermost first.
    pub frames: Vec<FrameFacts>,
    /// Indices in `frames`: the innermost frame outside of frameworks, and the next outer frame of the
    /// program's own source tree in another function.
    pub lead: Option<usize>,
    pub caller: Option<usize>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FrameFacts {
    pub language: Language,
    pub function: String,
    pub file: String,
    pub line: Option<u32>,
    pub library: Option<String>,
}

pub(super) fn frame_facts(frame: &Frame) -> FrameFacts {
    FrameFacts {
        language: frame.language,
        function: frame.function.to_string(),
        file: frame.file.to_string(),
        line: frame.line,
        library: frame.library.as_deref().map(str::to_string),
    }
}

/// `lead`, `caller`: indices of frames, innermost first.
pub(super) fn stack_facts(
    symbols: &Symbols,
    stack: StackId,
    lead: Option<usize>,
    caller: Option<usize>,
) -> StackFacts {
    StackFacts { frames: symbols.stack(stack).map(frame_facts).collect(), lead, caller }
}

/// The name of the autograd node, with the line of its forward operation where that is known, if the lead frame is one: such a frame has no line of the program.
/// `lead`: as in [`stack_facts`].
pub(super) fn autograd_name(
    classifier: &StackClassifier,
    stack: StackId,
    lead: Option<usize>,
) -> Option<String> {
    let lead = classifier.frame(stack, lead)?;
    if classifier.forward_line(stack).is_none() {
        autograd::node(&lead.function)?;
    }
    Some(classifier.holder_name(stack, lead).into_owned())
}

/// Why a stack has no frames. `None`: it has some.
pub(super) fn why_no_frames(symbols: &Symbols, stack: StackId) -> Option<&'static str> {
    symbols.indexes(stack).is_empty().then(|| symbols.why_empty(stack))
}
