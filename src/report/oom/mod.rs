//! Post-mortems, for people and for programs: what happened, why, and what to do.

mod facts;
mod list;
mod said;
mod short;
#[cfg(test)]
mod tests;
mod text;

pub use facts::{Report, SCHEMA, facts, process};
pub use list::{Listed, Quiet, none, others};
pub(super) use short::fatal;
pub use text::{Shown, text};
