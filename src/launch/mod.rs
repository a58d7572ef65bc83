//! Runs a program with the recorder preloaded, for `vramtrace run` and `doctor`.

pub mod child;
pub mod elf;
pub mod host_memory;
pub mod inherited;
pub mod library;
pub mod monitor;
pub mod output;
pub mod python;
pub mod signals;
pub mod simulate;
pub mod start_hook;

use std::ffi::OsString;
use std::time::{Duration, Instant, SystemTime};

use vramtrace_format::Header;

use crate::error::Failure;
use child::{Status, signal_name};
use elf::Escape;
use host_memory::Starved;
use output::RunOutput;
use simulate::Simulated;

/// A command and how to run it.
pub struct Launch {
    pub command: Vec<OsString>,
    /// Value of VRAMTRACE_CAP; already checked.
    pub cap: Option<String>,
    /// Other variables for the recorder; already checked.
    pub settings: Vec<(&'static str, OsString)>,
    pub output: RunOutput,
    pub simulated: Option<Simulated>,
    /// Send the command's stdout to stderr, because stdout is for JSON.
    pub quiet_stdout: bool,
}

/// The result of a run.
pub struct RunResult {
    pub status: Status,
    /// When the command started, and how long it ran.
    pub started: SystemTime,
    pub took: Duration,
    /// The name of the program, without its directory.
    pub command: String,
    pub observed: monitor::MonitorReport,
    /// Where the traces of the run are.
    pub output: RunOutput,
    pub cap: Option<String>,
}

impl RunResult {
    /// How a process of the run has ended that recorded no end. `None`: it is not known.
    pub fn end_of(&self, header: &Header) -> Option<String> {
        let process = (header.pid, header.process_start_ticks);
        let Starved { kills, full_shm } = &self.observed.starved;
        match self.status {
            _ if header.pid != self.observed.command => {
                let signal = self.observed.signals.get(&process)?;
                Some(format!("killed by {}", signal_name(*signal)))
            }
            Status::Exited(code) => Some(format!("ended with status {code} (_exit, exec)")),
            Status::Signalled(libc::SIGKILL) if let Some((_, why)) = kills => {
                Some(format!("killed by the kernel: {why}"))
            }
            Status::Signalled(signal) => {
                let full = full_shm.as_ref().filter(|_| signal == libc::SIGBUS);
                let why = full.map_or(String::new(), |full| format!(": {full}"));
                Some(format!("killed by {}{why}", signal_name(signal)))
            }
        }
    }

    /// What was short of host memory, where the words `said` do not have it.
    pub fn starved(&self, said: &str) -> Vec<String> {
        let Starved { kills, full_shm } = &self.observed.starved;
        let kills = kills.as_ref().filter(|(_, why)| !said.contains(why));
        let kills = kills.map(|(killed, why)| match killed {
            1 => format!("the kernel killed a process: {why}"),
            n => format!("the kernel killed {n} processes: {why}"),
        });
        let failed = self.status != Status::Exited(0);
        let full = full_shm.clone().filter(|full| failed && !said.contains(full));
        kills.into_iter().chain(full).collect()
    }
}

impl Launch {
    /// Runs the command to its end. An error means that it was not started.
    pub fn run(mut self) -> Result<RunResult, Failure> {
        let library = library::find(library::SHIM)?;
        let mut preload = library::preloadable(&library)?;
        self.output.create()?;
        let mut variables = vec![
            ("VRAMTRACE_OUT", self.output.variable()),
            ("VRAMTRACE_RUN", self.output.run_marker()),
        ];
        // musl's loader ends a program, with status 127, whose preload it cannot link.
        let executable = elf::examine(&self.command[0]);
        if !executable.is_some_and(|found| found.escapes.contains(&Escape::Musl)) {
            variables.push(("LD_PRELOAD", preload.with_existing(std::env::var_os("LD_PRELOAD"))));
        }
        // NVTX ranges reach the recorder through this variable. A value of another tool is kept.
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
        let marker = self.output.run_marker();
        let outside = monitor::ProcessMonitor::new(marker, library, self.simulated.is_some());
        let (started, began) = (SystemTime::now(), Instant::now());
        let ended = child::run(&self.command, &variables, self.quiet_stdout, outside);
        let (status, observed) = ended.inspect_err(|_| self.output.remove_if_empty())?;
        let took = began.elapsed();
        // A killed process may leave a file beside its trace. Readers find it there if this fails.
        for trace in self.output.traces() {
            let _ = vramtrace_reader::trace::merge(&trace);
        }
        if observed.still_running {
            // Processes that outlive the command use the files that their environment names.
            preload.keep();
            if let Some(simulated) = self.simulated {
                simulated.keep();
            }
        }
        let program = std::path::Path::new(&self.command[0]);
        let command = program.file_name().unwrap_or(program.as_os_str()).display().to_string();
        let (output, cap) = (self.output, self.cap);
        Ok(RunResult { status, started, took, command, observed, output, cap })
    }
}
