//! Iterations of a training program, found without changes of it.
//!
//! An iteration is a cycle of forward and backward passes that ends where an optimizer allocates, or else where
//! gradients are freed. `stacks.rs` says what runs while a stack allocates, `observer.rs` makes a list of passes from
//! the events of a trace, `groups.rs` joins the passes up to one update of the weights, and `cycles.rs` makes
//! iterations of these groups, or says why they cannot be told apart; `figures.rs` sums them up. docs/steps.md has the rules and their reasons.

mod cycles;
mod figures;
mod groups;
mod growth;
mod observer;
mod pass;
#[cfg(test)]
mod pass_tests;
mod stacks;
mod step;
#[cfg(test)]
mod tests;

pub use growth::{StepGrowth, growth};
pub use observer::StepObserver;
pub use step::{Apart, InStep, NoSteps, Place, Step, StepState, Steps};
