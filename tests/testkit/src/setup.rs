//! The configuration of a run.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::reachable::reachable_sim_dir;
use crate::{Scratch, forget_variables, machine, reachable, shim, sim_dir};

/// The configuration of a run: preload, simulated devices, environment, arguments.
#[derive(Clone, Default)]
pub struct Setup {
    preload: bool,
    simulated: Option<String>,
    env: Vec<(String, OsString)>,
    args: Vec<String>,
    launcher: Vec<String>,
    cwd: Option<PathBuf>,
    pub(crate) timeout: Option<Duration>,
    user: Option<u32>,
    contradicts: bool,
}

impl Setup {
    /// One device of 24 GiB.
    pub fn simulated() -> Setup {
        Setup { simulated: Some("1x24GiB".into()), ..Setup::default() }
    }

    pub fn devices(mut self, spec: &str) -> Setup {
        self.simulated = Some(spec.into());
        self
    }

    pub fn preload(mut self) -> Setup {
        self.preload = true;
        self
    }

    pub fn cap(self, spec: &str) -> Setup {
        self.preload().env("VRAMTRACE_CAP", spec)
    }

    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Setup {
        self.env.push((name.into(), value.into()));
        self
    }

    pub fn arg(mut self, arg: impl ToString) -> Setup {
        self.args.push(arg.to_string());
        self
    }

    /// A command that runs the program, such as `unshare --pid --fork`: the program and its
    /// arguments follow.
    pub fn through(mut self, launcher: &[&str]) -> Setup {
        self.launcher = launcher.iter().map(ToString::to_string).collect();
        self
    }

    /// Working directory (default: the run's own scratch directory, where its traces land).
    pub fn cwd(mut self, dir: &Path) -> Setup {
        self.cwd = Some(dir.into());
        self
    }

    /// Runs as this user; for tests that run as root.
    pub fn user(mut self, user: u32) -> Setup {
        self.user = Some(user);
        self
    }

    pub fn timeout(mut self, limit: Duration) -> Setup {
        self.timeout = Some(limit);
        self
    }

    /// The program reports wrong figures to the recorder: see [`Scratch::contradicts`].
    pub fn contradicts(mut self) -> Setup {
        self.contradicts = true;
        self
    }

    /// The arguments.
    pub(crate) fn shown(&self) -> String {
        self.args.join(" ")
    }

    /// A new directory for the files of a run.
    pub fn scratch(&self) -> Scratch {
        let scratch = if self.user.is_some() { Scratch::reachable() } else { Scratch::new() };
        if self.contradicts {
            scratch.contradicts();
        }
        scratch
    }

    pub fn command(&self, program: &Path, scratch: &Scratch) -> Command {
        let other = self.user.is_some();
        let file = |path: &Path| if other { reachable(path) } else { path.to_path_buf() };
        let program = file(program);
        let mut command = match self.launcher.split_first() {
            None => Command::new(program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        command.args(&self.args).current_dir(self.cwd.as_deref().unwrap_or(&scratch.0));
        forget_variables(&mut command);
        if let Some(spec) = &self.simulated {
            let directory = if other { reachable_sim_dir() } else { sim_dir() };
            command.env("LD_LIBRARY_PATH", directory).env("VRAMTRACE_SIM", spec);
        }
        if self.preload {
            command.env("LD_PRELOAD", file(&shim()));
        }
        command.envs(self.env.iter().map(|(n, v)| (n, v)));
        let mut command = machine::emulated(command);
        if let Some(user) = self.user {
            std::os::unix::fs::chown(&scratch.0, Some(user), Some(user)).unwrap();
            command.uid(user).gid(user);
        }
        command
    }
}
