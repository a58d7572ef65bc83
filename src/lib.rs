//! The reader library behind the `vramtrace` command.

pub mod allocator;
pub mod units;
