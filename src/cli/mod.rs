//! The command line: one file a command. What every command shares is here: how a failure is
//! said, and what the exit status means (0 done, 1 the finding asked for was there, 2 bad input).

mod cap;
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
mod inputs;
mod leaks;
mod level;
mod moment;
mod oom;
mod pack;
mod ps;
mod report;
mod run;
mod whatif;

use std::ffi::OsString;
use std::fmt::Display;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Say what other PyTorch allocator settings would have reserved for a recorded run
    Whatif(whatif::Args),
}

/// The exit status of a command that ran: 0 done, 1 the finding asked for was there, or what a
/// command that was run ended with.
pub type Outcome = Result<u8, Failure>;

/// Done, nothing found that the caller asked to be told of.
pub const DONE: u8 = 0;
/// The finding asked for was there.
pub const FOUND: u8 = 1;

/// Something was wrong with what we were given. The message names the file, option or variable,
/// its value, and what would be right.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub message: String,
}

impl Failure {
    /// Bad input: exit 2.
    pub fn new(message: impl Display) -> Failure {
        Failure { code: 2, message: message.to_string() }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::new(error)
    }
}

pub fn main() -> ExitCode {
    match dispatch(Cli::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            say(&failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Runs a command of ours as if it had been typed.
fn execute(arguments: impl IntoIterator<Item = OsString>) -> Outcome {
    let program = std::iter::once("vramtrace".into());
    dispatch(Cli::try_parse_from(program.chain(arguments))?)
}

fn dispatch(cli: Cli) -> Outcome {
    // `vramtrace report | head` ends quietly. `run` goes on: it has a command to wait for.
    if !matches!(cli.command, Command::Run(_) | Command::DemoWorkload) {
        // SAFETY: plain call; nothing of ours handles this signal.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    match cli.command {
        Command::Run(args) => run::run(*args),
        Command::Demo(args) => demo::run(args),
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
        Command::Whatif(args) => whatif::run(args),
    }
}

/// On stdout; colours only where they are seen.
fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = anstream::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader of a pipe has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// One `vramtrace: ...` line on stderr.
pub fn say(message: impl Display) {
    use std::io::Write;
    // A closed stderr is no reason to die.
    let _ = writeln!(anstream::stderr(), "vramtrace: {message}");
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
