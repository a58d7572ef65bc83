//! JSON: the timeline of torch.profiler (`profile_memory=True`), whose instants `[memory]` are the requests to PyTorch's
//! cache, and memory snapshots as JSON.

use serde::Deserialize;
use vramtrace_format::StackId;

use super::error::ImportProblem;
use super::history::{Action, Form, History, HistoryEntry, is_place};
use super::pickle::Value;
use super::snapshot;
use crate::units::size;

#[derive(Deserialize)]
struct Timeline {
    #[serde(rename = "traceEvents")]
    events: Vec<TimelineEvent>,
}

#[derive(Deserialize)]
struct TimelineEvent {
    #[serde(default)]
    name: String,
    /// Microseconds.
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    args: Arguments,
}

/// Events of other names have these with other types.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Arguments {
    #[serde(rename = "Addr")]
    address: serde_json::Value,
    /// Less than 0: they were freed.
    #[serde(rename = "Bytes")]
    bytes: serde_json::Value,
    #[serde(rename = "Total Reserved")]
    reserved: serde_json::Value,
    #[serde(rename = "Device Id")]
    device: serde_json::Value,
    /// 0 is the host.
    #[serde(rename = "Device Type")]
    device_type: serde_json::Value,
}

pub(super) fn read(bytes: &[u8]) -> Result<History, ImportProblem> {
    if let Ok(timeline) = serde_json::from_slice::<Timeline>(bytes) {
        return of_timeline(timeline);
    }
    let json = serde_json::from_slice::<serde_json::Value>(bytes);
    let value = json.map(Value::from).unwrap_or(Value::None);
    match snapshot::is_one(&value) {
        true => snapshot::of_value(&value, bytes.len()).map_err(ImportProblem::Snapshot),
        false => Err(ImportProblem::Unknown { looks: "JSON of no known form" }),
    }
}

fn of_timeline(mut timeline: Timeline) -> Result<History, ImportProblem> {
    let of_cache = |event: &TimelineEvent| {
        event.name == "[memory]" && event.args.device_type.as_i64() != Some(0)
    };
    timeline.events.retain(of_cache);
    timeline.events.sort_by(|a, b| a.ts.total_cmp(&b.ts));
    let start = timeline.events.first().map_or(0.0, |event| event.ts);
    let mut history = History::new(Form::Timeline);
    let mut most = 0;
    for event in &timeline.events {
        let args = &event.args;
        let bytes = args.bytes.as_i64().filter(|bytes| *bytes != 0);
        let ordinal = args.device.as_u64().and_then(|id| u8::try_from(id).ok());
        let known = (args.address.as_u64(), bytes, ordinal.filter(|ordinal| *ordinal < u8::MAX));
        let (Some(address), Some(bytes), Some(ordinal)) = known else { continue };
        if !is_place(address, bytes.unsigned_abs()) {
            continue;
        }
        most = most.max(args.reserved.as_u64().unwrap_or(0));
        let device = history.device(ordinal);
        let actions = match bytes > 0 {
            true => &[Action::Alloc][..],
            false => &[Action::FreeRequested, Action::FreeCompleted],
        };
        device.entries.extend(actions.iter().map(|action| HistoryEntry {
            action: *action,
            address,
            size: bytes.unsigned_abs(),
            stream: 0,
            pool: 0,
            time_ns: ((event.ts - start) * 1e3) as u64,
            stack: StackId(0),
        }));
    }
    if history.devices.is_empty() {
        return Err(ImportProblem::Unknown { looks: "a timeline without [memory] events" });
    }
    history
        .caveats
        .push(format!("the file has no segments; it says that up to {} were reserved", size(most)));
    Ok(history)
}
