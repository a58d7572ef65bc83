//! The reader library behind the `vramtrace` command.
//!
//! An event's journey: file -> [`trace`] -> [`replay`] -> [`analysis`] -> [`report`].

pub mod allocator;
pub mod analysis;
pub mod replay;
pub mod report;
pub mod trace;
pub mod units;
