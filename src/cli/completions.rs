//! `vramtrace completions`: what a shell reads to complete commands, options and values.

use clap::Command;
use clap_complete::{Shell, generate};

use crate::console::print;
use crate::error::{DONE, Failure, Outcome};

#[derive(clap::Args)]
#[command(
    long_about = "Print what a shell reads to complete the commands, options and values of \
        vramtrace.",
    after_help = "\
Examples:
  vramtrace completions bash > ~/.local/share/bash-completion/completions/vramtrace
  vramtrace completions zsh > ~/.zfunc/_vramtrace      # a directory of $fpath
  vramtrace completions fish > ~/.config/fish/completions/vramtrace.fish"
)]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// `command` is the whole command line.
pub fn run(args: Args, command: Command) -> Outcome {
    // The generators offer hidden commands too.
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut command = Command::new("vramtrace").version("").subcommands(visible);
    let mut out = Vec::new();
    generate(args.shell, &mut command, "vramtrace", &mut out);
    print(&String::from_utf8(out).map_err(Failure::new)?)?;
    Ok(DONE)
}
