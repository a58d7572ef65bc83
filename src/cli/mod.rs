//! The command line: one file a command. Exit status: 0 done, 1 the finding asked for was there,
//! 2 bad input.

mod cap;
mod caveats;
mod demo;
mod demo_recorded;
mod demo_workload;
mod doctor;
mod export;
mod flame;
mod frag;
mod gate;
mod holders;
mod import;
mod leaks;
mod level;
mod moment;
mod oom;
mod output;
mod pack;
mod ps;
mod report;
mod run;
mod run_summary;
mod select;
mod verify;
mod whatif;

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::console;
use crate::error::Outcome;

#[derive(Parser)]
#[command(
    name = "vramtrace",
    version,
    about = "A flight recorder and circuit breaker for GPU memory",
    after_help = "Example:\n  vramtrace run --cap 8GiB -- python train.py\n  vramtrace report",
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a command and record its GPU memory
    Run(Box<run::Args>),
    /// See it work: a small program with a leak and a cap, recorded and shown
    Demo(demo::Args),
    /// Write the timeline for Perfetto, chrome://tracing or a spreadsheet, or stacks for profilers
    Export(export::Args),
    /// Draw a flame graph of who holds the memory
    Flame(flame::Args),
    /// Show the fragmentation of PyTorch's cache: what is free, what is of use, who keeps it
    Frag(frag::Args),
    /// Say what is there to record with, and what would go past us
    Doctor(doctor::Args),
    /// The program of the demo
    #[command(name = demo::WORKLOAD, hide = true)]
    DemoWorkload,
    /// Show what happened: peak, live memory, refusals, per process and device
    Report(report::Args),
    /// Show who holds the memory: by line, function, library or whole stack
    Holders(holders::Args),
    /// Make a trace of a PyTorch memory snapshot, a CSV of requests or an RMM log
    Import(import::Args),
    /// Show who holds more and more: leaks, with their rate and what speaks for them
    Leaks(leaks::Args),
    /// Explain why a run was out of memory: what asked, which limit, who held it, what to try
    Oom(oom::Args),
    /// Copy a trace with the names of its functions in it, for another machine
    Pack(pack::Args),
    /// List your running processes that are recorded or capped
    Ps(ps::Args),
    /// Change what a running process or group may take
    Cap(cap::Args),
    /// Check that a trace agrees with itself: frees, sums, addresses, checkpoints
    Verify(verify::Args),
    /// Say what other PyTorch allocator settings would have reserved for a recorded run
    Whatif(whatif::Args),
}

pub fn main() -> ExitCode {
    match dispatch(Cli::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            console::message(&failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Runs a command of ours as if it had been typed.
fn execute(arguments: &[&OsStr]) -> Outcome {
    let program = std::iter::once(OsStr::new("vramtrace"));
    dispatch(Cli::try_parse_from(program.chain(arguments.iter().copied()))?)
}

fn dispatch(cli: Cli) -> Outcome {
    // `vramtrace report | head` ends quietly. `run` goes on: it has a command to wait for.
    if !matches!(cli.command, Command::Run(_) | Command::DemoWorkload) {
        // SAFETY: plain call; nothing of ours handles this signal.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    match cli.command {
        Command::Run(args) => run::run(*args),
        Command::Demo(args) => demo::run(args, &execute),
        Command::Doctor(args) => doctor::run(args),
        Command::Export(args) => export::run(args),
        Command::DemoWorkload => demo_workload::run(),
        Command::Report(args) => report::run(args),
        Command::Flame(args) => flame::run(args),
        Command::Frag(args) => frag::run(args),
        Command::Holders(args) => holders::run(args),
        Command::Import(args) => import::run(args),
        Command::Leaks(args) => leaks::run(args),
        Command::Oom(args) => oom::run(args),
        Command::Pack(args) => pack::run(args),
        Command::Ps(args) => ps::run(args),
        Command::Cap(args) => cap::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Whatif(args) => whatif::run(args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_every_command_shows_an_example() {
        let mut cli = super::Cli::command();
        cli.clone().debug_assert();
        for command in cli.get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            assert!(
                help.contains("Example") || command.is_hide_set(),
                "{} --help shows no example",
                command.get_name()
            );
        }
    }
}
