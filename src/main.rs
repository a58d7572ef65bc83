//! The `vramtrace` command.

mod cli;
mod launch;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
