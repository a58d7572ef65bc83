//! What is in force, and what is told of it: caps, how they are applied, soft limits.

use crate::cap::{Crossing, News};
use crate::process::Process;
use crate::say;
use std::sync::atomic::Ordering;
use vramtrace_format::live::LIVE_DEVICES;
use vramtrace_format::size::Bytes;
use vramtrace_format::{DeviceId, Event};

/// Before each call: another limit may have been ordered through the live page. Mostly two loads.
#[inline]
pub fn obey(p: &'static Process) {
    if let Some(live) = p.recorder.live() {
        let last = live.page().last_order();
        if last != p.cap.order().load(Ordering::Relaxed) {
            obey_now(p, last);
        }
    }
}

#[cold]
fn obey_now(p: &'static Process, last: u64) {
    let Some(live) = p.recorder.live() else { return };
    for ordinal in 0..LIVE_DEVICES as u8 {
        if let Some((number, limit)) = live.page().ordered(ordinal) {
            let device = DeviceId(ordinal);
            p.cap.set_limit(device, limit);
            look(p, device);
            limits(p, device, &mut |event| p.recorder.record(event));
            live.page().obeyed(ordinal, number);
        }
    }
    // Orders that came meanwhile have another number: they are seen at the next call.
    p.cap.order().store(last, Ordering::Relaxed);
    p.recorder.refresh();
}

/// Without a trace and a cap nobody looked at what the driver took on its own: the first limit is
/// to count it. While anything is captured the driver is left alone, and NVML alone is asked.
fn look(p: &'static Process, id: DeviceId) {
    match p.devices.known(id) {
        Some(device) if p.captures.any() => p.observe.read(p, device, || (), None),
        Some(_) => super::look_again(p, id),
        None => {}
    }
}

/// Records what is in force for a device that is met first.
pub fn tell_cap(p: &Process, device: DeviceId) {
    if p.cap.is_set() {
        limits(p, device, &mut |event| p.recorder.record(event));
    }
}

/// What is in force for a device, as events.
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

/// At the end of a call in which something happened that is to be told.
#[cold]
pub fn tell_news(p: &Process) {
    p.cap.take_news(|device, news| {
        let crossing = match news {
            News::SoftLimit(crossing) => crossing,
            News::GroupLimit(bytes) => {
                return p.recorder.record(&Event::GroupCap { device, bytes });
            }
        };
        let Crossing { over, counted, limit } = crossing;
        p.recorder.record(&Event::SoftLimit { device, over, counted, limit });
        if over {
            say::line(format_args!(
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
