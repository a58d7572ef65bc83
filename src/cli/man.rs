//! `vramtrace __man DIR`: writes the manual pages, generated from the command line definition. Packaging scripts
//! run it.

use std::path::{Path, PathBuf};

use clap::Command;

use super::output::Output;
use crate::error::{DONE, Failure, Outcome};

/// The hidden command.
pub const COMMAND: &str = "__man";

#[derive(clap::Args)]
pub struct Args {
    /// An existing directory; existing pages are replaced
    directory: PathBuf,
}

/// Writes `vramtrace.1`, and a page for each command.
pub fn run(args: Args, command: Command) -> Outcome {
    if !args.directory.is_dir() {
        let shown = args.directory.display();
        return Err(Failure::new(format!("{shown} is not a directory: give one that exists")));
    }
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
    for subcommand in visible {
        let name = format!("vramtrace-{}", subcommand.get_name());
        // clap wants a &'static str; the process ends after the last page.
        let name: &'static str = name.leak();
        write(&args.directory, name, subcommand.clone().name(name))?;
    }
    write(&args.directory, "vramtrace", command)?;
    Ok(DONE)
}

fn write(directory: &Path, name: &str, command: Command) -> Result<(), Failure> {
    let page = clap_mangen::Man::new(command);
    let path = directory.join(format!("{name}.1"));
    Output::new(&path, true)?.write(|out| page.render(out))
}
