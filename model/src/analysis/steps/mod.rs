//! Iterations of a training program, found without changes of it.
//!
//! An iteration is a cycle of forward and backward passes that ends where an optimizer allocates, or else where
//! gradients are freed. `stacks.rs` says what runs while a stack allocates, `passes.rs` makes a list of passes from
//! the events of a trace, and `iterations.rs` joins the passes up to one update of the weights and makes iterations of these
//! groups, or says why they are not known. docs/steps.md has the rules and their reasons.

mod iterations;
#[cfg(test)]
mod pass_tests;
mod passes;
mod stacks;
mod step;
#[cfg(test)]
mod tests;

pub use passes::StepObserver;
pub use step::{Apart, EventPlace, InStep, NoSteps, Step, StepState, Steps, StepsFacts};
