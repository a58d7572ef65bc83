//! Threads that read what is new in the traces of running processes, at most once a minute each, and that take at most a
//! stated share of one CPU together. They also find what is slow to find of a process: its pid here and its cgroup.
//!
//! A trace is what its user makes of it: it may take for ever to read, or lie where reading waits. So a thread has the
//! traces of some users alone, and reads each in parts.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vramtrace_format::{DeviceId, Header, cgroup};
use vramtrace_reader::analysis::leaks::Verdict;
use vramtrace_reader::files;

use crate::live_processes::followed::{Followed, FoundLeak, FoundOom, TraceFigures};
use crate::live_processes::places::Places;
use crate::live_processes::process::{self, LiveProcess, ProcessKey};

/// The part of one CPU that the threads take.
const SHARE: f64 = 0.05;
/// Between two looks for processes.
const LOOK: Duration = Duration::from_secs(1);
/// Most threads that read traces.
const READERS: u32 = 64;
/// What is held in memory for the followed traces of a thread, as [`Followed::entries`].
const MOST_ENTRIES: usize = 400_000;
/// CPU time after which a thread goes on with the next trace, seconds.
const SLICE_S: f64 = 0.5;
/// The same for the last reading, and of a thread for a single look; this waits so long for one that does not end.
const ONCE_S: f64 = 20.0;
const ONCE_WAIT: Duration = Duration::from_secs(60);

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
    pub process: LiveProcess,
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
    /// Processes that others saw since the last look: one that ends before the next is read all the same.
    seen: HashMap<ProcessKey, LiveProcess>,
    /// Number of threads that read traces.
    readers: usize,
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
            let mut begun = BTreeSet::new();
            loop {
                for reader in readers(&places) {
                    if !begun.insert(reader) {
                        continue;
                    }
                    locked(&shared).readers = begun.len();
                    let mut followers = Followers::new(reader, every);
                    let (places, shared) = (places.clone(), shared.clone());
                    std::thread::spawn(move || followers.pass_repeatedly(&places, &shared));
                }
                std::thread::sleep(LOOK.min(every));
            }
        });
        passes
    }

    /// Reads all traces now, as far as a single look goes.
    pub fn once(places: &Places) -> Passes {
        let passes = Passes::default();
        passes.lock().findings = Some(Vec::new());
        let (ends, ended) = std::sync::mpsc::channel::<()>();
        for reader in readers(places) {
            let (shared, ends, places) = (passes.shared.clone(), ends.clone(), places.clone());
            std::thread::spawn(move || {
                let mut followers = Followers::new(reader, Duration::ZERO);
                let until_s = cpu_s() + ONCE_S;
                let all = followers.processes(&places).into_iter();
                all.take_while(|_| cpu_s() < until_s)
                    .for_each(|process| followers.read(&process, until_s, &shared));
                drop(ends);
            });
        }
        drop(ends);
        // It says nothing: the last end is that of all threads.
        let _ = ended.recv_timeout(ONCE_WAIT);
        passes
    }

    /// These processes live, or did a moment ago.
    pub fn saw(&self, processes: &[LiveProcess]) {
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
    process: LiveProcess,
    /// `None`: not yet.
    read: Option<Instant>,
    followed: Followed,
    /// Out-of-memory failures, and leaks by device, verdict and line, that were reported.
    failures: usize,
    leaks: HashSet<(DeviceId, Verdict, Option<String>)>,
}

struct Followers {
    reader: u32,
    every: Duration,
    followed: HashMap<ProcessKey, Trace>,
}

/// The threads that are needed, by number.
fn readers(places: &Places) -> BTreeSet<u32> {
    process::users(places).into_iter().map(|user| user % READERS).collect()
}

impl Followers {
    fn new(reader: u32, every: Duration) -> Followers {
        Followers { reader, every, followed: HashMap::new() }
    }

    fn processes(&self, places: &Places) -> Vec<LiveProcess> {
        process::of_users(places, |user| user % READERS == self.reader).0
    }

    fn pass_repeatedly(&mut self, places: &Places, shared: &Mutex<Shared>) {
        lower_priority();
        loop {
            let began = Instant::now();
            self.pass(places, shared);
            std::thread::sleep(LOOK.min(self.every).saturating_sub(began.elapsed()));
        }
    }

    fn pass(&mut self, places: &Places, shared: &Mutex<Shared>) {
        let mut measured = Measured::start();
        // What was seen before this look and is not found by it has ended.
        let is_its = |key: &ProcessKey, _: &mut LiveProcess| key.user % READERS == self.reader;
        let seen: Vec<_> = locked(shared).seen.extract_if(is_its).collect();
        let processes = self.processes(places);
        let living: HashSet<ProcessKey> = processes.iter().map(|process| process.key).collect();
        let seen = seen.into_iter().map(|(_, process)| process);
        for process in seen.chain(processes.iter().cloned()) {
            match self.followed.entry(process.key) {
                Entry::Occupied(mut there) => there.get_mut().process = process,
                Entry::Vacant(place) => drop(place.insert_entry(Trace::of(process))),
            }
        }
        let ended = self.followed.keys().filter(|key| !living.contains(key));
        for key in ended.copied().collect::<Vec<ProcessKey>>() {
            // An out-of-memory is often the last that a process records.
            if let Some(trace) = self.followed.get(&key) {
                let process = LiveProcess { is_here: false, ..trace.process.clone() };
                self.read(&process, cpu_s() + ONCE_S, shared);
            }
            self.followed.remove(&key);
            locked(shared).known.remove(&key);
        }
        measured.rest(shared);
        for process in &processes {
            let read = self.followed.get(&process.key).and_then(|trace| trace.read);
            if read.is_none_or(|read| read.elapsed() >= self.every) {
                self.read(process, cpu_s() + SLICE_S, shared);
                measured.rest(shared);
            }
        }
    }

    /// Reads a trace to its end, or until the thread has spent this CPU time; then it goes on in the next pass.
    fn read(&mut self, process: &LiveProcess, until_s: f64, shared: &Mutex<Shared>) {
        let key = process.key;
        let before = locked(shared).known.get(&key).cloned();
        let mut known = before.unwrap_or_else(|| {
            let pid = process.pid_here().or_else(|| process::find_pid(key));
            Known { pid, cgroup: pid.and_then(cgroup_of), trace: None }
        });
        self.followed.entry(key).or_insert_with(|| Trace::of(process.clone()));
        let is_its = |header: &Header| {
            (header.pid, header.process_start_ticks) == (key.pid, key.start_ticks)
        };
        loop {
            let all: usize = self.followed.values().map(|one| one.followed.entries()).sum();
            let Some(trace) = self.followed.get_mut(&key) else { break };
            let now = Instant::now();
            trace.read = Some(now);
            if all > MOST_ENTRIES {
                // Its history would not fit; it is tried again when others have ended.
                trace.followed = Followed::with_roles();
                break;
            }
            match trace.followed.read(trace_places(process, known.pid), key.user, is_its) {
                Some(false) if cpu_s() < until_s => continue,
                Some(false) => trace.read = None,
                Some(true) => {
                    let figures = trace.followed.figures.clone();
                    known.trace = Some((now, Arc::new(figures.clone())));
                    trace.report(&figures, &known, shared);
                }
                None => {}
            }
            break;
        }
        locked(shared).known.insert(key, known);
    }
}

impl Trace {
    fn of(process: LiveProcess) -> Trace {
        let followed = Followed::with_roles();
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

/// Where the trace is reached from here: that of a container through the root of its process. The page may name any
/// file.
fn trace_places(process: &LiveProcess, pid: Option<u32>) -> Vec<PathBuf> {
    let path = Path::new(&process.trace);
    let Ok(inside) = path.strip_prefix("/") else { return Vec::new() };
    let in_root = pid.map(|pid| PathBuf::from(format!("/proc/{pid}/root")).join(inside));
    // The root of another user's process cannot be read, but its path may be the same here.
    in_root.into_iter().chain([path.to_path_buf()]).collect()
}

/// Rests after work, so that the threads' share of the CPU stays below the bound.
struct Measured {
    began_s: f64,
}

impl Measured {
    fn start() -> Measured {
        Measured { began_s: cpu_s() }
    }

    fn rest(&mut self, shared: &Mutex<Shared>) {
        let took_s = cpu_s() - self.began_s;
        let mut shared = locked(shared);
        shared.cpu_s += took_s;
        let readers = shared.readers.max(1) as f64;
        drop(shared);
        std::thread::sleep(Duration::from_secs_f64(took_s * (readers / SHARE - 1.0)));
        self.began_s = cpu_s();
    }
}
