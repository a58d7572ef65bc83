//! `vramtrace doctor`: can a program be recorded here, and if not, why? Prints what `crate::doctor` found.

use std::ffi::OsString;

use serde::Serialize;
use vramtrace_reader::files;

use super::doctor_text;
use crate::console;
use crate::doctor::{self, Findings, usage};
use crate::error::{DONE, FOUND, Failure, Outcome};
use crate::launch::Launch;
use crate::launch::output::Output;
use crate::launch::simulate::{self, Simulated};

#[derive(clap::Args)]
#[command(
    long_about = "Check the driver, NVML, the recorder and LD_PRELOAD, and name what to do first. \
        With a command: examine its executable, run it, and list the calls that it used.\n\n\
        Exit status 1: something keeps a program from being recorded or capped.",
    after_help = "Examples:\n  vramtrace doctor\n  vramtrace doctor python train.py"
)]
pub struct Args {
    /// Check this cap too: list the devices that it applies to
    #[arg(long, value_name = "SPEC", env = "VRAMTRACE_CAP", hide_env_values = true)]
    cap: Option<String>,
    /// Run the command over the simulated driver
    #[arg(
        long,
        value_name = "NxSIZE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = simulate::DEFAULT
    )]
    simulate: Option<String>,
    /// Print all findings; without it they fit one screen
    #[arg(long)]
    full: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// The command to examine and run, and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub fn run(args: Args) -> Outcome {
    let simulated = args.simulate.as_deref().map(Simulated::new).transpose()?;
    let mut findings =
        doctor::look(args.cap.as_deref(), args.command.first().map(|c| c.as_os_str()));
    if let Some(command) = &mut findings.command
        && command.executable.is_some()
    {
        let place = files::temporary_directory("vramtrace-doctor-", None, &[])?;
        let launch = Launch {
            command: args.command,
            cap: args.cap.filter(|_| findings.cap.as_ref().is_some_and(|cap| cap.error.is_none())),
            settings: Vec::new(),
            output: Output::new(Some(place.path().as_os_str()))?,
            simulated,
            quiet_stdout: args.json,
        };
        let was_simulated = launch.simulated.is_some();
        let ended = launch.run()?;
        command.used = Some(usage::of(&ended, was_simulated).map_err(Failure::new)?);
    }
    let problems = findings.problems();
    let first = doctor::first_step(&problems);
    if args.json {
        let problems = problems.iter().map(|problem| problem.text.as_str()).collect();
        let notes = findings.notes();
        let report = Report { schema: SCHEMA, findings: &findings, notes, first, problems };
        console::print(&console::json(&report)?)?;
    } else {
        console::print(&doctor_text::text(&findings, &problems, first, args.full))?;
    }
    Ok(if problems.is_empty() { DONE } else { FOUND })
}

const SCHEMA: &str = "vramtrace.doctor/1";

/// `doctor --json`.
#[derive(Serialize)]
struct Report<'f> {
    schema: &'static str,
    #[serde(flatten)]
    findings: &'f Findings,
    notes: Vec<String>,
    first: &'f str,
    problems: Vec<&'f str>,
}
