//! Roles, the purposes of memory: weights, gradients, optimizer state, activations and so on, found
//! without changes of the program. docs/roles.md gives the rules and their reasons.
//!
//! A role follows from the frames of the stack (`class.rs`, and for programs without PyTorch `analysis/engines/`), from the
//! phase of a step in which the allocation was made and freed, and from the lifetimes of other allocations
//! with the same stack and size (`life.rs`). `rules.rs` has the decision.
//!
//! ```text
//! let symbols = Symbols::of_all(&definitions, trace.header());
//! let finder = RoleFinder::new(&trace, &definitions, &symbols);
//! finder.follow(&trace, &definitions, &mut |allocation| draw(allocation.role, ..));
//! ```

mod class;
mod follow;
mod held;
mod life;
mod rules;
#[cfg(test)]
mod tests;

pub use super::engines::Role;
pub(super) use class::{StackClass, StackClasses, StepPart as RolePhase, mark};
pub use follow::{Allocation, FreedAt, RoleFinder, RoleLearner, RoleObserver};
pub use held::{HeldByRole, LiveRoles, RolesAt};
