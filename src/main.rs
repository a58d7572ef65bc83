//! The `vramtrace` command.

mod cli;
mod doctor;
mod driver;
mod launch;
mod living;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
