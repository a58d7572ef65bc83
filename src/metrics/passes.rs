//! A thread that reads what is new in the traces of running processes, at most once a minute each, and that takes at
//! most a stated share of one CPU. It also finds what is slow to find of a process: its pid here and its cgroup.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vramtrace_format::{DeviceId, Header, cgroup};
use vramtrace_reader::analysis::leaks::Verdict;
use vramtrace_reader::files;

use crate::live_processes::followed::{Followed, FoundLeak, FoundOom, TraceFigures};
use crate::live_processes::node::{self, NodeProcess, ProcessKey};
use crate::live_processes::places::Places;

/// The part of one CPU that the thread takes.
const SHARE: f64 = 0.05;
/// Between two looks for processes.
const LOOK: Duration = Duration::from_secs(1);
/// Live allocations of all followed traces together: their histories are held in memory.
const MOST_ALLOCATIONS: usize = 400_000;

/// What is known of a process besides its page.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// In the pid namespace of this process. `None`: not found.
    pub pid: Option<u32>,
    /// The path of its cgroup as it is seen from here.
    pub cgroup: Option<String>,
    /// When its trace was read last, and what it said.
    pub trace: Option<(Instant, Arc<TraceFigures>)>,
}

/// Something new in a trace.
#[derive(Clone, Debug)]
pub struct Finding {
    pub process: NodeProcess,
    pub known: Known,
    pub found: Found,
}

#[derive(Clone, Debug)]
pub enum Found {
    Oom(FoundOom),
    Leak(FoundLeak),
}

#[derive(Default)]
struct Shared {
    known: HashMap<ProcessKey, Known>,
    cpu_s: f64,
    /// Out-of-memory failures of this node, also of processes that have ended.
    failures: BTreeMap<&'static str, u64>,
    /// What was not taken yet. `None`: nobody asks for them.
    findings: Option<Vec<Finding>>,
    /// Processes that others saw since the last pass: one that ends before the next is read all the same.
    seen: HashMap<ProcessKey, NodeProcess>,
}

/// Findings that wait to be taken.
const MOST_FINDINGS: usize = 10_000;

/// Handle of the thread. It ends with the process.
#[derive(Clone, Default)]
pub struct Passes {
    shared: Arc<Mutex<Shared>>,
}

impl Passes {
    /// `every`: the time between two readings of one trace. `findings`: they are kept for [`Passes::take`].
    pub fn start(places: Places, every: Duration, findings: bool) -> Passes {
        let passes = Passes::default();
        passes.lock().findings = findings.then(Vec::new);
        let shared = passes.shared.clone();
        std::thread::spawn(move || {
            lower_priority();
            let mut followers = Followers { every, followed: HashMap::new() };
            loop {
                let began = Instant::now();
                followers.pass(&places, &shared);
                std::thread::sleep(LOOK.min(every).saturating_sub(began.elapsed()));
            }
        });
        passes
    }

    /// Reads all traces now, in this thread.
    pub fn once(places: &Places) -> Passes {
        let passes = Passes::default();
        passes.lock().findings = Some(Vec::new());
        let mut followers = Followers { every: Duration::ZERO, followed: HashMap::new() };
        for process in node::all(places).0 {
            followers.read(&process, &passes.shared);
        }
        passes
    }

    /// These processes live, or did a moment ago.
    pub fn saw(&self, processes: &[NodeProcess]) {
        let processes = processes.iter().map(|process| (process.key, process.clone()));
        self.lock().seen.extend(processes);
    }

    /// What was found since it was asked for last.
    pub fn take(&self) -> Vec<Finding> {
        self.lock().findings.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Out-of-memory failures by cause that were found so far, also of processes that have ended.
    pub fn failures(&self) -> BTreeMap<&'static str, u64> {
        self.lock().failures.clone()
    }

    pub fn known(&self, key: ProcessKey) -> Known {
        self.lock().known.get(&key).cloned().unwrap_or_default()
    }

    /// CPU time that the passes took, seconds.
    pub fn cpu_s(&self) -> f64 {
        self.lock().cpu_s
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        locked(&self.shared)
    }
}

fn locked(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A trace is read when nothing else needs the CPU.
fn lower_priority() {
    const LOWEST: i32 = 19;
    // SAFETY: takes no pointers; without the right to it nothing changes. 0: the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LOWEST) };
}

/// CPU time of this thread, seconds.
fn cpu_s() -> f64 {
    // SAFETY: a structure of our own.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    }
}

/// A process whose trace is followed.
struct Trace {
    process: NodeProcess,
    /// `None`: not yet.
    read: Option<Instant>,
    followed: Followed,
    /// Out-of-memory failures, and leaks by device, verdict and line, that were reported.
    failures: usize,
    leaks: HashSet<(DeviceId, Verdict, Option<String>)>,
}

struct Followers {
    every: Duration,
    followed: HashMap<ProcessKey, Trace>,
}

impl Followers {
    fn pass(&mut self, places: &Places, shared: &Mutex<Shared>) {
        let mut measured = Measured::start();
        let (processes, _) = node::all(places);
        let living: HashSet<ProcessKey> = processes.iter().map(|process| process.key).collect();
        let seen = std::mem::take(&mut locked(shared).seen);
        for process in seen.into_values().chain(processes.iter().cloned()) {
            match self.followed.entry(process.key) {
                Entry::Occupied(mut there) => there.get_mut().process = process,
                Entry::Vacant(place) => drop(place.insert_entry(Trace::of(process))),
            }
        }
        let ended = self.followed.keys().filter(|key| !living.contains(key));
        for key in ended.copied().collect::<Vec<ProcessKey>>() {
            // An out-of-memory is often the last that a process records.
            if let Some(trace) = self.followed.get(&key) {
                let process = NodeProcess { pid: None, ..trace.process.clone() };
                self.read(&process, shared);
            }
            self.followed.remove(&key);
            locked(shared).known.remove(&key);
        }
        measured.rest(shared);
        for process in &processes {
            let read = self.followed.get(&process.key).and_then(|trace| trace.read);
            if read.is_none_or(|read| read.elapsed() >= self.every) {
                self.read(process, shared);
                measured.rest(shared);
            }
        }
    }

    fn read(&mut self, process: &NodeProcess, shared: &Mutex<Shared>) {
        let key = process.key;
        let before = locked(shared).known.get(&key).cloned();
        let mut known = before.unwrap_or_else(|| {
            let pid = process.pid.or_else(|| node::find_pid(key));
            Known { pid, cgroup: pid.and_then(cgroup_of), trace: None }
        });
        let all: usize = self.followed.values().map(|one| one.followed.live_allocations()).sum();
        let trace = self.followed.entry(key).or_insert_with(|| Trace::of(process.clone()));
        let now = Instant::now();
        trace.read = Some(now);
        if all > MOST_ALLOCATIONS {
            // Its history would not fit; it is tried again when others have ended.
            trace.followed = Followed::default();
        } else if let Some(path) = trace_path(process, known.pid) {
            let is_its = |header: &Header| {
                (header.pid, header.process_start_ticks) == (key.pid, key.start_ticks)
            };
            if let Some(figures) = trace.followed.read(&path, is_its).cloned() {
                known.trace = Some((now, Arc::new(figures.clone())));
                trace.report(&figures, &known, shared);
            }
        }
        locked(shared).known.insert(key, known);
    }
}

impl Trace {
    fn of(process: NodeProcess) -> Trace {
        let followed = Followed::default();
        Trace { process, read: None, followed, failures: 0, leaks: HashSet::new() }
    }

    /// Reports what is new in the figures.
    fn report(&mut self, figures: &TraceFigures, known: &Known, shared: &Mutex<Shared>) {
        let mut found = Vec::new();
        let mut shared = locked(shared);
        for oom in figures.ooms.iter().skip(self.failures) {
            *shared.failures.entry(oom.cause.name()).or_default() += 1;
            found.push(Found::Oom(*oom));
        }
        self.failures = self.failures.max(figures.ooms.len());
        for leak in &figures.leaks {
            if self.leaks.insert((leak.device, leak.verdict, leak.line.clone())) {
                found.push(Found::Leak(leak.clone()));
            }
        }
        let Some(findings) = &mut shared.findings else { return };
        let room = MOST_FINDINGS.saturating_sub(findings.len());
        findings.extend(found.into_iter().take(room).map(|found| Finding {
            process: self.process.clone(),
            known: known.clone(),
            found,
        }));
    }
}

fn cgroup_of(pid: u32) -> Option<String> {
    let text = files::read_kernel(format!("/proc/{pid}/cgroup")).ok()?;
    cgroup::path(&String::from_utf8_lossy(&text)).map(String::from)
}

/// The trace as it is reached from here: that of a container through the root of its process. It must be a file of the
/// process's user, since the page may name any file.
fn trace_path(process: &NodeProcess, pid: Option<u32>) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let path = Path::new(&process.trace);
    if !path.is_absolute() {
        return None;
    }
    let in_root = pid.map(|pid| {
        let inside = path.strip_prefix("/").unwrap_or(path);
        Path::new("/proc").join(pid.to_string()).join("root").join(inside)
    });
    let is_of_user = |path: &PathBuf| {
        std::fs::metadata(path)
            .is_ok_and(|about| about.uid() == process.key.user && about.is_file())
    };
    // The root of another user's process cannot be read, but its path may be the same here.
    [in_root, Some(path.to_path_buf())].into_iter().flatten().find(is_of_user)
}

/// Rests after work, so that the thread's share of the CPU stays below the bound.
struct Measured {
    began_s: f64,
}

impl Measured {
    fn start() -> Measured {
        Measured { began_s: cpu_s() }
    }

    fn rest(&mut self, shared: &Mutex<Shared>) {
        let took_s = cpu_s() - self.began_s;
        locked(shared).cpu_s += took_s;
        std::thread::sleep(Duration::from_secs_f64(took_s * (1.0 / SHARE - 1.0)));
        self.began_s = cpu_s();
    }
}
