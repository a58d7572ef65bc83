//! Post-mortems as text: what happened, why, and what to do. `report` prints the summary in short, `oom` all of it and
//! tables.

mod full;
mod list;
mod summary;
mod wording;

pub use full::{OomOptions, text};
pub use list::{none, none_of, others, swallowed};
pub(in crate::report) use summary::{TITLE, fatal, fatal_of, title};
pub(in crate::report::text) use summary::{labelled, next};
pub(in crate::report) use wording::{advice, limit, step, why};
