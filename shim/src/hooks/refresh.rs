//! Reads afresh what the driver reserves and takes on its own.

use crate::hooks::state::Process;
use crate::hooks::{graph_reserves, pool_reserves};
use vramtrace_format::DeviceId;

/// Reads afresh what the driver may have given back or taken on its own: before a refusal, and now
/// and then under a cap. Pools and graphs are read on both sides of NVML's figure: one that shrank
/// in between would make hidden bytes look fewer than they are.
#[cold]
pub fn refresh_usage(p: &'static Process, device: DeviceId) {
    let reserves = || refresh_reserves(p, device);
    match p.devices.known(device) {
        Some(device) => p.nvml.read(p, device, reserves, None),
        None => reserves(),
    }
}

/// Reads what pools and graphs reserve.
pub fn refresh_reserves(p: &'static Process, device: DeviceId) {
    pool_reserves::refresh_all(p, device);
    graph_reserves::refresh(p, device);
}

/// As `refresh_usage`, and at who is left of the group.
#[cold]
pub fn refresh_before_refusal(p: &'static Process, device: DeviceId) {
    p.cap.reap();
    match p.nvml.is_fresh(p, device) {
        true => refresh_reserves(p, device),
        false => refresh_usage(p, device),
    }
}
