//! Examines driver, NVML, recorder, LD_PRELOAD, cap and command for `vramtrace doctor`, which prints the findings.

pub mod coverage;
mod json;
pub mod machine;
pub mod recording;
pub mod usage;

use std::ffi::OsStr;
use std::path::PathBuf;

use serde::Serialize;
use vramtrace_format::capspec::{self, CapSpec, Target};
use vramtrace_format::escape::Escape;
use vramtrace_format::uuid;

use crate::driver::nvml::{self, Card, Nvml};
use crate::driver::{Driver, GpuDevice};
use crate::launch::elf;
use crate::launch::library::{self, Preloaded};
use crate::launch::monitor::Unrecorded;
use crate::live_processes::kernel_driver;
use coverage::Coverage;
use machine::{Access, DeviceNode, Machine};
use recording::Switches;
use usage::DriverUsage;
use vramtrace_reader::units::{several, size};

/// Ways around a preloaded library that cannot be found by examining one executable.
pub const GENERAL_ESCAPES: [(&str, &str); 3] = [
    ("dlopen with RTLD_DEEPBIND", "such a plugin binds to the driver directly"),
    ("dlmopen", "a library opened in another namespace of the loader is not seen"),
    (
        "lost environment",
        "ssh, su, sudo, container and job starters drop LD_PRELOAD: set it inside, by an absolute \
         path (a path that is not found leaves the program without record and cap)",
    ),
];

/// What `doctor` prints. Errors are texts here: they are shown, and nothing depends on their kind.
#[derive(Debug, Serialize)]
pub struct Findings {
    #[serde(serialize_with = "json::found")]
    pub driver: Result<DriverFound, String>,
    #[serde(serialize_with = "json::found")]
    pub nvml: Result<Nvml, String>,
    pub machine: Machine,
    #[serde(skip)]
    pub switches: Switches,
    #[serde(rename = "recorder", serialize_with = "json::found")]
    pub shim: Result<ShimFound, String>,
    pub cap: Option<CapFound>,
    /// What LD_PRELOAD names already.
    pub preload: Vec<Preloaded>,
    pub command: Option<CommandFound>,
}

#[derive(Debug, Serialize)]
pub struct DriverFound {
    #[serde(rename = "cuda_version", serialize_with = "json::version")]
    pub version: u32,
    pub devices: Vec<GpuDevice>,
}

#[derive(Debug, Serialize)]
pub struct ShimFound {
    #[serde(serialize_with = "json::path")]
    pub path: PathBuf,
    #[serde(flatten)]
    pub coverage: Coverage,
}

/// The cap that VRAMTRACE_CAP or `--cap` would set.
#[derive(Debug, Serialize)]
pub struct CapFound {
    pub text: String,
    /// What is wrong with the text.
    pub error: Option<String>,
    pub limits: Option<Vec<LimitFound>>,
    /// Devices that it names and that are not visible.
    pub ignored: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct LimitFound {
    pub ordinal: u32,
    pub cap_bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct CommandFound {
    pub name: String,
    /// `None`: no such command.
    #[serde(serialize_with = "json::path_or_null")]
    pub executable: Option<PathBuf>,
    /// The script that names the executable in its first line.
    #[serde(serialize_with = "json::path_or_null")]
    pub script: Option<PathBuf>,
    pub escapes: Option<Vec<elf::Escape>>,
    /// What it did when it was run; an error when it could not be.
    pub used: Option<DriverUsage>,
}

/// Something that keeps a program from being recorded and capped.
pub struct Problem {
    pub text: String,
    /// What to do about it, and how early: the lowest first.
    step: Option<(u8, String)>,
}

impl Problem {
    fn new(text: String) -> Problem {
        Problem { text, step: None }
    }

    fn with(text: String, order: u8, step: impl Into<String>) -> Problem {
        Problem { text, step: Some((order, step.into())) }
    }
}

/// Finds everything that needs no run of the command.
pub fn look(cap: Option<&str>, command: Option<&OsStr>) -> Findings {
    let driver = find_driver();
    let devices = driver.as_ref().map_or(&[][..], |found| &found.devices);
    Findings {
        cap: cap.map(|text| judge_cap(text, devices)),
        command: command.map(|name| {
            let (mut found, name) = (elf::examine(name), name.to_string_lossy().into_owned());
            CommandFound {
                name,
                script: found.as_mut().and_then(|found| found.script.take()),
                escapes: found.as_mut().map(|found| std::mem::take(&mut found.escapes)),
                executable: found.map(|found| found.path),
                used: None,
            }
        }),
        nvml: nvml::ask().map_err(|error| error.to_string()),
        machine: machine::look(),
        switches: recording::look(),
        preload: library::preloaded(),
        shim: find_shim(),
        driver,
    }
}

fn find_driver() -> Result<DriverFound, String> {
    let driver = Driver::open().map_err(|error| error.to_string())?;
    let version = driver.version().map_err(|error| error.to_string())?;
    let devices = driver.devices().map_err(|error| error.to_string())?;
    Ok(DriverFound { version, devices })
}

fn find_shim() -> Result<ShimFound, String> {
    let path = library::find(library::SHIM).map_err(|failure| failure.message)?;
    let coverage = coverage::of(&path).map_err(|error| error.to_string())?;
    Ok(ShimFound { path, coverage })
}

/// 13000 is CUDA 13.0.
pub fn version(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn judge_cap(text: &str, devices: &[GpuDevice]) -> CapFound {
    let text = text.to_string();
    let spec = match capspec::parse(&text) {
        Ok(spec) => spec,
        Err(why) => {
            return CapFound { text, error: Some(why.to_string()), limits: None, ignored: vec![] };
        }
    };
    let limit = |device: &GpuDevice| {
        let cap_bytes = spec.limit(device.ordinal, &device.uuid, device.total_bytes)?;
        Some(LimitFound { ordinal: device.ordinal, cap_bytes })
    };
    let limits = Some(devices.iter().filter_map(limit).collect());
    CapFound { text, error: None, limits, ignored: not_visible(&spec, devices) }
}

fn not_visible(spec: &CapSpec, devices: &[GpuDevice]) -> Vec<String> {
    let name = |target: Target| match target {
        Target::Others => None,
        Target::Ordinal(n) => {
            (!devices.iter().any(|device| device.ordinal == n)).then(|| format!("device {n}"))
        }
        Target::Gpu(id) => (!devices.iter().any(|d| d.uuid == id)).then(|| uuid::text(&id, false)),
        Target::Mig(id) => (!devices.iter().any(|d| d.uuid == id)).then(|| uuid::text(&id, true)),
    };
    spec.rules.iter().filter_map(|rule| name(rule.target)).collect()
}

impl Findings {
    /// What keeps a program from being recorded and capped.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        // A command that runs over the simulated driver needs no other.
        let simulated =
            self.command.as_ref().and_then(|c| c.used.as_ref()).is_some_and(|used| used.simulated);
        if let Err(why) = &self.driver
            && !simulated
        {
            let denied = |node: &&DeviceNode| node.access == Access::Denied;
            let step = match self.machine.nodes.iter().find(denied) {
                Some(node) => format!("let this user read and write {}", node.path.display()),
                None => "install the NVIDIA driver, or try without a GPU: vramtrace demo".into(),
            };
            problems.push(Problem::with(format!("no driver: {why}"), 4, step));
            problems.extend(self.machine.node_problems().into_iter().map(Problem::new));
        }
        if !self.is_simulated() {
            let library = self.nvml.as_ref().ok().map(|nvml| nvml.driver_version.as_str());
            problems.extend(self.machine.version_mismatch(library).map(Problem::new));
        }
        if let Err(why) = &self.shim {
            let step = "install libvramtrace.so beside the command, or name it in VRAMTRACE_LIB";
            problems.push(Problem::with(format!("no recorder: {why}"), 0, step));
        }
        problems.extend(self.switches.problems().into_iter().map(Problem::new));
        for Preloaded { path, problem } in &self.preload {
            let problem = problem.as_ref().map(|why| {
                let text = format!("LD_PRELOAD names {path}: {why}; the loader leaves it out");
                let step = "out of LD_PRELOAD; `vramtrace run` names the right library";
                Problem::with(text, 1, format!("take {path} {step}"))
            });
            problems.extend(problem);
        }
        if let Some(cap) = &self.cap {
            if let Some(why) = &cap.error {
                let step = "correct the cap, for example VRAMTRACE_CAP=8GiB";
                let text = format!("the cap is not understood: {why}");
                problems.push(Problem::with(text, 3, step));
            }
            let ignored = cap.ignored.iter().filter(|_| self.driver.is_ok());
            let text = |device| format!("the cap names {device}, which is not visible");
            problems.extend(ignored.map(text).map(Problem::new));
        }
        if let Some(command) = &self.command {
            command.problems(&mut problems);
        }
        problems
    }

    /// The driver that the loader finds is the simulated one, which is no part of the machine.
    fn is_simulated(&self) -> bool {
        let simulated = |device: &GpuDevice| device.name.starts_with("Simulated ");
        self.driver.as_ref().is_ok_and(|driver| driver.devices.iter().all(simulated))
    }

    /// What a record or a cap will not have here, and what else takes memory, a line each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        match &self.nvml {
            _ if self.driver.is_err() => {}
            Err(_) => notes.push(
                "without NVML the headline is what was recorded, and a cap counts that: contexts \
                 (about 0.5 GiB each) and what the driver takes for itself are in neither"
                    .into(),
            ),
            Ok(nvml) if self.machine.is_wsl || nvml.cards.iter().any(|card| !card.has_figures) => {
                let place = if self.machine.is_wsl { "under WSL2" } else { "here" };
                notes.push(format!(
                    "NVML has no memory by process {place}: the headline is what was recorded, and \
                     a cap counts that; contexts are measured by what the card's use grows, what \
                     the driver takes for itself later is in neither"
                ));
            }
            Ok(_) => {}
        }
        if let Ok(nvml) = &self.nvml {
            notes.extend(nvml.cards.iter().filter_map(in_use));
        }
        if let Ok(driver) = &self.driver {
            notes.extend(self.machine.runtime_too_new(driver.version));
        }
        notes.extend(self.switches.notes());
        let asked = kernel_driver::asked_by(|name| std::env::var(name).ok());
        notes.extend(asked.map(|asked| {
            format!(
                "{asked}: tinygrad's NV backend calls the kernel driver, not libcuda: not recorded, \
                 not capped; with CUDA=1 it is"
            )
        }));
        notes
    }
}

/// The one thing to do first.
pub fn first_step(problems: &[Problem]) -> &str {
    let steps = problems.iter().filter_map(|problem| problem.step.as_ref());
    match steps.min_by_key(|(order, _)| *order) {
        Some((_, step)) => step,
        None if problems.is_empty() => "record a program: vramtrace run python train.py",
        None => "see the problems below",
    }
}

/// A card that others use: a display takes 0.5 to 2 GiB.
fn in_use(card: &Card) -> Option<String> {
    const NOTABLE: u64 = 256 << 20;
    let who = match (card.drawing, card.computing) {
        (0, 0) => "the display or processes that NVML does not list".to_string(),
        (0, n) => several(n as u64, "process").replace("processs", "processes"),
        (_, 0) => "the display".to_string(),
        (_, n) => format!(
            "the display and {}",
            several(n as u64, "process").replace("processs", "processes")
        ),
    };
    let Card { index, used_bytes, .. } = *card;
    (used_bytes >= NOTABLE).then(|| {
        format!("{} of GPU {index} are in use by {who}: a program has the rest", size(used_bytes))
    })
}

impl CommandFound {
    fn problems(&self, problems: &mut Vec<Problem>) {
        let name = &self.name;
        if self.executable.is_none() {
            let text = format!("{name}: no such command, or no executable");
            problems.push(Problem::with(text, 2, format!("give a command that exists: {name}")));
        }
        problems.extend(self.escapes.iter().flatten().map(|escape| {
            let text = format!("{name} {}", escape.explanation());
            match escape.hides_executable() {
                true => {
                    let step = "record a dynamic program: the loader reaches no other";
                    Problem::with(text, 2, step)
                }
                false => Problem::new(text),
            }
        }));
        let Some(used) = &self.used else { return };
        let unrecorded = used.without_shim.iter().map(|Unrecorded { pid, name }| {
            format!("process {pid} ({name}) used the driver without the recorder")
        });
        let second = Escape::SecondDriver.text();
        let second = used.notes.iter().find(|note| *note == second).cloned();
        let passed = used
            .passed
            .iter()
            .map(|api| format!("{api} was called: it is counted, its memory is not followed"));
        problems.extend(unrecorded.chain(second).chain(passed).map(Problem::new));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(ordinal: u32) -> GpuDevice {
        GpuDevice { ordinal, name: "GPU".into(), uuid: [ordinal as u8; 16], total_bytes: 24 << 30 }
    }

    #[test]
    fn a_cap_for_devices_that_are_not_there_is_reported() {
        let id = uuid::text(&[9; 16], false);
        let found = judge_cap(&format!("0=50%,3=1g,{id}=1g"), &[device(0), device(1)]);
        assert_eq!(found.limits, Some(vec![LimitFound { ordinal: 0, cap_bytes: 12 << 30 }]));
        assert_eq!(found.ignored, ["device 3".to_string(), id]);
        assert!(judge_cap("8", &[]).error.unwrap().contains("8GiB"));
    }
}
