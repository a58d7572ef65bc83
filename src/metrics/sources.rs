//! What a scrape reads: live pages now, and what the threads found last. The series of each process, and those of the
//! node.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use vramtrace_format::escape::Escape;
use vramtrace_format::live::LiveState;
use vramtrace_format::oom::OomCause;
use vramtrace_format::{DeviceId, LiveDevice, LiveOwner, uuid};
use vramtrace_reader::analysis::roles::Role;

use super::cards::{self, NvmlAnswer};
use super::families::Family;
use super::passes::{Passes, ProcessDetails};
use super::series::{self, Counters, Labels, Series};
use crate::live_processes::background::Background;
use crate::live_processes::owner;
use crate::live_processes::places::PageLocations;
use crate::live_processes::process::{self, LiveProcess, ProcessKey, variable};

pub struct Sources {
    places: PageLocations,
    passes: Passes,
    cards: Background<Option<NvmlAnswer>>,
    counters: Mutex<Counters>,
}

/// How long a single look waits for the traces, and then for NVML.
const TRACES_WAIT: Duration = Duration::from_secs(60);
const NVML_WAIT: Duration = Duration::from_secs(2);

impl Sources {
    /// Starts the threads. `once`: for a single look, all traces are read now, and NVML is waited for.
    pub fn start(once: bool) -> Sources {
        let places = PageLocations::of_environment();
        let (passes, cards) = (Passes::start(places.clone(), once), cards::watch());
        if once {
            let (processes, _) = process::of_users(&places, |_| true);
            let began = Instant::now();
            let is_read = |process: &LiveProcess| passes.known(process.key).is_read;
            while !processes.iter().all(is_read) && began.elapsed() < TRACES_WAIT {
                std::thread::sleep(Duration::from_millis(10));
            }
            cards.wait(NVML_WAIT, Option::is_some);
        }
        Sources { places, passes, cards, counters: Mutex::default() }
    }

    /// The metrics now.
    pub fn text(&self) -> String {
        // One at a time: the counters go from one look to the next.
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let (processes, problems) = process::of_users(&self.places, |_| true);
        let answer = self.cards.latest();
        let (mut all, mut pids) = (Vec::new(), BTreeSet::new());
        for process in &processes {
            let known = self.passes.known(process.key);
            let pid = known.pid.or(process.pid_here());
            pids.extend(pid);
            let mut series = Series::default();
            of_page(process, &mut series);
            of_trace(process, &known, &mut series);
            of_nvml(process, pid, answer.as_ref(), &mut series);
            all.push((process.key, Labels::of(&process.owner, known.cgroup.as_deref()), series));
        }
        let mut node = Series::default();
        if let Some(answer) = &answer {
            all.extend(capped_and_not_recorded(answer, &pids));
            of_cards(answer, &processes, &mut node);
        }
        node.put(Family::PageProblems, "", "", problems.len() as f64);
        node.put(Family::PassCpu, "", "", self.passes.cpu_s());
        let failures = self.passes.failures();
        // From the beginning on, so that the first failure is an increase.
        for cause in OomCause::ALL {
            let failures = failures.get(cause.name()).copied().unwrap_or(0);
            node.put(Family::NodeOutOfMemory, "", cause.name(), failures as f64);
        }
        let (groups, left_out) = series::largest(counters.grouped(all));
        node.put(Family::LeftOut, "", "", left_out);
        series::encode(&groups, &node)
    }
}

fn of_page(process: &LiveProcess, series: &mut Series) {
    series.put(Family::Processes, "", "", 1.0);
    let has_stopped = process.state == LiveState::NotRecording
        && process.off_by.is_empty()
        && !process.trace.is_empty();
    series.put(Family::RecorderStopped, "", "", f64::from(u8::from(has_stopped)));
    // The clock of another machine's page, or a damaged one.
    let stored_ns = process.start_mono_ns.saturating_add(process.updated_ns);
    // CLOCK_MONOTONIC, which processes of all containers share.
    let now = clock_gettime(ClockId::Monotonic);
    let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let age_ns = now_ns.saturating_sub(stored_ns);
    series.put(Family::PageAge, "", "", age_ns as f64 / 1e9);
    // After the others the recorder refuses or still counts.
    let bypassed = process.escapes & (Escape::DeepBind as u8 | Escape::Namespace as u8) != 0;
    for device in &process.devices {
        let name = series::device(device);
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
            if device.only_warns {
                put(Family::CapNotInForce, "warns", 1);
            }
            if bypassed {
                put(Family::CapNotInForce, "calls_bypass_recorder", 1);
            }
            let ratio = device.counted as f64 / cap.max(1) as f64;
            series.put(Family::CapRatio, &name, "", ratio);
        }
        by_library(process, device, &name, series);
    }
}

/// The libraries of the largest call sites. The rest of the live memory is `other`.
fn by_library(process: &LiveProcess, device: &LiveDevice, name: &str, series: &mut Series) {
    // A framework's blocks lie in memory that is listed too.
    let sums = process.by_library(|site| !site.of_framework && site.ordinal == device.ordinal);
    let known = sums.values().map(|(bytes, _)| *bytes).fold(0, u64::saturating_add);
    for (library, (bytes, _)) in sums {
        let library = if library.is_empty() { "unknown" } else { library };
        series.put(Family::Library, name, &series::label(library), bytes as f64);
    }
    if device.live > known {
        series.put(Family::Library, name, "other", (device.live - known) as f64);
    }
}

fn of_trace(process: &LiveProcess, known: &ProcessDetails, series: &mut Series) {
    let Some((read, figures)) = &known.trace else { return };
    series.put(Family::TraceAge, "", "", read.elapsed().as_secs_f64());
    let mut put = |family, of: DeviceId, label, value| {
        let of_page = process.devices.iter().find(|one| one.ordinal == of.0);
        let device = of_page.map_or_else(|| format!("cuda:{}", of.0), series::device);
        series.put(family, &device, label, value);
    };
    for (device, sums) in &figures.roles {
        for role in Role::ALL.into_iter().filter(|role| sums[role.index()] > 0) {
            put(Family::Role, *device, role.name(), sums[role.index()] as f64);
        }
    }
    for (device, growth) in &figures.growth {
        put(Family::Growth, *device, "", growth.bytes_per_s);
        if let Some(left) = growth.full_in_s {
            put(Family::Exhaustion, *device, "", left);
        }
    }
    for (device, verdict) in &figures.leaks {
        put(Family::Leaks, *device, verdict.name(), 1.0);
    }
    for (device, cause) in &figures.ooms {
        put(Family::OutOfMemory, *device, cause.name(), 1.0);
    }
    if let Some(coarsest_ns) = figures.coarsest_ns {
        series.put(Family::Resolution, "", "", coarsest_ns as f64 / 1e9);
    }
}

fn of_nvml(
    process: &LiveProcess,
    pid: Option<u32>,
    answer: Option<&NvmlAnswer>,
    series: &mut Series,
) {
    for device in process.devices.iter().filter(|device| device.counted > 0) {
        let idle = pid.and_then(|pid| answer?.idle(&device.uuid, pid));
        let name = series::device(device);
        series.put(Family::IdleKnown, &name, "", f64::from(u8::from(idle.is_some())));
        if let Some(idle) = idle {
            series.put(Family::Idle, &name, "", idle.as_secs_f64());
        }
    }
}

/// Processes that NVML lists, that have a cap in their environment, and that have no page: they run without the
/// recorder.
fn capped_and_not_recorded(
    answer: &NvmlAnswer,
    recorded: &BTreeSet<u32>,
) -> Vec<(ProcessKey, Labels, Series)> {
    let mut all = Vec::new();
    // Elsewhere NVML's pids are those of others.
    if !owner::is_in_first_namespace() {
        return all;
    }
    for card in &answer.cards {
        for pid in card.processes.keys().filter(|pid| !recorded.contains(pid)) {
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
            all.push((key, Labels::of(&owner, None), series));
        }
    }
    all
}

fn of_cards(answer: &NvmlAnswer, processes: &[LiveProcess], node: &mut Series) {
    node.put(Family::NvmlAge, "", "", answer.at.elapsed().as_secs_f64());
    for card in &answer.cards {
        let of_processes = processes.iter().flat_map(|process| &process.devices);
        let on_card = of_processes.filter(|device| device.uuid == card.uuid);
        let recorded = on_card.map(|device| device.counted).fold(0, u64::saturating_add);
        let device = uuid::text(&card.uuid, false);
        node.put(Family::GpuUsed, &device, "", card.used as f64);
        node.put(Family::GpuTotal, &device, "", card.total as f64);
        node.put(Family::Untraced, &device, "", card.used.saturating_sub(recorded) as f64);
    }
}
