//! Post-mortems as text: what happened, why, and what to do.

mod full;
mod list;
mod short;
mod swallowed;
#[cfg(test)]
mod tests;
mod wording;

pub use full::{OomOptions, text};
pub use list::{none, none_of, others};
pub(in crate::report) use short::cause;
pub(super) use short::where_and_limit;
pub(in crate::report) use short::{fatal, fatal_of};
pub use swallowed::swallowed;
pub(in crate::report) use wording::advice;
