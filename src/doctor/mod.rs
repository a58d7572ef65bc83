//! Examines driver, NVML, recorder, LD_PRELOAD, cap and command for `vramtrace doctor`, which prints the findings.

pub mod coverage;
pub mod machine;
pub mod recording;
pub mod usage;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use vramtrace_format::capspec::{self, CapSpec, Target};
use vramtrace_format::escape::Escape;
use vramtrace_format::uuid;

use crate::driver::nvml::{self, Card, Nvml};
use crate::driver::{Driver, GpuDevice};
use crate::launch::elf::{self, Executable};
use crate::launch::library;
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
#[derive(Debug)]
pub struct Findings {
    pub driver: Result<DriverFound, String>,
    pub nvml: Result<Nvml, String>,
    pub machine: Machine,
    pub switches: Switches,
    pub shim: Result<ShimFound, String>,
    pub cap: Option<CapFound>,
    /// What LD_PRELOAD names already, each with what keeps the loader from taking it.
    pub preload: Vec<(PathBuf, Option<String>)>,
    pub command: Option<CommandFound>,
}

#[derive(Debug)]
pub struct DriverFound {
    pub version: u32,
    pub devices: Vec<GpuDevice>,
}

#[derive(Debug)]
pub struct ShimFound {
    pub path: PathBuf,
    pub coverage: Coverage,
}

/// The cap that VRAMTRACE_CAP or `--cap` would set.
#[derive(Debug)]
pub struct CapFound {
    pub text: String,
    /// Bytes by ordinal, or what is wrong with the text.
    pub limits: Result<Vec<(u32, u64)>, String>,
    /// Devices that it names and that are not visible.
    pub ignored: Vec<String>,
}

#[derive(Debug)]
pub struct CommandFound {
    pub name: OsString,
    /// `None`: no such command.
    pub executable: Option<Executable>,
    /// What it did when it was run; an error when it could not be.
    pub used: Option<DriverUsage>,
}

/// Finds everything that needs no run of the command.
pub fn look(cap: Option<&str>, command: Option<&OsStr>) -> Findings {
    let driver = find_driver();
    let devices = driver.as_ref().map_or(&[][..], |found| &found.devices);
    Findings {
        cap: cap.map(|text| judge_cap(text, devices)),
        command: command.map(|name| CommandFound {
            name: name.into(),
            executable: elf::examine(name),
            used: None,
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

fn judge_cap(text: &str, devices: &[GpuDevice]) -> CapFound {
    let spec = capspec::parse(text);
    let ignored = spec.as_ref().map_or(Vec::new(), |spec| not_visible(spec, devices));
    let limits = spec.map_err(|error| error.to_string()).map(|spec| {
        let limit = |device: &GpuDevice| {
            Some((device.ordinal, spec.limit(device.ordinal, &device.uuid, device.total_bytes)?))
        };
        devices.iter().filter_map(limit).collect()
    });
    CapFound { text: text.into(), limits, ignored }
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
    /// What keeps a program from being recorded and capped, a line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        // A command that runs over the simulated driver needs no other.
        let simulated =
            self.command.as_ref().and_then(|c| c.used.as_ref()).is_some_and(|used| used.simulated);
        if let Err(why) = &self.driver
            && !simulated
        {
            problems.push(format!("no driver: {why}"));
            problems.extend(self.machine.node_problems());
        }
        if !self.is_simulated() {
            let library = self.nvml.as_ref().ok().map(|nvml| nvml.driver_version.as_str());
            problems.extend(self.machine.version_mismatch(library));
        }
        if let Err(why) = &self.shim {
            problems.push(format!("no recorder: {why}"));
        }
        problems.extend(self.switches.problems());
        for (path, why) in &self.preload {
            if let Some(why) = why {
                problems.push(format!(
                    "LD_PRELOAD names {}: {why}; the loader leaves it out",
                    path.display()
                ));
            }
        }
        if let Some(cap) = &self.cap {
            if let Err(why) = &cap.limits {
                problems.push(format!("the cap is not understood: {why}"));
            }
            if self.driver.is_ok() {
                let ignored = cap.ignored.iter();
                problems.extend(
                    ignored.map(|device| format!("the cap names {device}, which is not visible")),
                );
            }
        }
        if let Some(command) = &self.command {
            command.problems(&mut problems);
        }
        problems
    }
}

impl Findings {
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

    /// The one thing to do first.
    pub fn first_step(&self) -> String {
        let used = self.command.as_ref().and_then(|command| command.used.as_ref());
        if self.shim.is_err() {
            return "install libvramtrace.so beside the command, or name it in VRAMTRACE_LIB"
                .into();
        }
        if let Some((path, _)) = self.preload.iter().find(|(_, why)| why.is_some()) {
            return format!(
                "take {} out of LD_PRELOAD; `vramtrace run` names the right library",
                path.display()
            );
        }
        if let Some(command) = &self.command {
            match &command.executable {
                None => return format!("give a command that exists: {}", command.name.display()),
                Some(executable)
                    if executable.escapes.iter().any(|escape| escape.hides_executable()) =>
                {
                    return "record a dynamic program: the loader reaches no other".into();
                }
                Some(_) => {}
            }
        }
        if let Some(cap) = &self.cap
            && cap.limits.is_err()
        {
            return "correct the cap, for example VRAMTRACE_CAP=8GiB".into();
        }
        if self.driver.is_err() && !used.is_some_and(|used| used.simulated) {
            let denied = |node: &DeviceNode| node.access == Access::Denied;
            return match self.machine.nodes.iter().find(|node| denied(node)) {
                Some(node) => format!("let this user read and write {}", node.path.display()),
                None => "install the NVIDIA driver, or try without a GPU: vramtrace demo".into(),
            };
        }
        if self.problems().is_empty() {
            "record a program: vramtrace run python train.py".into()
        } else {
            "see the problems below".into()
        }
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
    fn problems(&self, problems: &mut Vec<String>) {
        let name = self.name.display();
        match &self.executable {
            None => problems.push(format!("{name}: no such command, or no executable")),
            Some(executable) => problems
                .extend(executable.escapes.iter().map(|e| format!("{name} {}", e.explanation()))),
        }
        let Some(used) = &self.used else { return };
        for (pid, name) in &used.without_shim {
            problems.push(format!("process {pid} ({name}) used the driver without the recorder"));
        }
        let second = Escape::SecondDriver.text();
        if used.notes.iter().any(|note| note == second) {
            problems.push(second.into());
        }
        for api in &used.passed {
            problems.push(format!("{api} was called: it is counted, its memory is not followed"));
        }
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
        assert_eq!(found.limits, Ok(vec![(0, 12 << 30)]));
        assert_eq!(found.ignored, ["device 3".to_string(), id]);
        assert!(judge_cap("8", &[]).limits.unwrap_err().contains("8GiB"));
    }
}
