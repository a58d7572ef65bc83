//! Two runs, or two moments of one: what grew, by role, by library and by line.
//!
//! A run is compared by its [`Usage`]: what its devices held at one moment, by lines that are named by
//! file, function and number. Names outlive a run, so that a usage is a baseline for runs to come.
//! What is compared is memory in use: the rest of a framework's segments is shown beside it.

mod compare;
mod usage;

pub use compare::{Change, Difference, LineChange, compare};
pub use usage::{LineName, LineUse, PlaceUse, Usage};
