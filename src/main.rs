//! The `vramtrace` command.

mod cli;
mod console;
mod doctor;
mod driver;
mod error;
mod launch;
mod live_processes;
#[cfg(feature = "metrics")]
mod metrics;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
