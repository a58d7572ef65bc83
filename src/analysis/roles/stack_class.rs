//! The class of a stack: what its frames tell about the purpose of its memory.

use rustc_hash::FxHashMap;
use vramtrace_format::{StackFlags, StackId};

use super::Role;
use super::frames::{FrameMark, mark};
use crate::symbols::Symbols;
use crate::trace::Definitions;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::analysis) enum StackClass {
    /// No known frame of Python or of a framework.
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
    Recompute,
    Optimizer,
    OptimizerState,
    /// Of a library or engine, or of graphs: the memory has this role whenever it is freed.
    Is(Role),
}

/// The part of a step that runs while memory of a class is allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::analysis) enum Phase {
    #[default]
    Outside,
    Forward,
    Backward,
    Optimizer,
}

impl StackClass {
    /// The phase of an allocation of this class. `None`: it may happen in any phase.
    pub(in crate::analysis) fn phase(self) -> Option<Phase> {
        match self {
            StackClass::Outside | StackClass::Constructor | StackClass::Load | StackClass::Copy => {
                Some(Phase::Outside)
            }
            StackClass::Forward => Some(Phase::Forward),
            StackClass::Backward | StackClass::Accumulate | StackClass::Recompute => {
                Some(Phase::Backward)
            }
            StackClass::Optimizer | StackClass::OptimizerState => Some(Phase::Optimizer),
            StackClass::Unknown | StackClass::Cache | StackClass::Is(_) => None,
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
        let marks: Vec<FrameMark> = symbols.frames().iter().map(mark).collect();
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
fn of(marks: impl Iterator<Item = FrameMark>) -> StackClass {
    let mut found = StackClass::Unknown;
    let (mut backward, mut recompute, mut compiled) = (false, false, false);
    for mark in marks {
        let class = match mark {
            FrameMark::None => continue,
            FrameMark::Compiled => {
                compiled = true;
                continue;
            }
            FrameMark::Class(class @ (StackClass::Backward | StackClass::Recompute)) => {
                backward |= class == StackClass::Backward;
                recompute |= class == StackClass::Recompute;
                continue;
            }
            FrameMark::Class(class) => class,
        };
        // A vague class is replaced by that of a frame further out, until a frame gives a definite one.
        let vague = |class| {
            matches!(class, StackClass::Unknown | StackClass::Outside | StackClass::Constructor)
        };
        if vague(found)
            && (found == StackClass::Unknown || !vague(class) || class == StackClass::Constructor)
        {
            found = class;
        }
    }
    match found {
        StackClass::Is(_) | StackClass::Accumulate => found,
        _ if recompute => StackClass::Recompute,
        _ if backward => StackClass::Backward,
        // A compiled function instead of a module.
        StackClass::Unknown | StackClass::Outside | StackClass::Constructor if compiled => {
            StackClass::Forward
        }
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::FrameMark::Class as M;
    use super::StackClass as C;
    use super::*;

    fn class(marks: &[FrameMark]) -> StackClass {
        of(marks.iter().copied())
    }

    #[test]
    fn the_innermost_frame_that_says_it_decides() {
        assert_eq!(class(&[]), C::Unknown);
        assert_eq!(class(&[FrameMark::None]), C::Unknown);
        assert_eq!(class(&[FrameMark::None, M(C::Outside)]), C::Outside);
        assert_eq!(class(&[M(C::Outside), M(C::Constructor), M(C::Outside)]), C::Constructor);
        assert_eq!(class(&[M(C::Outside), M(C::Forward), M(C::Outside)]), C::Forward);
        assert_eq!(class(&[M(C::Forward), M(C::Optimizer)]), C::Forward, "step(closure)");
        assert_eq!(class(&[M(C::Cache), M(C::Forward)]), C::Cache);
        assert_eq!(class(&[FrameMark::Compiled, M(C::Outside)]), C::Forward, "a compiled function");
        assert_eq!(class(&[FrameMark::Compiled, M(C::Optimizer)]), C::Optimizer, "a compiled step");
        assert_eq!(class(&[M(C::Outside), M(C::Load), M(C::Outside)]), C::Load);
    }

    #[test]
    fn backward_is_where_its_engine_runs_whatever_is_called_there() {
        assert_eq!(class(&[FrameMark::None, M(C::Backward), M(C::Backward)]), C::Backward);
        assert_eq!(class(&[M(C::Outside), M(C::Backward)]), C::Backward);
        assert_eq!(class(&[M(C::Forward), M(C::Recompute)]), C::Recompute);
        assert_eq!(class(&[M(C::Is(Role::Workspace)), M(C::Backward)]), C::Is(Role::Workspace));
        assert_eq!(class(&[M(C::Accumulate), M(C::Backward)]), C::Accumulate);
        assert_eq!(
            class(&[M(C::Is(Role::Communication)), M(C::Accumulate)]),
            C::Is(Role::Communication)
        );
    }
}
