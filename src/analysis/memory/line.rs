//! The line of code of a stack, as facts.

use serde::Serialize;
use vramtrace_format::StackId;

use super::holders::{FrameRoles, StackClassifier};
use crate::symbols::Frame;

/// As in `holders`; empty where the names of stacks were not looked up.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CodeLine {
    pub lead: Option<Frame>,
    pub caller: Option<Frame>,
    /// Why there are no frames, for a stack without.
    #[serde(skip)]
    pub why_empty: &'static str,
}

impl CodeLine {
    pub fn of(classifier: &StackClassifier, stack: StackId, roles: &FrameRoles) -> CodeLine {
        let frame = |at| classifier.frame(stack, at).cloned();
        let why_empty = classifier.symbols.why_empty(stack);
        CodeLine { lead: frame(roles.lead), caller: frame(roles.caller), why_empty }
    }
}
