//! Watches the command and its descendants through /proc: finds processes that use the driver without the
//! recorder, and CUDA runtime programs under the simulated driver, which they refuse.
//!
//! To read a process's maps takes its lock, and as long as it has mappings. So a process is examined until it is known
//! what it is, less and less often, and again after exec.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libc::c_int;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use vramtrace_format::proc::{self, Stat};
use vramtrace_reader::files;

use super::host_memory::{HostMemory, Starved};
use super::library::{SHIM, SIMULATED};
use crate::console::message;
use crate::live_processes::control;
use crate::live_processes::places::PageLocations;
use crate::live_processes::process::{user, variable};

/// A process that mapped libcuda without the recorder.
#[derive(Clone, Debug)]
pub struct Unrecorded {
    pub pid: u32,
    pub name: String,
}

/// The result of the monitor when the command ended.
#[derive(Clone, Debug, Default)]
pub struct MonitorReport {
    pub without_shim: Vec<Unrecorded>,
    /// At least one process had loaded the recorder.
    pub with_shim: bool,
    /// A process loaded libcudart under the simulated driver.
    pub cudart_on_simulated: bool,
    /// The pid of the command.
    pub command: u32,
    /// A descendant outlived the command.
    pub still_running: bool,
    /// The descendants that a signal has ended, as far as the kernel tells it.
    pub signals: HashMap<PidAndStart, c_int>,
    pub starved: Starved,
}

/// Pid and start time, which together are not reused.
pub type PidAndStart = (u32, u64);

fn process(stat: &Stat) -> PidAndStart {
    (stat.pid, stat.start_ticks)
}

#[derive(Default)]
pub struct ProcessMonitor {
    /// `VRAMTRACE_RUN` of this run: identifies descendants whose parents have ended.
    marker: OsString,
    /// The path of the recorder, whose file name VRAMTRACE_LIB may change.
    library: PathBuf,
    simulated: bool,
    root: Option<PidAndStart>,
    /// Running processes that are not older than the command.
    known: HashMap<PidAndStart, WatchedProcess>,
    /// Members that run, to be asked how they ended.
    handles: HashMap<PidAndStart, OwnedFd>,
    /// How often a member of this run was examined.
    examined: u64,
    host_memory: HostMemory,
    report: MonitorReport,
}

/// A process is looked at after 0.1 s, then each time after twice as long, until it is settled what it is.
#[derive(Clone, Copy)]
struct WatchedProcess {
    /// Of this run. A member stays one after its parents have ended.
    is_member: bool,
    /// The program that it executes: [`Stat::stack_start`].
    image: u64,
    /// `None`: it is known what the process is, as long as it executes this program.
    next: Option<Instant>,
    pause: Duration,
}

impl WatchedProcess {
    fn new(is_member: bool, image: u64, now: Instant) -> WatchedProcess {
        WatchedProcess { is_member, image, next: Some(now), pause: Duration::from_millis(100) }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    fn looked(&mut self, now: Instant, settled: bool) {
        self.next = (!settled).then(|| now + self.pause);
        self.pause *= 2;
    }
}

impl ProcessMonitor {
    pub fn new(marker: OsString, library: PathBuf, simulated: bool) -> ProcessMonitor {
        let host_memory = HostMemory::now();
        ProcessMonitor { marker, library, simulated, host_memory, ..ProcessMonitor::default() }
    }

    /// Sets the root of the process tree: `pid` of the command.
    pub fn follow(&mut self, pid: u32) {
        self.report.command = pid;
        self.root = Stat::of(pid).map(|stat| process(&stat));
    }

    /// Finds the members of the run and examines those that are due. Call it repeatedly while the command runs.
    pub fn look(&mut self, now: Instant) {
        self.host_memory.look();
        for stat in self.find_members(now) {
            let Some(mut known) = self.known.get(&process(&stat)).copied() else { continue };
            if known.is_due(now) {
                known.looked(now, self.examine(&stat));
                self.known.insert(process(&stat), known);
            }
        }
    }

    /// Call it after the command ended: finds descendants that still run.
    pub fn end(mut self) -> MonitorReport {
        self.report.starved = std::mem::take(&mut self.host_memory).end();
        let members = self.find_members(Instant::now());
        self.report.still_running = members.iter().any(|stat| Some(process(stat)) != self.root);
        self.report
    }

    /// The command and its running descendants, orphaned ones included.
    fn find_members(&mut self, now: Instant) -> Vec<Stat> {
        let Some(root) = self.root else { return Vec::new() };
        let mut all: Vec<Stat> = proc::pids().filter_map(Stat::of).collect();
        all.retain(|stat| stat.start_ticks >= root.1);
        all.retain(|stat| stat.is_alive() || process(stat) == root);
        // Parents before their children.
        all.sort_unstable_by_key(|stat| (stat.start_ticks, stat.pid));
        let running: HashSet<PidAndStart> = all.iter().map(process).collect();
        self.known.retain(|process, _| running.contains(process));
        let mut members: HashSet<u32> = HashSet::new();
        for stat in &all {
            let fresh = WatchedProcess::new(false, stat.stack_start, now);
            let known = self.known.entry(process(stat)).or_insert(fresh);
            if known.image != stat.stack_start {
                *known = WatchedProcess { is_member: known.is_member, ..fresh };
            }
            if !known.is_member {
                let is_child = process(stat) == root || members.contains(&stat.parent);
                let is_due = !is_child && known.is_due(now);
                if is_child
                    || is_due && variable(stat.pid, "VRAMTRACE_RUN").as_ref() == Some(&self.marker)
                {
                    *known = WatchedProcess { is_member: true, ..fresh };
                } else if is_due {
                    // Of a forked child that has not called exec yet it reads as empty, and is to be read again later.
                    let environ = files::read_kernel(format!("/proc/{}/environ", stat.pid));
                    known.looked(now, !environ.is_ok_and(|environ| environ.is_empty()));
                }
            }
            if known.is_member {
                members.insert(stat.pid);
            }
        }
        all.retain(|stat| members.contains(&stat.pid) && stat.is_alive());
        self.note_signals(&all);
        all
    }

    fn note_signals(&mut self, members: &[Stat]) {
        self.handles.retain(|process, handle| match exit_code(handle) {
            Ok(code) => {
                let signal = code.map(|code| code & 0x7F).filter(|signal| *signal > 0);
                self.report.signals.extend(signal.map(|signal| (*process, signal)));
                code.is_none()
            }
            Err(Unsupported) => false,
        });
        for stat in members.iter().take(MOST_HANDLES) {
            let known = self.handles.entry(process(stat));
            if let (Entry::Vacant(place), Some(handle)) = (known, open(stat)) {
                place.insert(handle);
            }
        }
    }

    /// True if the process need not be examined again, as long as it executes this program.
    fn examine(&mut self, stat: &Stat) -> bool {
        self.examined += 1;
        let (pid, name) = (stat.pid, String::from_utf8_lossy(&stat.name));
        let places = PageLocations::from(|name| variable(pid, name));
        if control::has_page(pid, user(), &places) {
            self.report.with_shim = true;
            return !self.simulated || self.report.cudart_on_simulated;
        }
        let files = mapped_files(pid);
        let has = |wanted: &dyn Fn(&str) -> bool| {
            files.iter().any(|file| file_name(file).is_some_and(wanted))
        };
        let cuda = has(&|name| name.starts_with("libcuda.so") || name == SIMULATED);
        let shim = files.contains(&self.library) || has(&|name| name == SHIM);
        self.report.with_shim |= shim;
        let cudart =
            has(&|name| name.starts_with("libcudart.so") || name.starts_with("libcudart-"));
        if self.simulated && !self.report.cudart_on_simulated && cudart {
            self.report.cudart_on_simulated = true;
            message(
                "libcudart is loaded, and it refuses the simulated driver (error 103): PyTorch and \
                 other programs on the CUDA runtime need a GPU; what works here: cuda-bindings, \
                 cuda.core, numba-cuda, programs on the driver API",
            );
        }
        if cuda && !shim {
            message(format_args!(
                "process {pid} ({name}) uses the driver without the recorder: neither recorded nor \
                 capped (`vramtrace doctor CMD` says why)"
            ));
            self.report.without_shim.push(Unrecorded { pid, name: name.into_owned() });
            return true;
        }
        // The recorder stays loaded; what it does not see may come later.
        shim && (!self.simulated || self.report.cudart_on_simulated)
    }
}

/// Maximum number of processes that are asked for their end.
const MOST_HANDLES: usize = 256;

/// A handle of a running process.
fn open(stat: &Stat) -> Option<OwnedFd> {
    let handle = pidfd_open(Pid::from_raw(stat.pid as i32)?, PidfdFlags::empty()).ok();
    // Its pid was not reused before that.
    handle.filter(|_| Stat::of(stat.pid).is_some_and(|now| process(&now) == process(stat)))
}

/// The kernel is older than 6.15.
struct Unsupported;

/// With which a process ended, as wait(2) has it, once its parent knows it. `None`: it does not yet.
fn exit_code(handle: &OwnedFd) -> Result<Option<c_int>, Unsupported> {
    const PIDFD_GET_INFO: libc::Ioctl = 0xC040_FF0B_u32 as _;
    const PIDFD_INFO_EXIT: u32 = 8;
    let mut info = [0u32; 16];
    info[0] = PIDFD_INFO_EXIT;
    // SAFETY: the kernel fills the 64 bytes that the number of the call names.
    match unsafe { libc::ioctl(handle.as_raw_fd(), PIDFD_GET_INFO, info.as_mut_ptr()) } {
        0 => Ok((info[0] & PIDFD_INFO_EXIT != 0).then_some(info[15] as c_int)),
        _ => Err(Unsupported),
    }
}

/// Paths of the files that a process has mapped, some repeatedly; none if they cannot be read.
fn mapped_files(pid: u32) -> Vec<PathBuf> {
    let maps = files::read_kernel(format!("/proc/{pid}/maps")).unwrap_or_default();
    let path = |line: &[u8]| {
        let slash = line.iter().position(|byte| *byte == b'/')?;
        Some(PathBuf::from(OsStr::from_bytes(&line[slash..])))
    };
    let mut files: Vec<PathBuf> = maps.split(|byte| *byte == b'\n').filter_map(path).collect();
    files.dedup();
    files
}

fn file_name(path: &Path) -> Option<&str> {
    // A replaced file is listed as `PATH (deleted)`.
    Some(path.file_name()?.to_str()?.trim_end_matches(" (deleted)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    /// A shell that has printed a line, and a monitor of it that takes `library` for the recorder.
    fn watched(script: &str, library: PathBuf) -> (ProcessMonitor, Child) {
        let mut monitor = ProcessMonitor::new("run-of-this-test".into(), library, false);
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        assert_eq!(line(&mut child), b'1');
        monitor.follow(child.id());
        (monitor, child)
    }

    fn line(child: &mut Child) -> u8 {
        let mut line = [0; 2];
        child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        line[0]
    }

    fn has_members(monitor: &ProcessMonitor) -> bool {
        monitor.known.values().any(|known| known.is_member)
    }

    /// Looks 200 times in an hour: how often a member was examined.
    fn an_hour(monitor: &mut ProcessMonitor, start: Instant) -> u64 {
        let before = monitor.examined;
        (0..200).for_each(|look| monitor.look(start + look * Duration::from_secs(18)));
        monitor.examined - before
    }

    #[test]
    fn a_process_without_gpu_memory_is_examined_less_and_less_often() {
        let script = "sleep 1000 & echo 1; read line; kill $!";
        let (mut monitor, mut child) = watched(script, PathBuf::new());
        let start = Instant::now();
        // At most after 0.1, 0.2, 0.4 ... 3276.8 s each: the shell, sleep, and the fork that becomes sleep.
        let examined = an_hour(&mut monitor, start);
        assert!((10..=3 * 17).contains(&examined), "{examined} times");
        drop(child.stdin.take());
        child.wait().unwrap();
        // The killed `sleep` may take a moment to end.
        let until = Instant::now() + Duration::from_secs(20);
        while has_members(&monitor) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
            monitor.look(start);
        }
        assert!(!has_members(&monitor), "it forgets processes that ended");
    }

    #[test]
    fn a_process_with_the_recorder_is_examined_once_and_again_after_exec() {
        let is_libc = |path: &PathBuf| file_name(path).is_some_and(|name| name == "libc.so.6");
        let mapped = mapped_files(std::process::id());
        let library = mapped.into_iter().find(is_libc).unwrap();
        let (mut monitor, mut child) =
            watched("echo 1; read line; exec sh -c 'echo 2; read line'", library);
        let start = Instant::now();
        assert_eq!(an_hour(&mut monitor, start), 1);
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(line(&mut child), b'2');
        assert_eq!(an_hour(&mut monitor, start), 1);
        assert!(monitor.report.with_shim);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
