//! The header page: who wrote the file, where and when.

/// Decoded header page. Strings longer than their field are cut at a character boundary.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    pub major: u16,
    pub minor: u16,
    /// Random, so that copies and runs are told apart.
    pub uuid: [u8; 16],
    pub pid: u32,
    pub parent_pid: u32,
    /// Clock ticks since boot at which the process started (/proc/self/stat field 22): pids are reused.
    pub process_start_ticks: u64,
    /// CLOCK_REALTIME at the moment `start_mono_ns` was read.
    pub start_unix_ns: u64,
    /// CLOCK_MONOTONIC; event times count from here.
    pub start_mono_ns: u64,
    pub host: String,
    pub executable: String,
    /// argv, as much as fits.
    pub command: Vec<String>,
    pub working_directory: String,
    /// From RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK or PMI_RANK, in this order.
    pub rank: Option<u32>,
    pub local_rank: Option<u32>,
    pub world_size: Option<u32>,
    pub driver_version: Option<u32>,
    /// Version of the shim, e.g. "0.1.0".
    pub writer: String,
    /// `VRAMTRACE_MAX` in force; `None` = unlimited.
    pub max_bytes: Option<u64>,
}
