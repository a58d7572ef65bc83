//! The reader library behind the `vramtrace` command.
