//! The name of a holder, with the forward operation where the holder is a node of PyTorch's backward pass.
//!
//! The recorder keeps the stack of the forward operation for memory that a node allocates on a thread
//! without Python frames. The holder is then `LogSoftmaxBackward0 of loss_utils.py:40 < train.py:23`.

use std::borrow::Cow;
use std::hash::Hash;

use vramtrace_format::StackId;

use super::autograd;
use super::holders::StackClassifier;
use crate::symbols::Frame;

impl<'s> StackClassifier<'s> {
    /// The frames that name the forward operation of a stack: as [`super::holders::FrameRoles::lead`] and
    /// [`super::holders::FrameRoles::caller`].
    fn forward_frames(&self, stack: StackId) -> Option<(&'s Frame, Option<&'s Frame>)> {
        let forward = self.symbols.forward_of(stack)?;
        let roles = self.roles_of_block(forward);
        Some((self.frame(forward, roles.lead)?, self.frame(forward, roles.caller)))
    }

    /// The line of the forward operation and the program's line that called it: `loss_utils.py:40 < train.py:23`.
    /// `None`: the stack is not of a node of the backward pass, or its forward operation is not known.
    pub fn forward_line(&self, stack: StackId) -> Option<String> {
        let (lead, caller) = self.forward_frames(stack)?;
        let place = |frame: &Frame| {
            let place = frame.place().filter(|_| frame.line.is_some());
            place.unwrap_or_else(|| frame.function.to_string())
        };
        Some(match caller {
            Some(caller) => format!("{} < {}", place(lead), place(caller)),
            None => place(lead),
        })
    }

    /// What two stacks have in common whose forward operations are at one line.
    pub(super) fn forward_key(&self, stack: StackId) -> impl Hash + Eq + use<'s> {
        let line = |frame: &'s Frame| (&frame.file, frame.line);
        self.forward_frames(stack).map(|(lead, caller)| (line(lead), caller.map(line)))
    }

    /// The name of the function that stands for a holder with this stack; `lead`: the frame that stands for it.
    pub fn holder_name(&self, stack: StackId, lead: &'s Frame) -> Cow<'s, str> {
        match self.forward_line(stack) {
            Some(line) => Cow::Owned(autograd::with_forward(&lead.function, &line)),
            None => autograd::holder_name(&lead.function),
        }
    }
}

#[cfg(test)]
mod tests;
