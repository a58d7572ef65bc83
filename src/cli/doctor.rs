//! `vramtrace doctor`: is everything there, and what would go past us?

use std::ffi::OsString;

use anstream::println;
use serde_json::{Value, json};
use vramtrace_format::uuid;
use vramtrace_reader::units::gib;

use crate::doctor::coverage::Handling;
use crate::doctor::usage::{self, DriverUsage};
use crate::doctor::{self, CommandFound, Findings, GENERAL_ESCAPES};
use crate::error::{DONE, FOUND, Failure, Outcome};
use crate::launch::Launch;
use crate::launch::child::Status;
use crate::launch::output::Output;
use crate::launch::simulate::{self, Simulated};

#[derive(clap::Args)]
#[command(
    long_about = "Say whether driver, NVML and recorder are there, which entry points are \
        followed, and what would go past us. With a command: look at its executable, run it, and \
        say what it used.\n\n\
        Exit 1 when something keeps a program from being recorded or capped.",
    after_help = "Examples:\n  vramtrace doctor\n  vramtrace doctor -- python train.py"
)]
pub struct Args {
    /// Judge this cap too: which devices it meets
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
    /// List every entry point
    #[arg(long)]
    all: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// The command to examine and run, and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub fn run(args: Args) -> Outcome {
    let simulated = args.simulate.as_deref().map(Simulated::new).transpose()?;
    let mut findings =
        doctor::look(args.cap.as_deref(), args.command.first().map(|c| c.as_os_str()));
    if let Some(command) = &mut findings.command
        && command.executable.is_some()
    {
        let place = tempfile::Builder::new().prefix("vramtrace-doctor-").tempdir()?;
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
        println!("{:#}", as_json(&findings, &problems));
    } else {
        print(&findings, &problems, args.all);
    }
    Ok(if problems.is_empty() { DONE } else { FOUND })
}

fn print(findings: &Findings, problems: &[String], all: bool) {
    match &findings.driver {
        Ok(driver) => {
            println!(
                "driver    CUDA {}, devices: {}",
                version(driver.version),
                driver.devices.len()
            );
            for device in &driver.devices {
                println!(
                    "          {} {} {} {}",
                    device.ordinal,
                    device.name,
                    uuid::text(&device.uuid, false),
                    gib(device.total_bytes)
                );
            }
        }
        Err(why) => println!("driver    not there: {why}"),
    }
    match &findings.nvml {
        Ok(nvml) => println!("nvml      driver {}, devices: {}", nvml.driver_version, nvml.devices),
        Err(why) => println!("nvml      not there: {why}"),
    }
    match &findings.shim {
        Ok(shim) => {
            let coverage = &shim.coverage;
            println!("recorder  {}", shim.path.display());
            println!(
                "          {} entry points: {} followed, {} noted, {} handed to the driver",
                coverage.entries.len(),
                coverage.count(Handling::Followed),
                coverage.count(Handling::Noted),
                coverage.count(Handling::Passed)
            );
            for (section, followed, of) in coverage.sections() {
                println!("          {section}: {followed} of {of} followed");
                let of_section = coverage.entries.iter().filter(|e| e.section == section);
                for entry in of_section.filter(|_| all) {
                    println!("            {:<52} {}", entry.name, entry.how.name());
                }
            }
        }
        Err(why) => println!("recorder  not there: {why}"),
    }
    if let Some(cap) = &findings.cap {
        match &cap.limits {
            Ok(limits) if limits.is_empty() => println!("cap       {}: meets no device", cap.text),
            Ok(limits) => {
                for (ordinal, bytes) in limits {
                    println!("cap       device {ordinal}: {}", gib(*bytes));
                }
            }
            Err(why) => println!("cap       {why}"),
        }
    }
    if let Some(command) = &findings.command {
        print_command(command);
    }
    println!("escapes   it is a cooperative recorder and cap, no security boundary; not seen:");
    println!("          static, setuid, musl and cgo-less Go programs; 32-bit ones");
    for (what, why) in GENERAL_ESCAPES {
        println!("          {what}: {why}");
    }
    match problems {
        [] => println!("all well"),
        problems => {
            println!("problems:");
            problems.iter().for_each(|problem| println!("  {problem}"));
        }
    }
}

fn print_command(command: &CommandFound) {
    if let Some(executable) = &command.executable {
        println!("command   {}", executable.path.display());
    }
    let Some(used) = &command.used else { return };
    println!(
        "          {}; processes with a trace: {}; {}",
        status(used.status),
        used.processes,
        if used.simulated { "on the simulated driver" } else { "on the real driver" },
    );
    for (api, count) in &used.allocations {
        println!("          {api}: {count} allocations");
    }
    for (api, count) in &used.refusals {
        println!("          {api}: {count} refused");
    }
    if used.allocations.is_empty() {
        println!("          no GPU memory was taken through the driver{}", seen_by(used));
    }
    for note in &used.notes {
        println!("          it was said: {note}");
    }
}

fn seen_by(used: &DriverUsage) -> &'static str {
    if used.with_shim { "" } else { " that we could see" }
}

fn status(status: Status) -> String {
    match status {
        Status::Exited(code) => format!("exit {code}"),
        Status::Signalled(signal) => format!("ended by signal {signal}"),
    }
}

fn version(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
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
        "recorder": recorder,
        "cap": cap,
        "command": findings.command.as_ref().map(command_json),
        "problems": problems,
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
