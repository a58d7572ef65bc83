//! The requesters of memory as text: for each stack of a trace, its line, function, caller and library.

use std::rc::Rc;

use rustc_hash::FxHashMap;
use vramtrace_format::{Kind, StackId};

use super::stacks::frame_name;
use crate::analysis::{Level, StackClassifier};
use crate::symbols::{Frame, Symbols};
use crate::trace::{Definitions, Trace};

/// The frames of a stack that exports show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Requester {
    /// The function of the innermost frame outside of frameworks.
    pub function: String,
    /// `modeling.py:212`; empty: not known.
    pub line: String,
    /// The innermost frame of the program's own tree, if it is another; else empty.
    pub called_from: String,
    /// The library that requested the memory, such as `cuBLAS`. Empty: not known.
    pub library: String,
    /// All frames, outermost first, separated by semicolons.
    pub stack: String,
}

/// The requester of each stack. The flag: of a block.
pub(super) type ByStack = FxHashMap<(StackId, bool), Rc<Requester>>;

/// The requesters of all stacks of a trace.
pub(super) fn who_of(definitions: &Definitions, trace: &Trace, symbols: &Symbols) -> ByStack {
    let stacks = definitions.stacks();
    if stacks.is_empty() {
        return FxHashMap::default();
    }
    let classifier = StackClassifier::new(symbols, trace.header());
    let frames = |stack| {
        let names = symbols.stack(stack).rev().map(|frame| frame_name(frame).replace(';', ":"));
        names.collect::<Vec<_>>().join(";")
    };
    let who = |stack, block| {
        let named = classifier.named(stack);
        let words =
            |frame: &Frame| format!("{} {}", frame.place().unwrap_or_default(), frame.function);
        let caller = named.caller().map(words);
        let level = if block { Level::Tensor } else { Level::Driver };
        Some(Rc::new(Requester {
            function: named.function()?.into_owned(),
            line: named.lead()?.place().unwrap_or_default(),
            called_from: caller.unwrap_or_default().trim_start().to_string(),
            library: classifier.library_at(stack, level).unwrap_or_default(),
            stack: frames(stack),
        }))
    };
    // Blocks are separate: the library of the same stack may be another one.
    let blocks = definitions.sites().any(|site| site.kind == Some(Kind::Block));
    let levels: &[bool] = if blocks { &[false, true] } else { &[false] };
    let all = stacks.ids().flat_map(|stack| levels.iter().map(move |block| (stack, *block)));
    all.filter_map(|of| Some((of, who(of.0, of.1)?))).collect()
}

impl Requester {
    /// Its line, or its function where no line is known.
    pub(super) fn name(&self) -> &str {
        if self.line.is_empty() { &self.function } else { &self.line }
    }

    /// Names and values of the fields that are known.
    pub(super) fn words(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [
            ("function", self.function.as_str()),
            ("line", &self.line),
            ("called_from", &self.called_from),
            ("library", &self.library),
        ];
        all.into_iter().filter(|(_, words)| !words.is_empty())
    }
}
