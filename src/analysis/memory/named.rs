//! A stack with the frames that stand for its holder: the same in text and JSON of all reports.
//!
//! The recorder keeps the stack of the forward operation for memory that a node of PyTorch's backward pass allocates on a
//! thread without Python frames. The holder is then `LogSoftmaxBackward0 of loss_utils.py:40 < train.py:23`.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use vramtrace_format::StackId;

use super::autograd;
use super::holders::{FrameRoles, StackClassifier};
use crate::symbols::{FREE_CACHE, Frame, Symbols};

#[derive(Clone, Debug, Default)]
pub struct NamedStack {
    symbols: Symbols,
    pub id: StackId,
    /// Indexes of frames, innermost first.
    lead: Option<usize>,
    caller: Option<usize>,
    /// Of a node of the backward pass.
    forward: Option<Box<NamedStack>>,
}

/// A stack in a document.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct StackFacts<'s> {
    /// Innermost first.
    frames: Vec<&'s Frame>,
    /// Indices in `frames`: the innermost frame outside of frameworks, and the next outer frame of the
    /// program's own source tree in another function.
    lead: Option<usize>,
    caller: Option<usize>,
    /// The name where no line of the program is known: a node of the autograd graph, or PyTorch's free
    /// cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'s, str>>,
    /// Why there are no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_frames: Option<&'static str>,
}

impl Serialize for NamedStack {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let frames = self.frames().collect();
        let (lead, caller, name) = (self.lead, self.caller, self.name());
        StackFacts { frames, lead, caller, name, no_frames: self.why_no_frames() }.serialize(to)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for NamedStack {
    fn schema_name() -> Cow<'static, str> {
        "Stack".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        StackFacts::json_schema(generator)
    }
}

impl PartialEq for NamedStack {
    fn eq(&self, other: &NamedStack) -> bool {
        self.id == other.id && self.frames().eq(other.frames())
    }
}

impl NamedStack {
    /// Stands for a stack until its names are known.
    pub fn without_names(id: StackId) -> NamedStack {
        NamedStack { id, ..NamedStack::default() }
    }

    /// Innermost first.
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = &Frame> + Clone {
        self.symbols.stack(self.id)
    }

    fn frame(&self, at: Option<usize>) -> Option<&Frame> {
        let index = *self.symbols.indexes(self.id).get(at?)?;
        self.symbols.frames().get(index as usize)
    }

    /// The innermost frame outside of frameworks, which stands for the holder.
    pub fn lead(&self) -> Option<&Frame> {
        self.frame(self.lead)
    }

    /// The innermost frame of the program's own tree outside of the lead.
    pub fn caller(&self) -> Option<&Frame> {
        self.frame(self.caller)
    }

    /// `None`: there are some.
    pub fn why_no_frames(&self) -> Option<&'static str> {
        self.frames().next().is_none().then(|| self.symbols.why_empty(self.id))
    }

    pub fn is_free_cache(&self) -> bool {
        self.id == FREE_CACHE
    }

    /// The forward operation, if it has a lead.
    pub fn forward(&self) -> Option<&NamedStack> {
        self.forward.as_deref()
    }

    /// The line of the forward operation and the program's line that called it: `loss_utils.py:40 < train.py:23`.
    /// `None`: the stack is not of a node of the backward pass, or its forward operation is not known.
    pub fn forward_line(&self) -> Option<String> {
        let forward = self.forward()?;
        let place = |frame: &Frame| {
            let place = frame.place().filter(|_| frame.line.is_some());
            place.unwrap_or_else(|| frame.function.to_string())
        };
        let lead = forward.lead().map(place)?;
        Some(match forward.caller() {
            Some(caller) => format!("{lead} < {}", place(caller)),
            None => lead,
        })
    }

    /// The name of the function that stands for the holder. `None`: there is no lead.
    pub fn function(&self) -> Option<Cow<'_, str>> {
        let lead = self.lead()?;
        Some(match self.forward_line() {
            Some(line) => Cow::Owned(autograd::with_forward(&lead.function, &line)),
            None => autograd::holder_name(&lead.function),
        })
    }

    fn name(&self) -> Option<Cow<'_, str>> {
        let lead = self.lead()?;
        let node = || self.forward.is_some() || autograd::node(&lead.function).is_some();
        (self.is_free_cache() || node()).then(|| self.function())?
    }
}

impl StackClassifier<'_> {
    /// The stack with its names, for memory at any level.
    pub fn named(&self, stack: StackId) -> NamedStack {
        self.named_by(stack, &self.roles(stack))
    }

    pub(super) fn named_by(&self, id: StackId, roles: &FrameRoles) -> NamedStack {
        let named = |id: StackId, roles: &FrameRoles| {
            let (lead, caller) = (roles.lead, roles.caller);
            NamedStack { symbols: self.symbols.clone(), id, lead, caller, forward: None }
        };
        let forward = self.symbols.forward_of(id).map(|id| named(id, &self.roles(id)));
        let forward = forward.filter(|forward| forward.lead().is_some()).map(Box::new);
        NamedStack { forward, ..named(id, roles) }
    }
}

#[cfg(test)]
mod tests;
