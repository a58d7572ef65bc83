//! The reader library behind the `vramtrace` command.

pub mod units;
