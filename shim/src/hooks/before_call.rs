//! What is in force, and what is recorded of it: caps, how they are applied, soft limits.

use crate::hooks::limit_events::limits;
use crate::hooks::refresh::refresh_usage;
use crate::hooks::state::Process;
use crate::model::cap::{Crossing, News};
use crate::runtime::hash_table::CROWDED;
use crate::runtime::log;
use std::sync::atomic::Ordering;
use vramtrace_format::live::LIVE_DEVICES;
use vramtrace_format::size::Bytes;
use vramtrace_format::{DeviceId, Event};

/// Before each call: see [`crate::hooks::nvml_reading::reader::NvmlReader::due`]. Not while anything is captured: the
/// driver is asked no more than it must be then.
#[inline]
pub fn refresh_if_due(p: &'static Process) {
    apply_orders(p);
    if let Some(device) = p.nvml.due(p)
        && !p.stream_captures.any()
    {
        refresh_usage(p, device.id);
    }
}

/// Before each call: another limit may have been ordered through the live page. Mostly two loads.
#[inline]
pub fn apply_orders(p: &'static Process) {
    if let Some(live) = p.trace_writer.live() {
        let last = live.page().last_order();
        if last != p.cap.order().load(Ordering::Relaxed) {
            apply_orders_now(p, last);
        }
    }
}

#[cold]
fn apply_orders_now(p: &'static Process, last: u64) {
    let Some(live) = p.trace_writer.live() else { return };
    for ordinal in 0..LIVE_DEVICES as u8 {
        if let Some((number, limit)) = live.page().ordered(ordinal) {
            change_limit(p, DeviceId(ordinal), limit);
            live.page().obeyed(ordinal, number);
        }
    }
    // Orders that came meanwhile have another number: they are seen at the next call.
    p.cap.order().store(last, Ordering::Relaxed);
    p.trace_writer.refresh();
}

/// Changes the limit of a device, and records the change.
pub fn change_limit(p: &'static Process, device: DeviceId, limit: Option<u64>) {
    p.cap.set_limit(device, limit);
    CROWDED.store(true, Ordering::Relaxed);
    look(p, device);
    limits(p, device, &mut |event| p.trace_writer.record(event));
}

/// Without a trace and a cap nobody looked at what the driver took on its own: the first limit is
/// to count it. While anything is captured the driver is left alone, and NVML alone is asked.
fn look(p: &'static Process, id: DeviceId) {
    match p.devices.known(id) {
        Some(device) if p.stream_captures.any() => p.nvml.read(p, device, || (), None),
        Some(_) => refresh_usage(p, id),
        None => {}
    }
}

/// At the end of a call in which something happened that is to be reported.
#[cold]
pub fn report_news(p: &Process) {
    p.cap.take_news(|device, news| {
        let crossing = match news {
            News::SoftLimit(crossing) => crossing,
            News::GroupLimit(bytes) => {
                return p.trace_writer.record(&Event::GroupCap { device, bytes });
            }
        };
        let Crossing { over, counted, limit } = crossing;
        p.trace_writer.record(&Event::SoftLimit { device, over, counted, limit });
        if over {
            log::line(format_args!(
                "cuda:{}: {} are in use, more than VRAMTRACE_CAP_WARN ({}){}",
                device.0,
                Bytes(counted),
                Bytes(limit),
                Rest(p.cap.limit(device))
            ));
        }
    });
}

/// `; the cap is 8.00 GiB`.
struct Rest(Option<u64>);

impl std::fmt::Display for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.0 {
            Some(cap) => write!(f, "; the cap is {}", Bytes(cap)),
            None => Ok(()),
        }
    }
}
