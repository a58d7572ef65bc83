//! `ps --json`: schema `vramtrace.ps/2`.

use serde::Serialize;

pub const SCHEMA: &str = "vramtrace.ps/2";

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PsReport {
    pub processes: Vec<LiveProcessFacts>,
    pub groups: Vec<GroupFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LiveProcessFacts {
    pub pid: u32,
    #[serde(skip)]
    pub is_recorded: bool,
    pub command: String,
    /// Null: the process does not record.
    pub trace: Option<String>,
    /// What has switched the recording off: `record`, `host_file`. Empty where nothing has.
    pub recording_off_by: Vec<&'static str>,
    pub group: Option<String>,
    /// When the figures were stored, in seconds since the start of the process.
    pub updated_at_s: f64,
    pub devices: Vec<LiveDeviceFacts>,
    /// The call sites that hold the most, largest first, 64 at most.
    pub sites: Vec<SiteFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SiteFacts {
    pub device: Option<u8>,
    pub bytes: u64,
    pub count: u64,
    /// The library that called the driver.
    pub library: Option<String>,
    /// `driver`, or `tensor`: blocks of PyTorch's cache.
    pub level: &'static str,
    /// The stack's id in the trace.
    pub stack: u32,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LiveDeviceFacts {
    pub device: Option<u8>,
    pub uuid: String,
    pub live_bytes: u64,
    pub peak_bytes: u64,
    /// What the cap counts: allocations, contexts, kernels, and calls under way.
    pub counted_bytes: u64,
    pub cap_bytes: Option<u64>,
    /// Counted bytes above the cap: so many must be freed before a request is granted.
    pub must_go_bytes: u64,
    pub cap_mode: &'static str,
    pub total_bytes: u64,
    pub live_allocations: u64,
    pub allocations: u64,
    pub refused_by_cap: u64,
    pub refused_by_driver: u64,
    pub would_have_refused: u64,
    /// Bytes of PyTorch's cache in no block, by PyTorch's own totals. Paused bytes are included.
    pub free_cache_bytes: u64,
    pub resident_bytes: u64,
    /// Bytes that are unmapped while their address range stays reserved.
    pub paused_bytes: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GroupFacts {
    pub name: String,
    pub pids: Vec<u32>,
    pub devices: Vec<GroupDeviceFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GroupDeviceFacts {
    pub uuid: String,
    pub cap_bytes: Option<u64>,
    pub must_go_bytes: u64,
    pub counted_bytes: u64,
    pub total_bytes: u64,
}
