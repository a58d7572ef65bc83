//! Reads the driver's figures again: reserves of pools and graphs, and memory that the driver took for
//! itself.

use crate::hooks::process::graph_reserves;
use crate::hooks::process::pool_reserves;
use crate::hooks::process::state::Process;
use crate::runtime::thread_slot;
use vramtrace_format::DeviceId;

/// Called before a refusal, and from time to time under a cap. Pools and graphs are read before and
/// after NVML's figure: one that shrinks in between would make the driver's own bytes seem fewer than
/// they are.
#[cold]
pub fn refresh_usage(p: &'static Process, device: DeviceId) {
    match p.devices.known(device) {
        Some(device) => p.nvml.read(p, device, true, None),
        None => refresh_reserves(p, device),
    }
}

/// Reads what pools and graphs reserve.
pub fn refresh_reserves(p: &'static Process, device: DeviceId) {
    pool_reserves::refresh_all(p, device);
    graph_reserves::refresh(p, device);
}

/// As `refresh_usage`; also removes group members whose process has exited, and captures whose thread
/// has.
#[cold]
pub fn refresh_before_refusal(p: &'static Process, device: DeviceId) {
    p.cap.reap();
    p.stream_captures.forget_ended_threads(thread_slot::lives);
    if p.nvml.is_fresh(p, device) { refresh_reserves(p, device) } else { refresh_usage(p, device) }
}
