//! The command line: one file for each command. Exit status: 0 done, 1 the finding that was asked for is there,
//! 2 bad input.

mod cap;
mod caveats;
mod completions;
mod demo;
mod diff;
mod doctor;
mod enable;
mod env;
mod export;
mod fits;
mod flame;
mod frag;
mod gate;
mod groups;
mod holders;
mod import;
mod leaks;
mod man;
#[cfg(feature = "metrics")]
mod metrics;
mod moment;
mod oom;
mod output;
mod pack;
mod page;
mod ps;
mod reading;
mod record;
mod report;
mod run;
mod run_names;
mod run_records;
mod run_summary;
mod select;
#[cfg(feature = "top")]
mod top;
mod verdict;
mod verify;
mod whatif;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::console;
use crate::error::Outcome;
use crate::launch::inherited;

#[derive(Parser)]
#[command(
    name = "vramtrace",
    version,
    about = "A flight recorder and circuit breaker for GPU memory",
    long_about = "A flight recorder and circuit breaker for GPU memory.\n\n\
        Without a command: the verdict on the newest run in the working directory, or on the \
        FILEs: traces, directories of runs, PyTorch snapshots.",
    override_usage = "vramtrace [COMMAND | FILE...]",
    after_help = "\
Examples:
  vramtrace run python train.py                 record, and end with a verdict
  vramtrace run --cap 8GiB python train.py      the same under a limit
  vramtrace                                     the verdict on the newest run here
  vramtrace snapshot.pickle                     the verdict on what another tool recorded
`vramtrace COMMAND --help` explains a command."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// How does my program use GPU memory, from its start to its end?
    Run(Box<run::Args>),
    /// What does the explanation of an out-of-memory look like?
    Demo(demo::Args),
    /// How do I open a run in Perfetto, pprof or PyTorch's viewer?
    Export(export::Args),
    /// What grew between two runs, or two moments?
    Diff(diff::Args),
    /// Which batch fits on which card?
    Fits(fits::Args),
    /// Who held the memory, as a picture?
    Flame(flame::Args),
    /// How much of PyTorch's cache is fragmented, and by which lines?
    Frag(frag::Args),
    /// Which variables start the recorder under Slurm, Docker, ...?
    Env(env::Args),
    /// How do I record a Python that Jupyter or an IDE starts?
    Enable(enable::Enable),
    /// How do I undo `vramtrace enable`?
    Disable(enable::Disable),
    /// Can a program be recorded here, and if not, why?
    Doctor(doctor::Args),
    /// Write the manual pages into a directory
    #[command(name = man::COMMAND, hide = true)]
    Man(man::Args),
    /// What happened: peak, live memory and refusals of each process?
    Report(report::Args),
    /// Which lines, functions or libraries held the memory?
    Holders(holders::Args),
    /// How do I read the recording of another tool?
    Import(import::Args),
    /// Which memory grows and is never freed?
    Leaks(leaks::Args),
    /// Why was the run out of memory, and what would have helped?
    Oom(oom::Args),
    /// How do I make a trace that can be read on another machine?
    Pack(pack::Args),
    /// Which processes use the GPU now, and how much?
    Ps(ps::Args),
    /// Which processes use the GPU, and which lines grow, shown live?
    #[cfg(feature = "top")]
    Top(top::Args),
    /// How does Prometheus get the memory of every process and pod?
    #[cfg(feature = "metrics")]
    Metrics(metrics::Args),
    /// How do I change the limit of a running process?
    Cap(cap::Args),
    /// How do I switch the recording of a running process off and on?
    Record(record::Args),
    /// Is a trace consistent: do its events, sums and addresses agree?
    Verify(verify::Args),
    /// What would other PyTorch allocator settings have reserved?
    Whatif(whatif::Args),
    /// How do I complete commands in bash, zsh or fish?
    Completions(completions::Args),
}

pub fn main() -> ExitCode {
    vramtrace_reader::report::text::layout::set_width(console::width());
    let parsed = || command().try_get_matches().and_then(|found| Cli::from_arg_matches(&found));
    let outcome = match recordings(std::env::args_os().skip(1)) {
        Some(paths) => {
            inherited::restore_sigpipe();
            verdict::of(paths)
        }
        None => dispatch(parsed().unwrap_or_else(|error| error.exit())),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            console::message(&failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// The arguments, if they are files or directories and not a command.
fn recordings(arguments: impl Iterator<Item = OsString>) -> Option<Vec<PathBuf>> {
    let paths: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    let first = paths.first()?;
    let is_command = |name: &str| command().find_subcommand(name).is_some();
    let is_option = |path: &PathBuf| path.as_os_str().as_encoded_bytes().starts_with(b"-");
    // A name with a `/` or `.` is a file also where there is none, which is the error then.
    let is_path = |name: &str| name.contains(['/', '.']);
    let names_files = match first.to_str() {
        Some(name) => !is_command(name) && (first.exists() || is_path(name)),
        None => true,
    };
    (names_files && !paths.iter().any(is_option)).then_some(paths)
}

/// The command line, with its commands in groups. A negative number is a value, which an option may refuse; it
/// is no unknown option.
fn command() -> clap::Command {
    groups::grouped(Cli::command().mut_subcommands(|one| one.allow_negative_numbers(true)))
}

/// Runs a vramtrace command, given its arguments, in this process.
fn execute(arguments: &[&OsStr]) -> Outcome {
    let program = std::iter::once(OsStr::new("vramtrace"));
    dispatch(Cli::try_parse_from(program.chain(arguments.iter().copied()))?)
}

fn dispatch(cli: Cli) -> Outcome {
    // SIGPIPE ends `vramtrace report | head` without a message. `run` ignores it and waits for its command.
    if !matches!(cli.command, Some(Command::Run(_))) {
        inherited::restore_sigpipe();
    }
    let Some(command) = cli.command else { return verdict::run() };
    match command {
        Command::Run(args) => run::run(*args),
        Command::Demo(args) => demo::run(args, &execute),
        Command::Diff(args) => diff::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Env(args) => env::run(args),
        Command::Enable(args) => enable::enable(args),
        Command::Disable(args) => enable::disable(args),
        Command::Export(args) => export::run(args),
        Command::Man(args) => man::run(args, self::command()),
        Command::Report(args) => report::run(args),
        Command::Fits(args) => fits::run(args),
        Command::Flame(args) => flame::run(args),
        Command::Frag(args) => frag::run(args),
        Command::Holders(args) => holders::run(args),
        Command::Import(args) => import::run(args),
        Command::Leaks(args) => leaks::run(args),
        Command::Oom(args) => oom::run(args),
        Command::Pack(args) => pack::run(args),
        Command::Ps(args) => ps::run(args),
        #[cfg(feature = "top")]
        Command::Top(args) => top::run(args),
        #[cfg(feature = "metrics")]
        Command::Metrics(args) => metrics::run(args),
        Command::Cap(args) => cap::run(args),
        Command::Record(args) => record::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Whatif(args) => whatif::run(args),
        Command::Completions(args) => completions::run(args, self::command()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent_and_every_command_shows_an_example() {
        let mut cli = super::command();
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

    /// Lines of `sh` blocks that begin with our name, without comments.
    fn commands(page: &str) -> Vec<String> {
        // In a block, and in one of a shell.
        let (mut block, mut inside) = (false, false);
        let mut found = Vec::new();
        for line in page.lines() {
            if line.starts_with("```") {
                block = !block;
                inside = block && matches!(line.trim(), "```sh" | "```");
                continue;
            }
            let command = line.split("  #").next().unwrap_or(line).trim();
            if inside && command.starts_with("vramtrace ") && !command.contains(": ") {
                found.push(command.to_string());
            }
        }
        found
    }

    #[test]
    fn every_command_of_the_documents_is_understood() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut folders = vec![root.join("docs"), root.join("examples")];
        let mut pages = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { pages.push(path) }
            }
        }
        let mut count = 0;
        for page in pages.iter().filter(|page| page.extension().is_some_and(|end| end == "md")) {
            for line in commands(&std::fs::read_to_string(page).unwrap()) {
                let end = line.find(['|', '>', '&', ';']).unwrap_or(line.len());
                let words =
                    line[..end].split_whitespace().map(|word| word.replace(['"', '\''], ""));
                let parsed = super::command().try_get_matches_from(words);
                assert!(parsed.is_ok(), "{}: {line}: {}", page.display(), parsed.unwrap_err());
                count += 1;
            }
        }
        assert!(count >= 8, "{count} commands");
    }
}
