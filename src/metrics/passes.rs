//! A thread that reads what is new in the traces of running processes, at most once a minute each, and that takes at
//! most a stated share of one CPU. It also finds what is slow to find of a process: its pid here and its cgroup.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vramtrace_format::{Header, cgroup};
use vramtrace_reader::files;

use crate::live_processes::followed::{Followed, TraceFigures};
use crate::live_processes::node::{self, NodeProcess, ProcessKey};
use crate::live_processes::places::Places;

/// The part of one CPU that the thread takes.
const SHARE: f64 = 0.05;
/// Between two looks for processes.
const LOOK: Duration = Duration::from_secs(5);
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

#[derive(Default)]
struct Shared {
    known: HashMap<ProcessKey, Known>,
    cpu_s: f64,
}

/// Handle of the thread. It ends with the process.
#[derive(Clone, Default)]
pub struct Passes {
    shared: Arc<Mutex<Shared>>,
}

impl Passes {
    /// `every`: the time between two readings of one trace.
    pub fn start(places: Places, every: Duration) -> Passes {
        let passes = Passes::default();
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
        let mut followers = Followers { every: Duration::ZERO, followed: HashMap::new() };
        for process in node::all(places).0 {
            followers.read(&process, &passes.shared);
        }
        passes
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

struct Followers {
    every: Duration,
    followed: HashMap<ProcessKey, (Instant, Followed)>,
}

impl Followers {
    fn pass(&mut self, places: &Places, shared: &Mutex<Shared>) {
        let mut measured = Measured::start();
        let (processes, _) = node::all(places);
        let lives = |key: &ProcessKey| processes.iter().any(|process| process.key == *key);
        self.followed.retain(|key, _| lives(key));
        locked(shared).known.retain(|key, _| lives(key));
        measured.rest(shared);
        for process in &processes {
            let read = self.followed.get(&process.key).map(|(read, _)| read.elapsed());
            if read.is_none_or(|ago| ago >= self.every) {
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
        let all: usize = self.followed.values().map(|(_, one)| one.live_allocations()).sum();
        let (read, followed) =
            self.followed.entry(key).or_insert((Instant::now(), Followed::default()));
        *read = Instant::now();
        if all <= MOST_ALLOCATIONS {
            let is_its = |header: &Header| {
                (header.pid, header.process_start_ticks) == (key.pid, key.start_ticks)
            };
            let path = trace_path(process, known.pid);
            if let Some(figures) = path.and_then(|path| followed.read(&path, is_its)) {
                known.trace = Some((*read, Arc::new(figures.clone())));
            }
        } else {
            // Its history would not fit; it is tried again when others have ended.
            *followed = Followed::default();
        }
        locked(shared).known.insert(key, known);
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
