//! Watches the command and its descendants through /proc: finds processes that use the driver without the
//! recorder, and CUDA runtime programs under the simulated driver, which they refuse.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use vramtrace_reader::files;

use super::library::{SHIM, SIMULATED};
use super::processes::{self, Process, Stat};
use crate::console::message;

/// The result of the monitor when the command ended.
#[derive(Clone, Debug, Default)]
pub struct MonitorReport {
    /// Processes that mapped libcuda without the recorder: pid and name.
    pub without_shim: Vec<(i32, String)>,
    /// At least one process had loaded the recorder.
    pub with_shim: bool,
    /// A process loaded libcudart under the simulated driver.
    pub cudart_on_simulated: bool,
    /// A descendant outlived the command.
    pub still_running: bool,
}

pub struct ProcessMonitor {
    /// `VRAMTRACE_RUN` of this run: identifies descendants whose parents have ended.
    marker: OsString,
    /// The path of the recorder, whose file name VRAMTRACE_LIB may change.
    library: PathBuf,
    simulated: bool,
    root: Option<Process>,
    /// Processes whose environment shows that they are not of this run.
    strangers: HashSet<Process>,
    /// Members of this run.
    members: HashMap<Process, Member>,
    report: MonitorReport,
}

#[derive(Clone, Copy, Default)]
struct Member {
    /// Has a live page or was reported: it is not examined again.
    settled: bool,
}

impl ProcessMonitor {
    pub fn new(marker: OsString, library: PathBuf, simulated: bool) -> ProcessMonitor {
        ProcessMonitor {
            marker,
            library,
            simulated,
            root: None,
            strangers: HashSet::new(),
            members: HashMap::new(),
            report: MonitorReport::default(),
        }
    }

    /// Sets the root of the process tree: `pid` of the command.
    pub fn follow(&mut self, pid: i32) {
        self.root = processes::stat(pid).map(|stat| stat.process);
    }

    /// Finds the members of the run and examines the new ones. Call it repeatedly while the command runs.
    pub fn look(&mut self) {
        for stat in self.find_members() {
            let settled = self.members.entry(stat.process).or_default().settled;
            if !settled {
                let settled = self.examine(&stat);
                self.members.insert(stat.process, Member { settled });
            }
        }
    }

    /// Call it after the command ended: finds descendants that still run.
    pub fn end(mut self) -> MonitorReport {
        let root = self.root;
        self.report.still_running =
            self.find_members().iter().any(|stat| Some(stat.process) != root);
        self.report
    }

    /// Running descendants of the command, orphaned ones included.
    fn find_members(&mut self) -> Vec<Stat> {
        let Some(root) = self.root else { return Vec::new() };
        let mut all = processes::all();
        all.retain(|stat| !stat.zombie || stat.process == root);
        let mut children: HashMap<i32, Vec<usize>> = HashMap::new();
        for (index, stat) in all.iter().enumerate() {
            children.entry(stat.parent).or_default().push(index);
        }
        // A known member stays a member after its parents have ended.
        let is_start =
            |stat: &Stat| stat.process == root || self.members.contains_key(&stat.process);
        let mut reached: HashSet<usize> = HashSet::new();
        let mut next: Vec<usize> = (0..all.len()).filter(|index| is_start(&all[*index])).collect();
        for (index, stat) in all.iter().enumerate() {
            let younger = stat.process.start_ticks >= root.start_ticks;
            if younger && !is_start(stat) && !self.strangers.contains(&stat.process) {
                if processes::has_variable(stat.process.pid, "VRAMTRACE_RUN", &self.marker) {
                    next.push(index);
                } else if !is_transient_child(stat) {
                    self.strangers.insert(stat.process);
                }
            }
        }
        while let Some(index) = next.pop() {
            if reached.insert(index) {
                let pid = all[index].process.pid;
                next.extend(children.get(&pid).into_iter().flatten().copied());
            }
        }
        let mut members: Vec<Stat> = reached.into_iter().map(|index| all[index].clone()).collect();
        members.retain(|stat| !stat.zombie);
        members.sort_unstable_by_key(|stat| stat.process.pid);
        members
    }

    /// True if the process need not be examined again.
    fn examine(&mut self, stat: &Stat) -> bool {
        if processes::has_live_page(stat.process) {
            self.report.with_shim = true;
            return !self.simulated || self.report.cudart_on_simulated;
        }
        let files = processes::mapped_files(stat.process.pid);
        let has = |wanted: &dyn Fn(&str) -> bool| {
            files.iter().any(|file| file_name(file).is_some_and(wanted))
        };
        let cuda = has(&|name| name.starts_with("libcuda.so") || name == SIMULATED);
        let shim = files.contains(&self.library) || has(&|name| name == SHIM);
        self.report.with_shim |= shim;
        if self.simulated && !self.report.cudart_on_simulated && has(&is_cudart) {
            self.report.cudart_on_simulated = true;
            message(
                "libcudart is loaded, and it refuses the simulated driver (error 103): PyTorch and \
                 other programs on the CUDA runtime need a GPU; what works here: cuda-bindings, \
                 cuda.core, numba-cuda, programs on the driver API, `vramtrace demo`",
            );
        }
        if cuda && !shim {
            let pid = stat.process.pid;
            message(format_args!(
                "process {pid} ({}) uses the driver without the recorder: neither recorded nor capped \
                 (`vramtrace doctor CMD` says why)",
                stat.name
            ));
            self.report.without_shim.push((pid, stat.name.clone()));
            return true;
        }
        false
    }
}

fn file_name(path: &Path) -> Option<&str> {
    // A replaced file is listed as `PATH (deleted)`.
    Some(path.file_name()?.to_str()?.trim_end_matches(" (deleted)"))
}

fn is_cudart(name: &str) -> bool {
    name.starts_with("libcudart.so") || name.starts_with("libcudart-")
}

/// Whether this may be a forked child that has not called exec yet. Its environment reads as empty, and
/// is to be read again later.
fn is_transient_child(stat: &Stat) -> bool {
    let environ = files::read_kernel(format!("/proc/{}/environ", stat.process.pid));
    environ.is_ok_and(|environ| environ.is_empty())
}
