//! Who holds how many bytes of each simulated device, across the processes of one run.
//!
//! One table in a shared mapping of the file named by `VRAMTRACE_SIM_STATE` (or in memory of this
//! process alone). Each process owns one row and adds to its own counters only; a device's use is
//! the sum over the rows of living processes. There is no lock, so a killed process leaves nothing
//! to repair: its row counts until somebody who needs the room finds that it has ended (by pid and
//! start time). Allocations cost atomic adds and no system call.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

pub(crate) const MAX_DEVICES: usize = 16;
const MAX_PROCESSES: usize = 1000;
const MAGIC: u64 = 0x314d_4953_5254_4d56;

/// One process's bytes on one device.
#[repr(C)]
struct Share {
    /// All device bytes, as cuMemGetInfo sees them.
    used: AtomicU64,
    /// What NVML shows for the process: without managed memory.
    shown: AtomicU64,
}

#[repr(C)]
struct ProcessBytes {
    /// pid | low half of the start time << 32; 0: nobody's.
    owner: AtomicU64,
    shares: [Share; MAX_DEVICES],
}

#[repr(C)]
struct Table {
    magic: AtomicU64,
    /// Devices << 56 | bytes of each, set by the first process.
    geometry: AtomicU64,
    /// Rows at and above this one were never used.
    rows_used: AtomicU64,
    reserved: [u64; 5],
    rows: [ProcessBytes; MAX_PROCESSES],
}

pub(crate) struct Shared {
    table: &'static Table,
    /// The number of this process's row, and 1; 0: none yet.
    own: AtomicUsize,
    capacity: u64,
}

/// Why the file of VRAMTRACE_SIM_STATE cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("VRAMTRACE_SIM_STATE={}: not a state file; name a new file", .0.display())]
    NotAState(PathBuf),
    #[error(
        "VRAMTRACE_SIM: {devices} devices of {capacity} bytes, but {} was made with {made_devices} of \
         {made_capacity}; give all processes of a run the same value",
        .path.display()
    )]
    OtherDevices {
        path: PathBuf,
        devices: usize,
        capacity: u64,
        made_devices: u64,
        made_capacity: u64,
    },
    #[error("VRAMTRACE_SIM_STATE={}: {what}: {error}", .path.display())]
    File { path: PathBuf, what: &'static str, error: io::Error },
    #[error("VRAMTRACE_SIM_STATE={}: needs {bytes} bytes, more than RLIMIT_FSIZE allows", .path.display())]
    TooLong { path: PathBuf, bytes: u64 },
    #[error("cannot map the state: {0}")]
    Memory(io::Error),
}

impl Shared {
    pub(crate) fn open(
        state: Option<&Path>,
        devices: usize,
        capacity: u64,
    ) -> Result<Shared, StateError> {
        let table = match state {
            Some(path) => map_file(path)?,
            None => map(-1).map_err(StateError::Memory)?,
        };
        let shared = Shared { table, own: AtomicUsize::new(0), capacity };
        let geometry = (devices as u64) << 56 | capacity;
        let table = shared.table();
        let found = table.magic.compare_exchange(0, MAGIC, SeqCst, SeqCst).unwrap_or_else(|m| m);
        let path = state.unwrap_or(Path::new("memory"));
        if found != 0 && found != MAGIC {
            return Err(StateError::NotAState(path.into()));
        }
        let found =
            table.geometry.compare_exchange(0, geometry, SeqCst, SeqCst).unwrap_or_else(|g| g);
        if found != 0 && found != geometry {
            return Err(StateError::OtherDevices {
                path: path.into(),
                devices,
                capacity,
                made_devices: found >> 56,
                made_capacity: found & ((1 << 56) - 1),
            });
        }
        Ok(shared)
    }

    fn table(&self) -> &Table {
        self.table
    }

    fn own(&self) -> Option<&ProcessBytes> {
        self.table.rows.get(self.own.load(SeqCst).checked_sub(1)?)
    }

    fn rows(&self) -> &[ProcessBytes] {
        let used = (self.table().rows_used.load(SeqCst) as usize).min(MAX_PROCESSES);
        &self.table().rows[..used]
    }

    /// Takes a row for this process. False: all rows belong to living processes.
    pub(crate) fn join(&self) -> bool {
        let pid = std::process::id();
        let Some(start) = start_time(pid) else { return false };
        let me = owner(pid, start);
        for (index, row) in self.table().rows.iter().enumerate() {
            let other = row.owner.load(SeqCst);
            if (other == 0 || !is_alive(other))
                && row.owner.compare_exchange(other, me, SeqCst, SeqCst).is_ok()
            {
                for share in &row.shares {
                    share.used.store(0, SeqCst);
                    share.shown.store(0, SeqCst);
                }
                self.table().rows_used.fetch_max(index as u64 + 1, SeqCst);
                self.own.store(index + 1, SeqCst);
                return true;
            }
        }
        false
    }

    fn share(&self, device: usize) -> Option<&Share> {
        Some(&self.own()?.shares[device])
    }

    fn sum(&self, device: usize) -> u64 {
        self.rows()
            .iter()
            .filter(|row| row.owner.load(SeqCst) != 0)
            .map(|row| row.shares[device].used.load(SeqCst))
            .fold(0, u64::saturating_add)
    }

    /// Empties the rows of processes that ended.
    fn reap(&self) {
        let own = self.own();
        for row in self.rows() {
            let other = row.owner.load(SeqCst);
            if other != 0 && !own.is_some_and(|own| std::ptr::eq(row, own)) && !is_alive(other) {
                let _ = row.owner.compare_exchange(other, 0, SeqCst, SeqCst);
            }
        }
    }

    /// Adds to this process's bytes unless the device would then hold more than it has.
    pub(crate) fn charge(&self, device: usize, used: u64, shown: u64) -> bool {
        let Some(share) = self.share(device) else { return false };
        if used > self.capacity {
            return false;
        }
        // Two processes may see each other's attempt and both step back: try again a few times.
        for attempt in 0..4 {
            share.used.fetch_add(used, SeqCst);
            if self.sum(device) <= self.capacity {
                share.shown.fetch_add(shown, SeqCst);
                return true;
            }
            share.used.fetch_sub(used, SeqCst);
            if self.rows().len() < 2 {
                return false;
            }
            if attempt == 0 {
                self.reap();
            } else {
                std::thread::yield_now();
            }
        }
        false
    }

    pub(crate) fn release(&self, device: usize, used: u64, shown: u64) {
        if let Some(share) = self.share(device) {
            share.used.fetch_sub(used, SeqCst);
            share.shown.fetch_sub(shown, SeqCst);
        }
    }

    /// Bytes of the device that are in use.
    pub(crate) fn used(&self, device: usize) -> u64 {
        if self.rows().len() > 1 || self.own.load(SeqCst) == 0 {
            self.reap();
        }
        self.sum(device).min(self.capacity)
    }

    /// Living processes that hold memory on the device: pid and bytes as NVML shows them.
    pub(crate) fn processes(&self, device: usize) -> Vec<(u32, u64)> {
        self.reap();
        self.rows()
            .iter()
            .map(|row| (row.owner.load(SeqCst) as u32, row.shares[device].shown.load(SeqCst)))
            .filter(|&(pid, shown)| pid != 0 && shown != 0)
            .collect()
    }
}

fn owner(pid: u32, start: u64) -> u64 {
    pid as u64 | (start & 0xffff_ffff) << 32
}

fn is_alive(owner_word: u64) -> bool {
    let pid = owner_word as u32;
    start_time(pid).is_some_and(|start| owner(pid, start) == owner_word)
}

/// Start of a process in clock ticks since boot, the same in all time namespaces; None: there is none, or it is a zombie without
/// threads, whose memory is freed.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold any bytes: the fields, from number 3 on, begin after the last bracket.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let threads: u64 = fields.get(20 - 3)?.parse().ok()?;
    if matches!(fields[0], "Z" | "X") && threads <= 1 {
        return None;
    }
    let start: u64 = fields.get(22 - 3)?.parse().ok()?;
    Some(start.wrapping_add_signed(-ticks_of_time_namespace()))
}

/// What the time since boot is ahead in this process's time namespace: start times are shown with it.
fn ticks_of_time_namespace() -> i64 {
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let seconds = offsets.lines().find_map(|line| {
        let mut words = line.strip_prefix("boottime")?.split_ascii_whitespace();
        words.next()?.parse::<i64>().ok()
    });
    // SAFETY: takes no pointer.
    seconds.unwrap_or(0) * unsafe { libc::sysconf(libc::_SC_CLK_TCK) }
}

fn map(fd: i32) -> io::Result<&'static Table> {
    let flags = if fd < 0 { libc::MAP_SHARED | libc::MAP_ANONYMOUS } else { libc::MAP_SHARED };
    let length = size_of::<Table>();
    // SAFETY: a new mapping at a place of the kernel's choice.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            flags | libc::MAP_NORESERVE,
            fd,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: mapped for good, aligned, as long as a table; all of its words are atomic and may be zero.
    Ok(unsafe { &*at.cast() })
}

fn map_file(path: &Path) -> Result<&'static Table, StateError> {
    let fail = |what| move |error| StateError::File { path: path.into(), what, error };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
        .open(path)
        .map_err(fail("cannot open it"))?;
    let length = size_of::<Table>() as u64;
    let now = file.metadata().map_err(fail("cannot look at it"))?.len();
    // It is made empty and extended in one step: any other length is some other file's.
    if now != 0 && now != length {
        return Err(StateError::NotAState(path.into()));
    }
    // Zeros are a valid empty table.
    if now == 0 {
        if !crate::aperture::may_be_long(length) {
            return Err(StateError::TooLong { path: path.into(), bytes: length });
        }
        file.set_len(length).map_err(fail("cannot extend it"))?;
    }
    map(file.as_raw_fd()).map_err(fail("cannot map it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_charged_and_released() {
        let shared = Shared::open(None, 2, 1000).unwrap();
        assert!(!shared.charge(0, 1, 1), "nobody joined yet");
        assert!(shared.join());
        assert!(shared.charge(0, 600, 500));
        assert!(!shared.charge(0, 401, 401));
        assert!(shared.charge(0, 400, 0));
        assert_eq!((shared.used(0), shared.used(1)), (1000, 0));
        assert_eq!(shared.processes(0), vec![(std::process::id(), 500)]);
        shared.release(0, 600, 500);
        assert_eq!(shared.used(0), 400);
        assert!(shared.processes(0).is_empty());
    }

    #[test]
    fn bytes_of_an_ended_process_are_released() {
        let path = std::env::temp_dir().join(format!("sim-state-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let shared = Shared::open(Some(&path), 1, 1000).unwrap();
        assert!(shared.join());
        // A row whose pid lives but started at another time, as after a reuse of the pid.
        let row = &shared.table().rows[1];
        row.owner.store(owner(std::process::id(), 1), SeqCst);
        row.shares[0].used.store(900, SeqCst);
        shared.table().rows_used.store(2, SeqCst);
        // The row of an ended process is found when room is needed.
        assert!(shared.charge(0, 1000, 1000));
        assert_eq!(shared.used(0), 1000);
        assert!(Shared::open(Some(&path), 2, 1000).is_err(), "another geometry is refused");
        std::fs::write(&path, "precious").unwrap();
        assert!(Shared::open(Some(&path), 1, 1000).is_err(), "not a state file");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious", "and left alone");
        std::fs::remove_file(&path).unwrap();
    }
}
