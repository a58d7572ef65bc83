//! What is in force, and what is told of it: caps, how they are applied, soft limits.

use crate::cap::Crossing;
use crate::process::Process;
use crate::say;
use vramtrace_format::size::Bytes;
use vramtrace_format::{DeviceId, Event};

/// Records what is in force for a device, when it is met first and when it changes.
pub fn tell_cap(p: &Process, device: DeviceId) {
    if !p.cap.is_set() {
        return;
    }
    p.recorder.record(&Event::Cap { device, bytes: p.cap.limit(device) });
    tell_policy(p, device);
}

/// How the cap is applied, where it is not plain refusal.
fn tell_policy(p: &Process, device: DeviceId) {
    let (only_warns, soft) = (p.cap.only_warns(), p.cap.soft_limit(device));
    if only_warns || soft.is_some() {
        p.recorder.record(&Event::CapPolicy { device, only_warns, soft });
    }
}

/// At the end of a call in which something happened that is to be told.
#[cold]
pub fn tell_news(p: &Process) {
    p.cap.take_news(|device, crossing| {
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
