//! `vramtrace doctor`: can a program be recorded here, and if not, why? Prints what `crate::doctor` found.

use std::ffi::OsString;

use serde_json::{Value, json};
use vramtrace_format::uuid;
use vramtrace_reader::files;

use super::doctor_text::{self, version};
use crate::doctor::machine::Machine;
use crate::doctor::usage;
use crate::doctor::{self, CommandFound, Findings};
use crate::error::{DONE, FOUND, Failure, Outcome};
use crate::launch::Launch;
use crate::launch::child::Status;
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
    /// With --full: list every entry point
    #[arg(long)]
    all: bool,
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
            cap: args.cap.filter(|_| findings.cap.as_ref().is_some_and(|cap| cap.limits.is_ok())),
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
    if args.json {
        crate::console::print(&crate::console::json(&as_json(&findings, &problems))?)?;
    } else {
        let text = match args.full || args.all {
            true => doctor_text::full(&findings, &problems, args.all),
            false => doctor_text::short(&findings, &problems),
        };
        crate::console::print(&text)?;
    }
    Ok(if problems.is_empty() { DONE } else { FOUND })
}

fn as_json(findings: &Findings, problems: &[String]) -> Value {
    let driver = match &findings.driver {
        Ok(driver) => json!({
            "found": true,
            "cuda_version": version(driver.version),
            "devices": driver.devices.iter().map(|device| json!({
                "ordinal": device.ordinal,
                "name": device.name,
                "uuid": uuid::text(&device.uuid, false),
                "total_bytes": device.total_bytes,
            })).collect::<Vec<_>>(),
        }),
        Err(why) => json!({ "found": false, "why": why }),
    };
    let nvml = match &findings.nvml {
        Ok(nvml) => json!({
            "found": true, "driver_version": nvml.driver_version, "devices": nvml.devices,
            "cards": nvml.cards.iter().map(|card| json!({
                "index": card.index,
                "used_bytes": card.used_bytes,
                "computing": card.computing,
                "drawing": card.drawing,
                "has_figures": card.has_figures,
            })).collect::<Vec<_>>(),
        }),
        Err(why) => json!({ "found": false, "why": why }),
    };
    let recorder = match &findings.shim {
        Ok(shim) => json!({
            "found": true,
            "path": shim.path.display().to_string(),
            "entry_points": shim.coverage.entries.iter().map(|entry| json!({
                "name": entry.name, "section": entry.section, "how": entry.how.name(),
            })).collect::<Vec<_>>(),
        }),
        Err(why) => json!({ "found": false, "why": why }),
    };
    let cap = findings.cap.as_ref().map(|cap| {
        let limits = cap.limits.as_ref();
        json!({
            "text": cap.text,
            "error": limits.err(),
            "limits": limits.ok().map(|limits| limits.iter().map(|(ordinal, bytes)| json!({
                "ordinal": ordinal, "cap_bytes": bytes,
            })).collect::<Vec<_>>()),
            "ignored": cap.ignored,
        })
    });
    json!({
        "schema": "vramtrace.doctor/1",
        "driver": driver,
        "nvml": nvml,
        "machine": machine_json(&findings.machine),
        "notes": findings.notes(),
        "recorder": recorder,
        "cap": cap,
        "preload": findings.preload.iter().map(|(path, problem)| json!({
            "path": path.display().to_string(), "problem": problem,
        })).collect::<Vec<_>>(),
        "first": findings.first_step(),
        "command": findings.command.as_ref().map(command_json),
        "problems": problems,
    })
}

fn machine_json(machine: &Machine) -> Value {
    json!({
        "wsl": machine.is_wsl,
        "kernel_module": machine.kernel_module,
        "nodes": machine.nodes.iter().map(|node| json!({
            "path": node.path.display().to_string(), "access": node.access.name(),
        })).collect::<Vec<_>>(),
        "runtime": machine.runtime.as_ref().map(|runtime| json!({
            "library": runtime.library, "cuda_version": version(runtime.version),
        })),
    })
}

fn command_json(command: &CommandFound) -> Value {
    let used = command.used.as_ref().map(|used| {
        let (exit_code, signal) = match used.status {
            Status::Exited(code) => (Some(code), None),
            Status::Signalled(signal) => (None, Some(signal)),
        };
        json!({
            "exit_code": exit_code,
            "signal": signal,
            "simulated": used.simulated,
            "processes": used.processes,
            "allocations": used.allocations,
            "refusals": used.refusals,
            "passed_through": used.passed,
            "notes": used.notes,
            "without_recorder": used.without_shim.iter().map(|(pid, name)| json!({
                "pid": pid, "name": name,
            })).collect::<Vec<_>>(),
        })
    });
    json!({
        "name": command.name.to_string_lossy(),
        "executable": command.executable.as_ref().map(|e| e.path.display().to_string()),
        "script": command.executable.as_ref()
            .and_then(|e| e.script.as_ref()).map(|script| script.display().to_string()),
        "escapes": command.executable.as_ref().map(|executable| {
            executable.escapes.iter().map(|escape| escape.name()).collect::<Vec<_>>()
        }),
        "used": used,
    })
}
