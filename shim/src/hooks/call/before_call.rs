//! Work before each call: reads due figures, applies new caps, and reports limits that were crossed.

use crate::hooks::process::nvml_reading::Due;
use crate::hooks::process::refresh::refresh_usage;
use crate::hooks::process::state::Process;
use crate::model::cap::Crossing;
use crate::model::devices::Device;
use crate::runtime::hash_table::CROWDED;
use crate::runtime::log;
use crate::trace_writer::maintenance::ProcessView;
use std::sync::atomic::Ordering;
use vramtrace_format::live::LIVE_DEVICES;
use vramtrace_format::size::{AsGiven, Bytes};
use vramtrace_format::{DeviceId, Event};

/// Before each call: see [`crate::hooks::process::nvml_reading::reader::NvmlReader::due`]. Not during a stream
/// capture: the driver is called only where necessary then. Returns the time, if it was read for that; else 0.
#[inline(always)]
pub fn refresh_if_due(p: &'static Process) -> u64 {
    apply_orders(p);
    match p.nvml.due(p) {
        Due::Not(now_ns) => now_ns,
        Due::Now(device, began_ns) => refresh(p, device, began_ns),
    }
}

#[cold]
fn refresh(p: &'static Process, device: &Device, began_ns: u64) -> u64 {
    if !p.stream_captures.any() {
        refresh_usage(p, device.id);
    }
    p.nvml.was_read(p, began_ns);
    0
}

/// Before each call: applies another limit if `vramtrace cap` has stored one in the live page. Two
/// loads where there is none.
#[inline(always)]
pub fn apply_orders(p: &'static Process) {
    if let Some(last) = p.cap.new_order() {
        apply_orders_now(p, last);
    }
}

/// Applies the orders in the live page. `last`: the number of the latest order, as the page has it.
#[cold]
fn apply_orders_now(p: &'static Process, last: u64) {
    let Some(live) = p.trace_writer.live() else { return };
    for ordinal in 0..LIVE_DEVICES as u8 {
        let (device, index) = (DeviceId(ordinal), usize::from(ordinal));
        let read = || live.page().ordered(ordinal);
        let set = |limit| p.cap.set_limit(device, limit);
        if let Some(number) = p.cap.orders.set(index, read, set) {
            limit_changed(p, device);
            p.cap.orders.applied(index, number, || live.page().set_applied(ordinal, number));
        }
    }
    // An order that arrived meanwhile has a higher number and is applied by the next call.
    p.cap.applied(last);
    p.trace_writer.refresh();
}

/// Changes the limit of a device, and records the change.
pub fn change_limit(p: &'static Process, device: DeviceId, limit: Option<u64>) {
    p.cap.set_limit(device, limit);
    limit_changed(p, device);
    p.trace_writer.refresh();
}

fn limit_changed(p: &'static Process, id: DeviceId) {
    CROWDED.store(true, Ordering::Relaxed);
    // The limits of a device that was not used yet are recorded at its first use.
    let Some(device) = p.devices.known(id) else { return };
    // NVML's figure and the reserves are read before the first limit takes effect: without a trace and a cap
    // they were never read. During a stream capture only NVML is read.
    if p.stream_captures.any() {
        p.nvml.read(p, device, false, None)
    } else {
        refresh_usage(p, id)
    }
    p.limits(id, &mut |event| p.trace_writer.record(event));
}

/// Reports crossed soft limits and changed group limits, at the end of a call.
#[cold]
pub fn report_news(p: &Process) {
    p.cap.take_news(|device, news| {
        let Some(Crossing { over, counted, limit }) = news else {
            return p.limits(device, &mut |event| p.trace_writer.record(event));
        };
        p.trace_writer.record(&Event::SoftLimit { device, over });
        if over {
            let cap = p.cap.limit(device).map(|cap| format!("; the cap is {}", AsGiven(cap)));
            log::line(format_args!(
                "cuda:{}: {} are in use, more than VRAMTRACE_CAP_WARN ({}){}",
                device.0,
                Bytes(counted),
                AsGiven(limit),
                cap.unwrap_or_default()
            ));
        }
    });
}
