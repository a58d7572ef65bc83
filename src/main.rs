//! The `vramtrace` command.

mod cli;
mod doctor;
mod driver;
mod launch;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
