//! Roles, the purposes of memory: weights, gradients, optimizer state, activations and so on, found
//! without changes of the program. docs/roles.md gives the rules and their reasons.
//!
//! A role follows from the frames of the stack (`frames.rs`, `stack_class.rs`, and for programs without PyTorch
//! `analysis/engines/`), from the phase of a step
//! in which the allocation was made and freed (`life.rs`), and from the lifetimes of other allocations
//! with the same stack and size (`learned.rs`). `rules.rs` has the decision.
//!
//! ```text
//! let symbols = Symbols::of_all(&definitions, trace.header());
//! let finder = RoleFinder::new(&trace, &definitions, &symbols);
//! finder.follow(&trace, &definitions, &mut |allocation| draw(allocation.role, ..));
//! ```

mod at_peaks;
mod by_stack;
mod follow;
mod frames;
mod held;
mod holders;
mod learned;
mod life;
mod now;
mod rules;
mod stack_class;
#[cfg(test)]
mod tests;
mod tree;

pub use super::engines::Role;
pub use at_peaks::RolesAtPeaks;
pub use by_stack::RolesByStack;
pub use follow::{Allocation, FreedAt, RoleFinder, RoleLearner, RoleObserver};
pub(super) use frames::{FrameMark, mark};
pub use held::{HeldByRole, RolesAt};
pub use holders::holders;
pub use now::RolesNow;
pub(super) use stack_class::{Phase as RolePhase, StackClass, StackClasses};
