//! `events --json`: schema `vramtrace.event/1`, an object a line. Names with dots are those of OpenTelemetry.

use serde::Serialize;

pub const SCHEMA: &str = "vramtrace.event/1";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    #[default]
    ProcessStarted,
    ProcessEnded,
    CapChanged,
    /// Requests were refused. The program may go on.
    Refused,
    OutOfMemory,
    /// The verdict of `vramtrace leaks` on a line.
    Leak,
    RecorderStopped,
}

impl EventKind {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::ProcessStarted => "process_started",
            EventKind::ProcessEnded => "process_ended",
            EventKind::CapChanged => "cap_changed",
            EventKind::Refused => "refused",
            EventKind::OutOfMemory => "out_of_memory",
            EventKind::Leak => "leak",
            EventKind::RecorderStopped => "recorder_stopped",
        }
    }
}

/// An event. Sizes are bytes. A key that does not apply, or is not known, is absent.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EventFacts {
    pub schema: &'static str,
    /// RFC 3339, UTC. Of an out-of-memory and of the start of a process when it happened, of others when it was seen.
    pub time: String,
    pub event: EventKind,
    /// `info`, `warning` or `error`.
    pub severity: &'static str,
    pub host: String,
    /// In the pid namespace of the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// In the pid namespace of the process.
    pub pid_inside: u32,
    pub user: u32,
    pub executable: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub job: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rank: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container: String,
    /// The device's UUID, or `cuda:N` in the process where that is not known.
    #[serde(rename = "hw.id", skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// What the process has of the device, as the cap counts it.
    #[serde(rename = "hw.gpu.memory.usage", skip_serializing_if = "Option::is_none")]
    pub usage: Option<u64>,
    /// The cap; without one the size of the device.
    #[serde(rename = "hw.gpu.memory.limit", skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Usage divided by limit.
    #[serde(rename = "hw.gpu.memory.utilization", skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
    /// Of a change of the cap: the one before. Absent: there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_before: Option<u64>,
    /// Of a change of the cap: the one now. Absent: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_now: Option<u64>,
    /// Refused requests since the event before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusals: Option<u64>,
    /// What refused them: `cap` or `driver`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_by: Option<&'static str>,
    /// Of an out-of-memory: the cause, as `vramtrace oom --json` names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<&'static str>,
    /// Of an out-of-memory: the size of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested: Option<u64>,
    /// Of a leak, as `vramtrace leaks --json` names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<&'static str>,
    /// Of a leak: the line that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// Of a leak: bytes that it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<f64>,
    /// Seconds until the cap or the card is full at this rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exhaustion_s: Option<f64>,
    /// The same event in words, without time and process.
    pub message: String,
}
