//! Running a program with the shim in front: `vramtrace run`, and the parts of it that `doctor`
//! and `demo` use.

pub mod child;
pub mod elf;
pub mod library;
pub mod monitor;
pub mod output;
pub mod processes;
pub mod python;
pub mod signals;
pub mod simulate;
pub mod start_hook;

use std::ffi::OsString;

use crate::error::Failure;
use output::Output;
use simulate::Simulated;

/// What to run and how.
pub struct Launch {
    pub command: Vec<OsString>,
    /// Checked.
    pub cap: Option<String>,
    /// Other variables for the shim, checked.
    pub settings: Vec<(&'static str, OsString)>,
    pub output: Output,
    pub simulated: Option<Simulated>,
    /// The command's stdout goes to stderr: ours is for JSON.
    pub quiet_stdout: bool,
}

/// What a run was.
pub struct RunResult {
    pub status: child::Status,
    pub observed: monitor::MonitorReport,
    /// `VRAMTRACE_OUT` of the run; where its traces are.
    pub output: Output,
    pub cap: Option<String>,
}

impl Launch {
    /// Runs the command to its end. An error means that it was not started.
    pub fn run(mut self) -> Result<RunResult, Failure> {
        let library = library::find(library::SHIM)?;
        let mut preload = library::preloadable(&library)?;
        self.output.create()?;
        let mut variables = vec![
            ("LD_PRELOAD", preload.with_existing(std::env::var_os("LD_PRELOAD"))),
            ("VRAMTRACE_OUT", self.output.variable()),
            ("VRAMTRACE_RUN", self.output.run_marker()),
        ];
        // Phases: another tool that is named there stays.
        let nvtx = std::env::var_os("NVTX_INJECTION64_PATH").filter(|path| !path.is_empty());
        if nvtx.is_none() {
            variables.push(("NVTX_INJECTION64_PATH", library.clone().into_os_string()));
        }
        if let Some(cap) = &self.cap {
            variables.push(("VRAMTRACE_CAP", cap.into()));
        }
        variables.append(&mut self.settings);
        if let Some(simulated) = &self.simulated {
            variables.extend(simulated.variables());
        }
        let outside = monitor::ProcessMonitor::new(
            self.output.run_marker(),
            library,
            self.simulated.is_some(),
        );
        let (status, observed) =
            match child::run(&self.command, &variables, self.quiet_stdout, outside) {
                Ok(ended) => ended,
                Err(failure) => {
                    self.output.remove_if_empty();
                    return Err(failure);
                }
            };
        // What a killed process left beside its trace; a reader finds it there too.
        for trace in self.output.traces() {
            let _ = vramtrace_reader::trace::merge(&trace);
        }
        if observed.still_running {
            // Who outlives the command still needs what its environment points to.
            preload.keep();
            if let Some(simulated) = self.simulated {
                simulated.keep();
            }
        }
        Ok(RunResult { status, observed, output: self.output, cap: self.cap })
    }
}
