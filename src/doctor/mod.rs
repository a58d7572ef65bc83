//! The checks of `vramtrace doctor`: recorder, LD_PRELOAD, cap, driver, NVML, and a command.

pub mod machine;
pub mod usage;

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libloading::Library;
use serde::Serialize;
use vramtrace_format::SwitchedBy;
use vramtrace_format::capspec::{self, Target};
use vramtrace_format::host_switch::{self, HOST_FILE};
use vramtrace_format::uuid;
use vramtrace_reader::units::{limit, several, size};

use crate::driver::nvml::{CardFacts, Cards};
use crate::driver::{self, GpuDevice};
use crate::launch::elf;
use crate::launch::library;
use crate::live_processes::places::PageLocations;
use crate::live_processes::process;
use machine::Machine;

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub status: Status,
    pub message: String,
    /// What to do about a problem.
    #[serde(skip)]
    pub step: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It keeps a program from being recorded or capped.
    Problem,
    /// What a record or a cap will not have, or what else takes memory.
    Note,
    Ok,
}

impl Check {
    fn new(name: &'static str, status: Status, message: impl Into<String>) -> Check {
        Check { name, status, message: message.into(), step: None }
    }

    fn ok(name: &'static str, message: impl Into<String>) -> Check {
        Check::new(name, Status::Ok, message)
    }

    fn note(name: &'static str, message: impl Into<String>) -> Check {
        Check::new(name, Status::Note, message)
    }

    fn problem(name: &'static str, message: impl Into<String>) -> Check {
        Check::new(name, Status::Problem, message)
    }

    fn with_step(self, step: impl Into<String>) -> Check {
        Check { step: Some(step.into()), ..self }
    }
}

/// Everything that needs no run of the command; what is to be done first comes first. `simulated`: the command runs over
/// the simulated driver, and needs no other.
pub fn look(cap: Option<&str>, command: Option<&OsStr>, simulated: bool) -> Vec<Check> {
    let mut checks = vec![recorder()];
    checks.extend(library::preloaded().into_iter().map(preloaded));
    checks.extend(command.into_iter().flat_map(executable));
    let driver = if simulated { Ok(Vec::new()) } else { driver(&mut checks) };
    let devices = driver.as_deref().unwrap_or_default();
    checks.extend(cap.into_iter().flat_map(|cap| judge_cap(cap, devices)));
    if let Err(why) = &driver {
        checks.extend(no_driver(why));
    }
    checks.extend(switches());
    checks
}

/// The recorder, and how many functions of the driver its table has.
fn recorder() -> Check {
    let found = || -> Result<String, String> {
        let path = library::find(library::SHIM).map_err(|failure| failure.message)?;
        Ok(format!("{}; {}", path.display(), coverage(&table(&path)?)))
    };
    match found() {
        Ok(found) => Check::ok("recorder", found),
        Err(why) => Check::problem("recorder", format!("no recorder: {why}"))
            .with_step("install libvramtrace.so beside the command, or name it in VRAMTRACE_LIB"),
    }
}

/// The recorder's table, a line a function: name, since, section and hook, separated by tabs. Loading the library starts
/// no recording.
fn table(library: &Path) -> Result<String, String> {
    let wrong = |error| driver::loading(&error);
    // SAFETY: our own library, which has no initialiser that touches anything but itself; the
    // text that it returns is a constant that ends with NUL.
    unsafe {
        let library = Library::new(library).map_err(wrong)?;
        let ask = library.get::<extern "C" fn() -> *const c_char>(b"vramtrace_coverage");
        let ask = ask.map_err(|error| format!("{}; is it of another version?", wrong(error)))?;
        Ok(CStr::from_ptr(ask()).to_string_lossy().into_owned())
    }
}

fn coverage(table: &str) -> String {
    let noted = table.lines().filter(|line| line.ends_with("\tnote")).count();
    let all = table.lines().count();
    format!("{all} entry points: {} followed, {noted} noted", all - noted)
}

fn preloaded((path, problem): (String, Option<String>)) -> Check {
    match problem {
        None => Check::ok("preload", format!("LD_PRELOAD names {path}")),
        Some(why) => {
            let text = format!("LD_PRELOAD names {path}: {why}; the loader leaves it out");
            Check::problem("preload", text).with_step(format!(
                "take {path} out of LD_PRELOAD; `vramtrace run` names the right library"
            ))
        }
    }
}

fn executable(command: &OsStr) -> Vec<Check> {
    let name = command.to_string_lossy();
    let Some(found) = elf::examine(command) else {
        let text = format!("{name}: no such command, or no executable");
        return vec![
            Check::problem("command", text)
                .with_step(format!("give a command that exists: {name}")),
        ];
    };
    let mut checks = vec![Check::ok("command", found.path.display().to_string())];
    checks.extend(found.escapes.iter().map(|escape| {
        let check = Check::problem("command", format!("{name} {}", escape.explanation()));
        match escape.hides_executable() {
            true => check.with_step("record a dynamic program: the loader reaches no other"),
            false => check,
        }
    }));
    checks
}

/// The devices that the driver has. What NVML adds to them is checked too.
fn driver(checks: &mut Vec<Check>) -> Result<Vec<GpuDevice>, driver::Error> {
    let (version, devices) = driver::devices()?;
    let (major, minor) = (version / 1000, version % 1000 / 10);
    let count = several(devices.len() as u64, "device");
    checks.push(Check::ok("driver", format!("CUDA {major}.{minor}, {count}")));
    checks.extend(devices.iter().map(|device| {
        let GpuDevice { ordinal, name, uuid, total_bytes } = device;
        let (uuid, total) = (uuid::text(uuid, false), size(*total_bytes));
        Check::ok("device", format!("{ordinal}: {name}, {uuid}, {total}"))
    }));
    // The simulated driver is no part of the machine.
    let simulated = devices.iter().all(|device| device.name.starts_with("Simulated "));
    checks.extend(nvml((!simulated).then(Machine::look).as_ref()));
    Ok(devices)
}

fn nvml(machine: Option<&Machine>) -> Vec<Check> {
    let asked = || -> Result<_, driver::Error> {
        let mut cards = Cards::open()?;
        Ok((cards.driver_version()?, cards.read()?))
    };
    let (version, cards) = match asked() {
        Ok(answer) => answer,
        Err(why) => {
            let text = format!(
                "without NVML ({why}) the headline is what was recorded, and a cap counts that: contexts \
                 (about 0.5 GiB each) and what the driver takes for itself are in neither"
            );
            return vec![Check::note("nvml", text)];
        }
    };
    let mut checks = vec![Check::ok("nvml", format!("NVML {version}"))];
    let is_wsl = machine.is_some_and(|machine| machine.is_wsl);
    let mut processes = cards.iter().flat_map(|card| card.processes.values());
    if is_wsl || processes.any(|process| process.bytes.is_none()) {
        let place = if is_wsl { "under WSL2" } else { "here" };
        let text = format!(
            "NVML has no memory by process {place}: the headline is what was recorded, and \
             a cap counts that; contexts are measured by what the card's use grows, what \
             the driver takes for itself later is in neither"
        );
        checks.push(Check::note("nvml", text));
    }
    checks.extend(cards.iter().filter_map(in_use));
    checks.extend(machine.and_then(|machine| machine.version_mismatch(&version)));
    checks
}

/// A card that others use: a display takes 0.5 to 2 GiB.
fn in_use(card: &CardFacts) -> Option<Check> {
    const NOTABLE: u64 = 256 << 20;
    let who = match card.processes.len() {
        0 => "the display or processes that NVML does not list".to_string(),
        1 => "1 process".to_string(),
        n => format!("{n} processes"),
    };
    let CardFacts { index, used, .. } = *card;
    (used >= NOTABLE).then(|| {
        let used = size(used);
        let text = format!("{used} of GPU {index} are in use by {who}: a program has the rest");
        Check::note("device", text)
    })
}

fn no_driver(why: &driver::Error) -> Vec<Check> {
    let machine = Machine::look();
    let step = match machine.denied() {
        Some(node) => format!("let this user read and write {}", node.display()),
        None => "install the NVIDIA driver, or try without a GPU: vramtrace demo".into(),
    };
    let mut checks = vec![Check::problem("driver", format!("no driver: {why}")).with_step(step)];
    checks.extend(machine.node_problems());
    checks
}

/// `devices`: the visible ones; none if they are not known.
fn judge_cap(text: &str, devices: &[GpuDevice]) -> Vec<Check> {
    let spec = match capspec::parse(text) {
        Ok(spec) => spec,
        Err(why) => {
            let check = Check::problem("cap", format!("the cap is not understood: {why}"));
            return vec![check.with_step("correct the cap, for example VRAMTRACE_CAP=8GiB")];
        }
    };
    let of = |device: &GpuDevice| {
        let bytes = spec.limit(device.ordinal, &device.uuid, device.total_bytes)?;
        Some(format!("; device {}: {}", device.ordinal, limit(bytes)))
    };
    let limits: String = devices.iter().filter_map(of).collect();
    let mut checks = vec![Check::ok("cap", format!("{text}{limits}"))];
    let has = |is_it: &dyn Fn(&GpuDevice) -> bool| devices.is_empty() || devices.iter().any(is_it);
    let missing = |target| match target {
        Target::Ordinal(n) if !has(&|device| device.ordinal == n) => Some(format!("device {n}")),
        Target::Gpu(id) if !has(&|device| device.uuid == id) => Some(uuid::text(&id, false)),
        Target::Mig(id) if !has(&|device| device.uuid == id) => Some(uuid::text(&id, true)),
        _ => None,
    };
    checks.extend(spec.rules.iter().filter_map(|rule| missing(rule.target)).map(|device| {
        Check::problem("cap", format!("the cap names {device}, which is not visible"))
    }));
    checks
}

/// What switches the recording off: files of the host and of the user, and orders to running processes.
fn switches() -> Vec<Check> {
    let user =
        PageLocations::of_environment().runtime.map(|runtime| host_switch::of_user(&runtime));
    let files = [Some(PathBuf::from(HOST_FILE)), user].into_iter().flatten();
    let of_file = |file: PathBuf| {
        let (about, file) = (file.symlink_metadata().ok()?, file.display());
        Some(match host_switch::check(about.mode(), about.uid(), process::user()) {
            Ok(()) => {
                let text = format!("recording is off: {file} exists; remove it to record");
                Check::problem("switch", text)
            }
            Err(why) => {
                let text = format!("{file}: {why}; it does not switch the recording off");
                Check::note("switch", text)
            }
        })
    };
    let (processes, _) = process::all();
    let is_off = |process: &process::LiveProcess| process.off_by.contains(&SwitchedBy::Order);
    let off = processes.into_iter().filter(is_off).map(|process| {
        let pid = process.pid;
        let text = format!("recording is off in process {pid}: vramtrace record on --pid {pid}");
        Check::note("switch", text)
    });
    files.filter_map(of_file).chain(off).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_for_devices_that_are_not_there_is_a_problem() {
        let device = |ordinal: u32| GpuDevice {
            ordinal,
            name: "GPU".into(),
            uuid: [ordinal as u8; 16],
            total_bytes: 24 << 30,
        };
        let id = uuid::text(&[9; 16], false);
        let found = judge_cap(&format!("0=50%,3=1g,{id}=1g"), &[device(0), device(1)]);
        let [limits, third, unknown] = &found[..] else { panic!("{found:?}") };
        assert!(limits.message.ends_with("; device 0: 12.00 GiB"), "{found:?}");
        assert_eq!(third.message, "the cap names device 3, which is not visible");
        assert!(unknown.message.contains(&id) && unknown.status == Status::Problem);
        assert!(judge_cap("8", &[])[0].message.contains("8GiB"));
    }

    #[test]
    fn functions_are_counted_by_their_hook() {
        let text = "cuMemAlloc_v2\t3020\tA. Takes\talloc::mem_alloc\n\
                    cuNew\t13000\tL. Others\tnote\n";
        let summary = "2 entry points: 1 followed, 1 noted";
        assert_eq!(coverage(text), summary);
    }
}
