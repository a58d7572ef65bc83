//! What changed between two looks at the processes, and what passes over traces found, as events.

use std::collections::HashMap;

use jiff::Timestamp;
use vramtrace_format::live::LiveState;
use vramtrace_format::{DeviceId, LiveDevice};
use vramtrace_reader::report::json::event::{EventFacts, EventKind, SCHEMA};
use vramtrace_reader::units::{clean, count, limit, size};

use super::labels;
use super::passes::{Finding, Found, Known};
use crate::live_processes::process::{LiveProcess, ProcessKey};

/// The state at the last look.
#[derive(Default)]
pub struct Changes {
    before: HashMap<ProcessKey, LiveProcess>,
}

impl Changes {
    /// The events since the last look. At the first look every process has just started.
    pub fn look(
        &mut self,
        processes: Vec<LiveProcess>,
        known: impl Fn(ProcessKey) -> Known,
    ) -> Vec<EventFacts> {
        let now = Timestamp::now();
        let mut events = Vec::new();
        let mut before = std::mem::take(&mut self.before);
        for process in &processes {
            let known = known(process.key);
            let before = before.remove(&process.key).unwrap_or_else(|| {
                let started = timestamp(process.start_unix_ns);
                events.push(facts(
                    process,
                    &known,
                    started,
                    EventKind::ProcessStarted,
                    None,
                    "started",
                ));
                unused(process)
            });
            between(&before, process, &known, now, &mut events);
        }
        let mut ended: Vec<LiveProcess> = before.into_values().collect();
        ended.sort_by_key(|process| process.key);
        for process in &ended {
            let known = known(process.key);
            events.push(facts(process, &known, now, EventKind::ProcessEnded, None, "ended"));
        }
        self.before = processes.into_iter().map(|process| (process.key, process)).collect();
        events
    }
}

/// A process when it has just started: with its caps, and no refusal.
fn unused(process: &LiveProcess) -> LiveProcess {
    let devices = process.devices.iter().map(|device| LiveDevice {
        refused_by_cap: 0,
        refused_by_driver: 0,
        ..*device
    });
    LiveProcess { devices: devices.collect(), ..process.clone() }
}

fn between(
    before: &LiveProcess,
    process: &LiveProcess,
    known: &Known,
    now: Timestamp,
    events: &mut Vec<EventFacts>,
) {
    let stopped = |process: &LiveProcess| process.state == LiveState::NotRecording;
    if stopped(process) && !stopped(before) && !process.trace.is_empty() {
        let message = "recording ended; the program goes on";
        events.push(facts(process, known, now, EventKind::RecorderStopped, None, message));
    }
    for device in &process.devices {
        let was = before.devices.iter().find(|was| was.ordinal == device.ordinal);
        if let Some(was) = was.filter(|was| was.cap != device.cap) {
            let text = |cap: Option<u64>| cap.map_or("none".into(), limit);
            let message = format!("cap {}, before {}", text(device.cap), text(was.cap));
            events.push(EventFacts {
                cap_before: was.cap,
                cap_now: device.cap,
                ..facts(process, known, now, EventKind::CapChanged, Some(device), &message)
            });
        }
        type Figure = fn(&LiveDevice) -> u64;
        let by: [(_, Figure); 2] =
            [("cap", |of| of.refused_by_cap), ("driver", |of| of.refused_by_driver)];
        for (by, refused) in by {
            let refusals = refused(device).saturating_sub(was.map_or(0, refused));
            if refusals > 0 {
                let message = format!("refused by the {by}: {}", count(refusals));
                events.push(EventFacts {
                    refusals: Some(refusals),
                    refused_by: Some(by),
                    ..facts(process, known, now, EventKind::Refused, Some(device), &message)
                });
            }
        }
    }
}

/// The event of what a pass found.
pub fn of_finding(finding: &Finding) -> EventFacts {
    let Finding { process, known, found } = finding;
    let device = |id: DeviceId| process.devices.iter().find(|device| device.ordinal == id.0);
    match found {
        Found::Oom(oom) => {
            let at = timestamp(process.start_unix_ns.saturating_add(oom.time_ns));
            let message = format!(
                "out of memory: {}; {} requested, {} in use",
                oom.cause.name(),
                size(oom.size),
                size(oom.counted)
            );
            let device = device(oom.device);
            let event = facts(process, known, at, EventKind::OutOfMemory, device, &message);
            let limit = Some(oom.limit).filter(|limit| *limit > 0).or(event.limit);
            EventFacts {
                usage: Some(oom.counted),
                limit,
                utilization: ratio(oom.counted, limit),
                cause: Some(oom.cause.name()),
                requested: Some(oom.size),
                ..event
            }
        }
        Found::Leak(leak) => {
            let line = leak.line.as_deref().map(clean);
            let shown = line.as_deref().unwrap_or("(no frames)");
            let verdict = leak.verdict.name();
            let message = format!("{verdict}: {} held by {shown}", size(leak.bytes));
            let (now, device) = (Timestamp::now(), device(leak.device));
            EventFacts {
                verdict: Some(verdict),
                held: Some(leak.bytes),
                bytes_per_second: leak.bytes_per_s,
                exhaustion_s: leak.full_in_s,
                line,
                ..facts(process, known, now, EventKind::Leak, device, &message)
            }
        }
    }
}

fn timestamp(unix_ns: u64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(unix_ns)).unwrap_or_default()
}

fn ratio(usage: u64, limit: Option<u64>) -> Option<f64> {
    limit.map(|limit| usage as f64 / limit.max(1) as f64)
}

/// What all events say.
fn facts(
    process: &LiveProcess,
    known: &Known,
    time: Timestamp,
    event: EventKind,
    device: Option<&LiveDevice>,
    message: &str,
) -> EventFacts {
    let group = labels::group(&process.owner, known.cgroup.as_deref());
    let size_of =
        |device: &LiveDevice| device.cap.or(Some(device.total_bytes).filter(|bytes| *bytes > 0));
    let limit = device.and_then(size_of);
    EventFacts {
        schema: SCHEMA,
        time: format!("{time:.3}"),
        event,
        severity: match event {
            EventKind::ProcessStarted | EventKind::ProcessEnded | EventKind::CapChanged => "info",
            EventKind::Refused | EventKind::Leak | EventKind::RecorderStopped => "warning",
            EventKind::OutOfMemory => "error",
        },
        host: labels::label(&process.owner.host),
        pid: process.pid_here().or(known.pid),
        pid_inside: process.key.pid,
        user: process.key.user,
        executable: group.executable,
        job: group.job,
        rank: group.rank,
        pod: group.pod,
        container: group.container,
        device: device.map(labels::device),
        usage: device.map(|device| device.counted),
        limit,
        utilization: device.and_then(|device| ratio(device.counted, limit)),
        message: message.into(),
        ..EventFacts::default()
    }
}
