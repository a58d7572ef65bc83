//! The identity of this process, for file names and the header page.

use crate::runtime::environment;
use crate::runtime::private_table::Table;
use crate::runtime::thread_slot::tid;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::read_link;
use std::os::unix::ffi::OsStrExt;
use vramtrace_format::Header;
use vramtrace_format::cgroup::JOB_VARIABLES;
use vramtrace_format::header::run_id;
use vramtrace_format::proc::Stat;
use vramtrace_format::secrets;

/// The data that identify the process.
#[derive(Clone, Debug)]
pub struct Identity {
    pub pid: u32,
    /// Clock ticks since boot at which it started; 0 = unknown (no /proc).
    pub start_ticks: u64,
    pub host: OsString,
    /// Path of the executable; empty = unknown.
    pub executable: OsString,
    /// The command line as the kernel has it; empty = unknown.
    pub command: Vec<u8>,
    pub rank: Option<u32>,
    pub local_rank: Option<u32>,
    pub world_size: Option<u32>,
    /// The number of the job in the batch system; empty = none.
    pub job: OsString,
    /// The text of /proc/self/cgroup; empty = unknown.
    pub cgroup: Vec<u8>,
}

impl Identity {
    /// Without a table the files of /proc are not read.
    pub fn of_this_process(table: Option<&Table>) -> Identity {
        let read = |name| table.and_then(|table| table.read(name).ok());
        let stat = read(c"/proc/self/stat").and_then(|line| Stat::of_text(&line));
        Identity {
            pid: std::process::id(),
            start_ticks: stat.map_or(0, |stat| stat.start_ticks),
            host: host(),
            executable: read_link("/proc/thread-self/exe").map(Into::into).unwrap_or_default(),
            command: read(c"/proc/thread-self/cmdline").unwrap_or_default(),
            rank: number(&["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]),
            local_rank: number(&["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"]),
            world_size: number(&["WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]),
            job: JOB_VARIABLES.iter().find_map(|name| variable(name)).unwrap_or_default().into(),
            cgroup: read(c"/proc/thread-self/cgroup").unwrap_or_default(),
        }
    }

    /// The header page of a trace of this process; clocks, driver and limit are the caller's.
    pub fn header(&self) -> Header {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let command = self.command.strip_suffix(b"\0").unwrap_or(&self.command);
        Header {
            uuid: random(),
            pid: self.pid,
            parent_pid: std::os::unix::process::parent_id(),
            process_start_ticks: self.start_ticks,
            host: text(self.host.as_bytes()),
            executable: text(self.executable.as_bytes()),
            command: secrets::mask(command.split(|byte| *byte == 0).map(text)),
            working_directory: read_link("/proc/thread-self/cwd")
                .map(|path| text(path.as_os_str().as_bytes()))
                .unwrap_or_default(),
            rank: self.rank,
            local_rank: self.local_rank,
            world_size: self.world_size,
            run: variable("VRAMTRACE_RUN")
                .filter(|run| !run.is_empty())
                .map(|run| run_id(run.as_bytes())),
            writer: env!("CARGO_PKG_VERSION").into(),
            ..Header::default()
        }
    }
}

/// Kernel id and name of the calling thread.
pub fn thread() -> (u32, String) {
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME fills 16 bytes with a name that ends in 0.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    (tid() as u32, text(&name).to_string_lossy().into_owned())
}

fn host() -> OsString {
    // The kernel's longest has 64 bytes.
    let mut name = [0u8; 65];
    // SAFETY: fills as many bytes at most.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) };
    OsStr::from_bytes(text(&name).to_bytes()).into()
}

/// What ends with its first 0.
fn text(bytes: &[u8]) -> &CStr {
    CStr::from_bytes_until_nul(bytes).unwrap_or_default()
}

/// The first of these variables that is a number.
fn number(names: &[&str]) -> Option<u32> {
    names.iter().find_map(|name| variable(name)?.to_str()?.trim().parse().ok())
}

fn variable(name: &str) -> Option<&'static OsStr> {
    let name = CString::new(name).ok()?;
    environment::variable(&name).map(|value| OsStr::from_bytes(value.to_bytes()))
}

/// A random (version 4) UUID.
fn random() -> [u8; 16] {
    let mut bytes = [0u8; 16];
    // SAFETY: fills the 16 bytes, without blocking.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 16, libc::GRND_NONBLOCK) };
    if got != 16 {
        // Early in a boot there is no randomness. Clock and pid distinguish files of one machine.
        let unique = crate::runtime::clock::unix_ns() ^ u64::from(std::process::id()) << 40;
        bytes[..8].copy_from_slice(&unique.to_le_bytes());
        bytes[8..].copy_from_slice(&crate::runtime::clock::mono_ns().to_le_bytes());
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::private_table;

    #[test]
    fn this_process() {
        let identity = private_table::run(|table| Identity::of_this_process(Some(table))).unwrap();
        assert_eq!(identity.pid, std::process::id());
        assert!(identity.start_ticks > 0);
        assert!(!identity.host.is_empty());
        let header = identity.header();
        let arguments: Vec<String> = std::env::args().collect();
        assert_eq!(header.command, arguments);
        assert_ne!(header.uuid, identity.header().uuid);
    }
}
