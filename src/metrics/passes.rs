//! Threads that read what is new in the traces of running processes, at most once a minute each, and that take at most a
//! stated share of one CPU together. They also find what is slow to find of a process: its pid here and its cgroup.
//!
//! A trace is what its user makes of it: it may take for ever to read, or lie where reading waits. So a thread has the
//! traces of some users alone, and reads each in parts.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use vramtrace_format::Header;

use crate::live_processes::followed::{Followed, TraceFigures};
use crate::live_processes::places::PageLocations;
use crate::live_processes::process::{self, LiveProcess, ProcessKey};

/// The part of one CPU that the threads take.
const SHARE: f64 = 0.05;
/// Between two readings of one trace, and between two looks for processes.
const EVERY: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_secs(1);
/// Maximum number of threads that read traces.
const MAX_READERS: u32 = 64;
/// Maximum number of entries in memory for the followed traces of a thread, as [`Followed::entries`].
const MAX_ENTRIES: usize = 400_000;
/// CPU time after which a thread goes on with the next trace, and the same for the last reading and in a hurry, seconds.
const SLICE_S: f64 = 0.5;
const LAST_S: f64 = 20.0;

/// What is known of a process besides its page.
#[derive(Clone, Debug, Default)]
pub struct ProcessDetails {
    /// In the pid namespace of this process. `None`: not found.
    pub pid: Option<u32>,
    /// The path of its cgroup as it is seen from here.
    pub cgroup: Option<String>,
    /// When its trace was read last, and what it said.
    pub trace: Option<(Instant, Arc<TraceFigures>)>,
    /// Its trace was read to its end, or cannot be read.
    pub is_read: bool,
}

#[derive(Default)]
struct Shared {
    known: HashMap<ProcessKey, ProcessDetails>,
    cpu_s: f64,
    /// Out-of-memory failures of this node, also of processes that have ended.
    failures: BTreeMap<&'static str, u64>,
    /// Number of threads that read traces.
    readers: usize,
}

/// Handle of the threads. They end with the process.
#[derive(Clone, Default)]
pub struct Passes(Arc<Mutex<Shared>>);

impl Passes {
    /// `hurry`: without rests.
    pub fn start(places: PageLocations, hurry: bool) -> Passes {
        let passes = Passes::default();
        let shared = passes.clone();
        std::thread::spawn(move || {
            let mut begun = BTreeSet::new();
            loop {
                for user in process::users(&places) {
                    let number = user % MAX_READERS;
                    if begun.insert(number) {
                        shared.lock().readers = begun.len();
                        let (places, passes) = (places.clone(), shared.clone());
                        let followed = HashMap::new();
                        let reader = Reader { number, hurry, places, passes, followed };
                        std::thread::spawn(move || reader.pass_repeatedly());
                    }
                }
                std::thread::sleep(LOOK);
            }
        });
        passes
    }

    /// Out-of-memory failures by cause that were found so far, also of processes that have ended.
    pub fn failures(&self) -> BTreeMap<&'static str, u64> {
        self.lock().failures.clone()
    }

    pub fn known(&self, key: ProcessKey) -> ProcessDetails {
        self.lock().known.get(&key).cloned().unwrap_or_default()
    }

    /// CPU time that the passes took, seconds.
    pub fn cpu_s(&self) -> f64 {
        self.lock().cpu_s
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// CPU time of this thread, seconds.
fn cpu_s() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// A thread, which has the traces of the users with one remainder.
struct Reader {
    number: u32,
    hurry: bool,
    places: PageLocations,
    passes: Passes,
    followed: HashMap<ProcessKey, FollowedTrace>,
}

impl Reader {
    fn pass_repeatedly(mut self) {
        const LOWEST: i32 = 19;
        // A trace is read when nothing else needs the CPU.
        // SAFETY: takes no pointers; without the right to it nothing changes. 0: the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LOWEST) };
        loop {
            let began = Instant::now();
            self.pass();
            std::thread::sleep(LOOK.saturating_sub(began.elapsed()));
        }
    }

    fn pass(&mut self) {
        let mut began_s = cpu_s();
        let is_its = |user| user % MAX_READERS == self.number;
        let (processes, _) = process::of_users(&self.places, is_its);
        let living: HashSet<ProcessKey> = processes.iter().map(|process| process.key).collect();
        for (key, mut trace) in self.followed.extract_if(|key, _| !living.contains(key)) {
            // An out-of-memory is often the last that a process records.
            trace.read(key, cpu_s() + LAST_S, &self.passes);
            self.passes.lock().known.remove(&key);
        }
        self.rest(&mut began_s);
        for process in processes {
            let entries: usize = self.followed.values().map(|one| one.followed.entries()).sum();
            let trace =
                self.followed.entry(process.key).or_insert_with(|| FollowedTrace::of(&process));
            if trace.read.is_some_and(|read| read.elapsed() < EVERY) {
                continue;
            }
            if entries > MAX_ENTRIES {
                // Its history would not fit; it is tried again when others have ended.
                trace.followed = Followed::with_roles();
                (trace.read, trace.known.is_read) = (Some(Instant::now()), true);
                self.passes.lock().known.insert(process.key, trace.known.clone());
                continue;
            }
            trace.path = process.trace.into();
            let slice_s = if self.hurry { LAST_S } else { SLICE_S };
            trace.read(process.key, cpu_s() + slice_s, &self.passes);
            self.rest(&mut began_s);
        }
    }

    /// Rests after work, so that the threads' share of the CPU stays below the bound.
    fn rest(&self, began_s: &mut f64) {
        let took_s = cpu_s() - *began_s;
        let mut shared = self.passes.lock();
        shared.cpu_s += took_s;
        let readers = shared.readers.max(1) as f64;
        drop(shared);
        if !self.hurry {
            std::thread::sleep(Duration::from_secs_f64(took_s * (readers / SHARE - 1.0)));
        }
        *began_s = cpu_s();
    }
}

/// A process whose trace is followed.
struct FollowedTrace {
    /// As the process sees it. The page may name any file.
    path: PathBuf,
    /// `None`: not yet, or not to its end.
    read: Option<Instant>,
    known: ProcessDetails,
    followed: Followed,
    /// Out-of-memory failures that were counted.
    failures: usize,
}

impl FollowedTrace {
    fn of(process: &LiveProcess) -> FollowedTrace {
        let pid = process.pid_here().or_else(|| process::find_pid(process.key));
        FollowedTrace {
            path: PathBuf::new(),
            read: None,
            known: ProcessDetails {
                pid,
                cgroup: pid.and_then(process::cgroup),
                ..ProcessDetails::default()
            },
            followed: Followed::with_roles(),
            failures: 0,
        }
    }

    /// Reads to the end, or until the thread has spent this CPU time; then it goes on in the next pass.
    fn read(&mut self, key: ProcessKey, until_s: f64, passes: &Passes) {
        let is_its = |header: &Header| {
            (header.pid, header.process_start_ticks) == (key.pid, key.start_ticks)
        };
        let mut read = || self.followed.read(places(&self.path, self.known.pid), key.user, is_its);
        let mut whole = read();
        while whole == Some(false) && cpu_s() < until_s {
            whole = read();
        }
        let now = Instant::now();
        self.read = (whole != Some(false)).then_some(now);
        self.known.is_read |= self.read.is_some();
        if whole == Some(true) {
            let figures = self.followed.figures.clone();
            for (_, cause) in figures.ooms.iter().skip(self.failures) {
                *passes.lock().failures.entry(cause.name()).or_default() += 1;
            }
            self.failures = self.failures.max(figures.ooms.len());
            self.known.trace = Some((now, Arc::new(figures)));
        }
        passes.lock().known.insert(key, self.known.clone());
    }
}

/// Where a trace is reached from here: that of a container through the root of its process.
fn places(path: &Path, pid: Option<u32>) -> Vec<PathBuf> {
    let Ok(inside) = path.strip_prefix("/") else { return Vec::new() };
    let in_root = pid.map(|pid| PathBuf::from(format!("/proc/{pid}/root")).join(inside));
    // The root of another user's process cannot be read, but its path may be the same here.
    in_root.into_iter().chain([path.to_path_buf()]).collect()
}
