//! What a trace says: bytes of a trace come in, facts about a run come out. It opens no file and knows no terminal.
//!
//! An event's journey: [`trace`] -> [`replay`] -> [`analysis`]. Stacks get their names in [`symbols`], from files that
//! the caller opens ([`trace::HostFiles`]).

#![warn(unreachable_pub)]

pub mod allocator;
pub mod analysis;
pub mod facts;
pub mod replay;
pub mod spans;
pub mod symbols;
pub mod trace;
pub mod units;

#[cfg(test)]
use testkit::trace_builder as testing;
