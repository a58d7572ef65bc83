//! The reader library behind the `vramtrace` command.
//!
//! An event's journey: file -> [`trace`] -> [`replay`] -> [`analysis`] -> [`report`] or [`export`].
//! Stacks get their names in [`symbols`]. What others recorded comes in through [`import`].

#![warn(unreachable_pub)]

pub mod allocator;
pub mod analysis;
pub mod export;
pub mod facts;
pub mod files;
pub mod import;
pub mod replay;
pub mod report;
pub mod spans;
pub mod symbols;
pub mod trace;
pub mod units;

#[cfg(test)]
use testkit::trace_builder as testing;
