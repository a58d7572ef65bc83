//! `vramtrace doctor`: can a program be recorded here, and if not, why? Prints the checks of `crate::doctor`.

use std::ffi::OsString;

use serde::Serialize;
use vramtrace_reader::files;
use vramtrace_reader::units::several;

use super::reading::show;
use crate::doctor::{self, Check, Status, usage};
use crate::error::{DONE, FOUND, Failure, Outcome};
use crate::launch::output::RunOutput;
use crate::launch::simulate::{self, Simulated};
use crate::launch::{Launch, elf};

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
    #[arg(long, value_name = "NxSIZE", default_missing_value = simulate::DEFAULT)]
    #[arg(num_args = 0..=1, require_equals = true)]
    simulate: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// The command to examine and run, and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

const SCHEMA: &str = "vramtrace.doctor/2";

/// `doctor --json`.
#[derive(Serialize)]
struct Report<'c> {
    /// What to do first.
    first: &'c str,
    checks: &'c [Check],
}

pub fn run(args: Args) -> Outcome {
    let simulated = args.simulate.as_deref().map(Simulated::new).transpose()?;
    let command = args.command.first().map(OsString::as_os_str);
    let runs = command.is_some_and(|command| elf::examine(command).is_some());
    let mut checks = doctor::look(args.cap.as_deref(), command, runs && simulated.is_some());
    if runs {
        let place = files::temporary_directory("vramtrace-doctor-", None, &[])?;
        let is_understood = |cap: &String| vramtrace_format::capspec::parse(cap).is_ok();
        let launch = Launch {
            command: args.command,
            cap: args.cap.filter(is_understood),
            settings: Vec::new(),
            output: RunOutput::new(Some(place.path().as_os_str()))?,
            simulated,
            quiet_stdout: args.json,
        };
        checks.extend(usage::of(&launch.run()?).map_err(Failure::new)?);
    }
    let problems = checks.iter().filter(|check| check.status == Status::Problem).count();
    let first = checks.iter().find_map(|check| check.step.as_deref()).unwrap_or(match problems {
        0 => "record a program: vramtrace run python train.py",
        _ => "see the problems below",
    });
    let report = || Report { first, checks: &checks };
    show([], args.json, SCHEMA, report, || text(&checks, problems, first))?;
    Ok(if problems == 0 { DONE } else { FOUND })
}

/// What to do first, the problems, what else there is.
fn text(checks: &[Check], problems: usize, first: &str) -> String {
    let verdict = match problems {
        0 => "no problem found".to_string(),
        n => several(n as u64, "problem"),
    };
    let mut lines = vec![
        format!("vramtrace {}: {verdict}", env!("CARGO_PKG_VERSION")),
        format!("first     {first}"),
    ];
    for (status, word) in [(Status::Problem, "problem"), (Status::Note, "note"), (Status::Ok, "")] {
        let of_status = checks.iter().filter(|check| check.status == status);
        lines.extend(of_status.map(|Check { name, message, .. }| match status {
            Status::Ok => format!("{name:10}{message}"),
            _ => format!("{word:10}{message}"),
        }));
    }
    lines.join("\n") + "\n"
}
