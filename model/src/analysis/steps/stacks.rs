//! What runs while a stack allocates: forward, backward, an optimizer, and which call of an optimizer.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};
use vramtrace_format::StackId;

use crate::analysis::roles::{Role, RolePhase, StackClass, StackClasses, mark};
use crate::symbols::{Frame, Language, Symbols};
use crate::trace::Definitions;

/// The place in the program that calls an optimizer: a hash of the frames there.
pub(super) type Caller = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// `in_optimizer`: an optimizer calls it, to get the loss.
    Forward {
        in_optimizer: bool,
    },
    Backward,
    Optimizer(Caller),
    /// A gradient scaler prepares or decides a step of the optimizer.
    Scaler,
    /// Other lines of the program.
    Outside,
    /// Between ranks: in a backward pass, it may get gradients.
    Communication,
    /// It says nothing.
    None,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Signs {
    by: FxHashMap<StackId, Sign>,
    /// CUDA graphs were captured.
    pub graphs: bool,
    /// An optimizer was used that calls the loss several times in a step.
    pub search: bool,
}

impl Signs {
    /// `symbols` must name all stacks.
    pub(super) fn new(definitions: &Definitions, symbols: &Symbols) -> Signs {
        let classes = StackClasses::new(definitions, symbols);
        let kinds: Vec<FrameKind> = symbols.frames().iter().map(FrameKind::of).collect();
        let mut signs = Signs::default();
        for stack in definitions.stacks().ids() {
            let frames = symbols.indexes(stack).iter().map(|index| &kinds[*index as usize]);
            let sign = sign(classes.get(stack), frames.clone());
            signs.graphs |=
                frames.clone().any(|frame| frame.mark == StackClass::Is(Role::GraphMemory));
            signs.search |= frames.clone().any(|frame| frame.searches);
            signs.by.insert(stack, sign);
        }
        signs
    }

    pub(super) fn get(&self, stack: StackId) -> Sign {
        self.by.get(&stack).copied().unwrap_or(Sign::None)
    }
}

/// What one frame says.
#[derive(Clone, Debug)]
struct FrameKind {
    mark: StackClass,
    /// One of several parts of a step of an optimizer.
    part: Option<usize>,
    /// A step of a gradient scaler.
    scaler: bool,
    /// It averages weights, in the folder of the optimizers.
    averages: bool,
    searches: bool,
    /// It computes the loss for an optimizer that calls it.
    closure: bool,
    /// A hash of file, function and line.
    hash: u64,
}

impl FrameKind {
    fn of(frame: &Frame) -> FrameKind {
        let python = frame.language == Language::Python;
        let file = &*frame.file;
        let name = frame.function.rsplit('.').next().unwrap_or_default();
        let part = PARTS_OF_STEPS.iter().position(|part| python && *part == name);
        let mut hasher = FxHasher::default();
        (file, &*frame.function, frame.line).hash(&mut hasher);
        FrameKind {
            mark: if part.is_some() { StackClass::Optimizer } else { mark(frame) },
            part,
            closure: python && is_closure(&frame.function),
            scaler: python && is_scaler(file) && STEPS_OF_SCALERS.contains(&name),
            averages: python && file.ends_with("/torch/optim/swa_utils.py"),
            searches: python && file.ends_with("/lbfgs.py"),
            hash: hasher.finish(),
        }
    }

    fn is_optimizer(&self) -> bool {
        matches!(self.mark, StackClass::Optimizer | StackClass::OptimizerState)
    }
}

/// Optimizers that need two backward passes (SAM) have these functions.
const PARTS_OF_STEPS: [&str; 2] = ["first_step", "second_step"];

/// A function within a function, as Python before 3.11 does not name it, or one with that name.
fn is_closure(function: &str) -> bool {
    function.contains("<locals>") || function.to_ascii_lowercase().contains("closure")
}

/// `scale`, the other function, runs once for each backward pass.
const STEPS_OF_SCALERS: [&str; 6] =
    ["unscale_", "_unscale_grads_", "step", "_maybe_opt_step", "update", "update_scale"];

/// PyTorch's own file and those of libraries that keep its name.
fn is_scaler(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or_default();
    name.contains("grad_scaler") || name.contains("loss_scaler")
}

/// `frames`: innermost first.
fn sign<'f>(class: StackClass, frames: impl Iterator<Item = &'f FrameKind> + Clone) -> Sign {
    match class.phase() {
        Some(RolePhase::Forward) => {
            Sign::Forward { in_optimizer: frames.clone().any(FrameKind::is_optimizer) }
        }
        Some(RolePhase::Backward) => Sign::Backward,
        Some(RolePhase::Optimizer) if frames.clone().any(|frame| frame.averages) => Sign::None,
        Some(RolePhase::Optimizer) if is_called(frames.clone()) => Sign::Outside,
        Some(RolePhase::Optimizer) => Sign::Optimizer(caller(frames)),
        Some(RolePhase::Outside)
            if frames.clone().any(FrameKind::is_optimizer) && !is_called(frames.clone()) =>
        {
            Sign::Optimizer(caller(frames))
        }
        Some(RolePhase::Outside) if frames.clone().any(|frame| frame.scaler) => Sign::Scaler,
        Some(RolePhase::Outside) => Sign::Outside,
        None if class == StackClass::Is(Role::Communication) => Sign::Communication,
        None => Sign::None,
    }
}

/// Whether an optimizer calls the program here, to get the loss.
fn is_called<'f>(frames: impl Iterator<Item = &'f FrameKind>) -> bool {
    let mut inner = frames.take_while(|frame| !frame.is_optimizer());
    inner.any(|frame| frame.closure && frame.mark == StackClass::Outside)
}

/// The frames of the program that call the outermost function of the optimizer.
fn caller<'f>(frames: impl Iterator<Item = &'f FrameKind> + Clone) -> Caller {
    let inner = frames.clone().enumerate().filter(|(_, frame)| frame.is_optimizer()).last();
    let inner = inner.map_or(0, |(at, _)| at + 1);
    let mut hasher = FxHasher::default();
    for part in frames.clone().take(inner).filter_map(|frame| frame.part) {
        part.hash(&mut hasher);
    }
    for frame in frames.skip(inner).filter(|frame| frame.mark != StackClass::Unknown) {
        frame.hash.hash(&mut hasher);
    }
    hasher.finish()
}
