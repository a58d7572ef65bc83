//! What memory is for: weights, gradients, optimizer state, activations and so on, without a line
//! of the program's code. docs/roles.md gives the rules and their reasons.
//!
//! Three things decide: what the frames of the stack are (`frames.rs`, `stack_class.rs`), in which
//! phase of a step the allocation was made and freed (`life.rs`), and what became of others of the
//! same stack and size (`learned.rs`). `rules.rs` puts them together.
//!
//! ```text
//! let symbols = Symbols::of_all(&definitions, trace.header());
//! let finder = RoleFinder::new(&trace, &definitions, &symbols);
//! finder.follow(&trace, &definitions, &mut |allocation| draw(allocation.role, ..));
//! let by_role = finder.at_moment(&trace, &definitions, &end, Moment::Peak, level);
//! ```

mod follow;
mod frames;
mod held;
mod holders;
mod learned;
mod life;
mod role;
mod rules;
mod stack_class;
#[cfg(test)]
mod tests;

pub use follow::{Allocation, FreedAt, RoleFinder, RoleObserver};
pub use held::HeldByRole;
pub use holders::{RoleHolder, holders};
pub use role::Role;
