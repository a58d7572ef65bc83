//! `vramtrace enable` and `vramtrace disable`: write and remove a start hook in a Python environment, for
//! programs that are not started by `vramtrace run`.

use std::path::PathBuf;

use crate::console::message;
use crate::error::{DONE, Failure, Outcome};
use crate::launch::library;
use crate::launch::python::{self, Python};
use crate::launch::start_hook::StartHook;

#[derive(clap::Args)]
#[command(
    long_about = "Write a start hook into the active Python environment. With VRAMTRACE=1 that \
        Python then executes itself again with the recorder preloaded: the same process, with \
        its file descriptors and its command line. It is for programs that `vramtrace run` cannot \
        start: notebooks, IDEs, workers of Ray, services.\n\n\
        Without VRAMTRACE=1 nothing changes, unless --always is given: for launchers \
        that drop the environment (ssh, sudo, `srun --export=NONE`, JupyterHub). VRAMTRACE=0 \
        turns it off for a process.",
    after_help = "Examples:\n  \
        vramtrace enable && VRAMTRACE=1 python train.py\n  \
        vramtrace enable --always\n  \
        vramtrace disable"
)]
pub struct Enable {
    #[command(flatten)]
    place: HookPlace,
    /// Record every start, also without VRAMTRACE=1
    #[arg(long)]
    always: bool,
}

#[derive(clap::Args)]
#[command(
    long_about = "Remove the start hook that `vramtrace enable` wrote. Exit status 1: there is none.",
    after_help = "Examples:\n  vramtrace disable\n  vramtrace disable --user"
)]
pub struct Disable {
    #[command(flatten)]
    place: HookPlace,
}

#[derive(clap::Args)]
struct HookPlace {
    /// For all programs of this user that run on that Python, outside of environments
    #[arg(long, conflicts_with = "system")]
    user: bool,
    /// For all programs of this machine that run on that Python, outside of environments
    #[arg(long)]
    system: bool,
    /// The interpreter [default: of VIRTUAL_ENV or CONDA_PREFIX, else python3 in PATH]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

impl HookPlace {
    fn hook(self) -> Result<(Python, StartHook), Failure> {
        let executable = self.python.map_or_else(python::active, Ok)?;
        let python = Python::ask(&executable)?;
        let shown = python.executable.display();
        let site = match (self.user, self.system, python.is_environment) {
            (false, false, true) | (_, true, _) => &python.site,
            (true, _, false) => &python.user_site,
            (true, _, true) => {
                return Err(Failure::new(format!(
                    "--user: {shown} belongs to a virtual environment, which does not read the user's \
                     site directory: omit --user"
                )));
            }
            (false, false, false) => {
                return Err(Failure::new(format!(
                    "{shown} belongs to no virtual environment: activate one, or give --user (all \
                     programs of this user) or --system (all programs on this machine)"
                )));
            }
        };
        let hook = StartHook::new(site, &python);
        Ok((python, hook))
    }
}

pub fn enable(args: Enable) -> Outcome {
    let library = library::find_preloadable()?;
    let (python, hook) = args.place.hook()?;
    for path in hook.write(&library, args.always)? {
        message(format_args!("wrote {}", path.display()));
    }
    let shown = python.executable.display();
    message(match args.always {
        true => format!("{shown} records every program; VRAMTRACE=0 switches it off for one"),
        false => format!("{shown} records a program that is started with VRAMTRACE=1"),
    });
    Ok(DONE)
}

pub fn disable(args: Disable) -> Outcome {
    let (python, hook) = args.place.hook()?;
    let gone = hook.remove()?;
    if gone.is_empty() {
        let shown = python.executable.display();
        return Err(Failure {
            code: 1,
            message: format!("{shown} has no start hook of vramtrace: nothing was removed"),
        });
    }
    for path in gone {
        message(format_args!("removed {}", path.display()));
    }
    Ok(DONE)
}
