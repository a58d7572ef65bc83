//! The reader library behind the `vramtrace` command.
//!
//! An event's journey: file -> [`trace`] -> [`replay`] -> [`analysis`] -> [`report`] or [`export`].
//! What a trace says is in [`vramtrace_model`]. What others recorded comes in through [`import`].

#![warn(unreachable_pub)]

pub mod export;
pub mod files;
pub mod import;
pub mod pprof;
pub mod report;
pub mod trace;

pub use vramtrace_model::{allocator, analysis, facts, replay, spans, symbols, units};

#[cfg(test)]
use testkit::trace_builder as testing;
