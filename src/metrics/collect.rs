//! The series of each process, and those of the node, from what was read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use vramtrace_format::escape::Escape;
use vramtrace_format::live::LiveState;
use vramtrace_format::oom::Cause;
use vramtrace_format::{DeviceId, LiveDevice, LiveOwner, uuid};
use vramtrace_reader::analysis::roles::Role;

use super::cards::Answer;
use super::families::Family;
use super::labels;
use super::passes::Known;
use super::series::{Group, OTHER, Series};
use crate::driver::nvml::cards::CardFacts;
use crate::live_processes::owner;
use crate::live_processes::process::{LiveProcess, ProcessKey, variable};

/// What one look found.
pub struct Found {
    pub processes: Vec<LiveProcess>,
    /// In the order of the processes.
    pub known: Vec<Known>,
    /// Pages that could not be read.
    pub problems: usize,
    pub answer: Option<Answer>,
    pub pass_cpu_s: f64,
    /// Out-of-memory failures by cause, also of processes that have ended.
    pub failures: BTreeMap<&'static str, u64>,
}

/// A process, its labels and its series.
pub type OfProcess = (ProcessKey, Group, Series);

pub fn processes(found: &Found) -> Vec<OfProcess> {
    let now_ns = monotonic_ns();
    let traced = found.processes.iter().zip(&found.known).map(|(process, known)| {
        let group = labels::group(&process.owner, known.cgroup.as_deref());
        let mut series = Series::default();
        of_page(process, now_ns, &mut series);
        of_trace(process, known, &mut series);
        of_nvml(process, known.pid.or(process.pid_here()), found.answer.as_ref(), &mut series);
        (process.key, group, series)
    });
    let mut all: Vec<OfProcess> = traced.collect();
    all.extend(capped_and_not_recorded(found));
    all
}

/// CLOCK_MONOTONIC, which processes of all containers share.
fn monotonic_ns() -> u64 {
    // SAFETY: a structure of our own.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

fn of_page(process: &LiveProcess, now_ns: u64, series: &mut Series) {
    series.put(Family::Processes, "", "", 1.0);
    let has_stopped = process.state == LiveState::NotRecording
        && process.off_by.is_empty()
        && !process.trace.is_empty();
    series.put(Family::RecorderStopped, "", "", f64::from(u8::from(has_stopped)));
    // The clock of another machine's page, or a damaged one.
    let age_ns = now_ns.saturating_sub(process.start_mono_ns.saturating_add(process.updated_ns));
    series.put(Family::PageAge, "", "", age_ns as f64 / 1e9);
    for device in &process.devices {
        let name = labels::device(device);
        let mut put = |family, label: &str, value: u64| {
            series.put(family, &name, label, value as f64);
        };
        put(Family::Used, "", device.counted);
        put(Family::Peak, "", device.peak);
        put(Family::CacheFree, "", device.free_cache);
        put(Family::Refusals, "cap", device.refused_by_cap);
        put(Family::Refusals, "driver", device.refused_by_driver);
        if let Some(cap) = device.cap {
            put(Family::Cap, "", cap);
            let ratio = device.counted as f64 / cap.max(1) as f64;
            series.put(Family::CapRatio, &name, "", ratio);
            for reason in not_in_force(process, device) {
                series.put(Family::CapNotInForce, &name, reason, 1.0);
            }
        }
        by_library(process, device, &name, series);
    }
}

/// Why a cap does not refuse each request above it.
pub fn not_in_force(process: &LiveProcess, device: &LiveDevice) -> Vec<&'static str> {
    // After the others the recorder refuses or still counts.
    let escapes = Escape::DeepBind as u8 | Escape::Namespace as u8;
    let reasons =
        [("warns", device.only_warns), ("calls_bypass_recorder", process.escapes & escapes != 0)];
    reasons.into_iter().filter(|(_, is_so)| *is_so).map(|(reason, _)| reason).collect()
}

/// The libraries of the largest call sites. The rest of the live memory is `other`.
fn by_library(process: &LiveProcess, device: &LiveDevice, name: &str, series: &mut Series) {
    // A framework's blocks lie in memory that is listed too.
    let sums = process.by_library(|site| !site.of_framework && site.ordinal == device.ordinal);
    let known = sums.values().map(|(bytes, _)| *bytes).fold(0, u64::saturating_add);
    for (library, (bytes, _)) in sums {
        let library = if library.is_empty() { "unknown" } else { library };
        series.put(Family::Library, name, &labels::label(library), bytes as f64);
    }
    if device.live > known {
        series.put(Family::Library, name, OTHER, (device.live - known) as f64);
    }
}

fn of_trace(process: &LiveProcess, known: &Known, series: &mut Series) {
    let Some((read, figures)) = &known.trace else { return };
    series.put(Family::TraceAge, "", "", read.elapsed().as_secs_f64());
    let name = |device: DeviceId| {
        let of_page = process.devices.iter().find(|one| one.ordinal == device.0);
        of_page.map_or_else(|| format!("cuda:{}", device.0), labels::device)
    };
    for (device, sums) in &figures.roles {
        for role in Role::ALL.into_iter().filter(|role| sums[role.index()] > 0) {
            let bytes = sums[role.index()] as f64;
            series.put(Family::Role, &name(*device), role.name(), bytes);
        }
    }
    for (device, growth) in &figures.growth {
        series.put(Family::Growth, &name(*device), "", growth.bytes_per_s);
        if let Some(left) = growth.full_in_s {
            series.put(Family::Exhaustion, &name(*device), "", left);
        }
    }
    if let Some(coarsest_ns) = figures.coarsest_ns {
        series.put(Family::Resolution, "", "", coarsest_ns as f64 / 1e9);
    }
    for leak in &figures.leaks {
        series.put(Family::Leaks, &name(leak.device), leak.verdict.name(), 1.0);
    }
    for oom in &figures.ooms {
        series.put(Family::OutOfMemory, &name(oom.device), oom.cause.name(), 1.0);
    }
}

fn of_nvml(process: &LiveProcess, pid: Option<u32>, answer: Option<&Answer>, series: &mut Series) {
    let holds = process.devices.iter().filter(|device| device.counted > 0);
    for device in holds {
        let idle = pid.and_then(|pid| answer?.idle(&device.uuid, pid));
        let name = labels::device(device);
        series.put(Family::IdleKnown, &name, "", f64::from(u8::from(idle.is_some())));
        if let Some(idle) = idle {
            series.put(Family::Idle, &name, "", idle.as_secs_f64());
        }
    }
}

/// Processes that NVML lists, that have a cap in their environment, and that have no page: they run without the
/// recorder.
fn capped_and_not_recorded(found: &Found) -> Vec<OfProcess> {
    let Some(answer) = &found.answer else { return Vec::new() };
    // Elsewhere NVML's pids are those of others.
    if !owner::is_in_first_namespace() {
        return Vec::new();
    }
    let here = found.processes.iter().zip(&found.known);
    let traced: BTreeSet<u32> =
        here.filter_map(|(process, known)| known.pid.or(process.pid_here())).collect();
    let mut all = Vec::new();
    for card in &answer.cards {
        for pid in card.processes.keys().filter(|pid| !traced.contains(pid)) {
            if variable(*pid, "VRAMTRACE_CAP").is_none_or(|cap| cap.is_empty()) {
                continue;
            }
            let executable = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let name = executable.file_name().map(|name| name.to_string_lossy().into_owned());
            let owner = LiveOwner { executable: name.unwrap_or_default(), ..LiveOwner::default() };
            let mut series = Series::default();
            let device = uuid::text(&card.uuid, false);
            series.put(Family::CapNotInForce, &device, "not_recorded", 1.0);
            let key = ProcessKey { user: u32::MAX, pid: *pid, start_ticks: 0, pid_namespace: 0 };
            all.push((key, labels::group(&owner, None), series));
        }
    }
    all
}

pub fn node(found: &Found) -> Series {
    let mut series = Series::default();
    series.put(Family::PageProblems, "", "", found.problems as f64);
    series.put(Family::PassCpu, "", "", found.pass_cpu_s);
    // From the beginning on, so that the first failure is an increase.
    for cause in Cause::ALL {
        let failures = found.failures.get(cause.name()).copied().unwrap_or(0);
        series.put(Family::NodeOutOfMemory, "", cause.name(), failures as f64);
    }
    let Some(answer) = &found.answer else { return series };
    series.put(Family::NvmlAge, "", "", Instant::now().duration_since(answer.at).as_secs_f64());
    for card in &answer.cards {
        let device = uuid::text(&card.uuid, false);
        series.put(Family::GpuUsed, &device, "", card.used as f64);
        series.put(Family::GpuTotal, &device, "", card.total as f64);
        series.put(Family::Untraced, &device, "", untraced(found, card) as f64);
    }
    series
}

/// What is in use on a card beside what its recorded processes count.
pub fn untraced(found: &Found, card: &CardFacts) -> u64 {
    let devices = found.processes.iter().flat_map(|process| &process.devices);
    let on_card = devices.filter(|device| device.uuid == card.uuid);
    let traced = on_card.map(|device| device.counted).fold(0, u64::saturating_add);
    card.used.saturating_sub(traced)
}

pub fn add_folded(node: &mut Series, processes: f64) {
    node.put(Family::Folded, "", "", processes);
}
