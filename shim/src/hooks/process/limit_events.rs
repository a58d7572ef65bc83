//! The limits in force for a device, as events.

use crate::hooks::process::state::Process;
use vramtrace_format::{DeviceId, Event};

/// Records the limits of a device at its first use.
pub fn record_cap(p: &Process, device: DeviceId) {
    if p.cap.is_set() {
        limits(p, device, &mut |event| p.trace_writer.record(event));
    }
}

/// Emits the limits in force for a device.
pub fn limits(p: &Process, device: DeviceId, emit: &mut dyn FnMut(&Event)) {
    emit(&Event::Cap { device, bytes: p.cap.limit(device) });
    let (only_warns, soft) = (p.cap.only_warns(), p.cap.soft_limit(device));
    if only_warns || soft.is_some() {
        emit(&Event::CapPolicy { device, only_warns, soft });
    }
    if let Some(bytes) = p.cap.group_limit(device) {
        emit(&Event::GroupCap { device, bytes });
    }
}
