//! JSON: the timeline of torch.profiler (`profile_memory=True`), whose instants `[memory]` are the requests to PyTorch's
//! cache, and memory snapshots as JSON.

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;

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
    #[serde(rename = "Total Allocated")]
    allocated: serde_json::Value,
    #[serde(rename = "Total Reserved")]
    reserved: serde_json::Value,
    #[serde(rename = "Device Id")]
    device: serde_json::Value,
    /// 0 is the host.
    #[serde(rename = "Device Type")]
    device_type: serde_json::Value,
}

pub(super) fn read(bytes: &[u8]) -> Result<History, ImportProblem> {
    match serde_json::from_slice::<Timeline>(bytes) {
        Ok(timeline) => of_timeline(timeline),
        Err(error) if error.is_eof() => {
            let mended = mended(bytes);
            let timeline = serde_json::from_slice::<Timeline>(&mended).map(of_timeline);
            Ok(timeline.unwrap_or_else(|_| of_snapshot(&mended))?.cut())
        }
        Err(_) => of_snapshot(bytes),
    }
}

fn of_snapshot(bytes: &[u8]) -> Result<History, ImportProblem> {
    let json = serde_json::from_slice::<serde_json::Value>(bytes);
    let value = json.map(Value::from).unwrap_or(Value::None);
    match snapshot::is_one(&value) {
        true => snapshot::of_value(&value, bytes.len()).map_err(ImportProblem::Snapshot),
        false if bytes.starts_with(b"[[") => Err(ImportProblem::Unknown {
            looks: "sums by torch.profiler's export_memory_timeline, without allocations",
        }),
        false if value.get("allocated_bytes.all.current").is_some() => {
            Err(ImportProblem::Unknown { looks: "sums of torch.cuda.memory_stats" })
        }
        false => Err(ImportProblem::Unknown { looks: "JSON of no known form" }),
    }
}

/// Cut JSON up to the last whole element of the outermost lists, with what was open closed.
fn mended(bytes: &[u8]) -> Vec<u8> {
    let (mut open, mut whole, mut closing) = (Vec::new(), 0, Vec::new());
    let (mut in_text, mut escaped) = (false, false);
    for (at, byte) in bytes.iter().enumerate() {
        if in_text {
            in_text = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
            continue;
        }
        match byte {
            b'"' => in_text = true,
            b'{' => open.push(b'}'),
            b'[' => open.push(b']'),
            b'}' | b']' => drop(open.pop()),
            b',' => {}
            _ => continue,
        }
        // Only the outermost may be an incomplete object.
        if !in_text && open.iter().skip(1).all(|close| *close == b']') {
            whole = if *byte == b',' { at } else { at + 1 };
            closing.clone_from(&open);
        }
    }
    closing.reverse();
    [&bytes[..whole], &closing].concat()
}

/// The instant of a request that failed: as `[memory]`, without an address.
const OUT_OF_MEMORY: &str = "[OutOfMemory]";

fn of_timeline(mut timeline: Timeline) -> Result<History, ImportProblem> {
    let of_cache = |event: &TimelineEvent| {
        ["[memory]", OUT_OF_MEMORY].contains(&&*event.name)
            && event.args.device_type.as_i64() != Some(0)
    };
    timeline.events.retain(of_cache);
    timeline.events.sort_by(|a, b| a.ts.total_cmp(&b.ts));
    let start = timeline.events.first().map_or(0.0, |event| event.ts);
    let mut history = History::new(Form::Timeline);
    let mut most = 0;
    // What was allocated before it begins and is not freed later; what was allocated since.
    let mut earlier: BTreeMap<u8, (u64, HashSet<u64>)> = BTreeMap::new();
    for event in &timeline.events {
        let args = &event.args;
        let bytes = args.bytes.as_i64().filter(|bytes| *bytes != 0);
        let ordinal = args.device.as_u64().and_then(|id| u8::try_from(id).ok());
        let known = (args.address.as_u64(), bytes, ordinal.filter(|ordinal| *ordinal < u8::MAX));
        let time_ns = ((event.ts - start) * 1e3) as u64;
        if let (OUT_OF_MEMORY, (_, Some(bytes), Some(ordinal))) = (&*event.name, known) {
            let (action, size) = (Action::OutOfMemory { free: None }, bytes.unsigned_abs());
            history.device(ordinal).push(action, 0, size, time_ns, 0);
            continue;
        }
        let (Some(address), Some(bytes), Some(ordinal)) = known else { continue };
        if !is_place(address, bytes.unsigned_abs()) {
            continue;
        }
        most = most.max(args.reserved.as_u64().unwrap_or(0));
        let (stays, live) = earlier.entry(ordinal).or_insert_with(|| {
            let before = args.allocated.as_i64().unwrap_or(0).saturating_sub(bytes);
            (before.max(0).unsigned_abs(), HashSet::new())
        });
        if bytes > 0 {
            live.insert(address);
        } else if !live.remove(&address) {
            *stays = stays.saturating_sub(bytes.unsigned_abs());
        }
        let action = if bytes > 0 { Action::Alloc } else { Action::FreeCompleted };
        history.device(ordinal).push(action, address, bytes.unsigned_abs(), time_ns, 0);
    }
    if history.devices.is_empty() {
        return Err(ImportProblem::Unknown {
            looks: "a timeline without [memory] events of a GPU",
        });
    }
    for (ordinal, (size, _)) in earlier {
        let entries = &mut history.device(ordinal).entries;
        let first = HistoryEntry { action: Action::Alloc, address: BEFORE, size, ..entries[0] };
        if size > 0 && is_place(BEFORE, size) {
            entries.insert(0, first);
        }
    }
    let reserved = match most {
        0 => String::new(),
        most => format!("; it says that up to {} were reserved", size(most)),
    };
    history.caveats.push(format!("the file has no segments{reserved}"));
    Ok(history)
}

/// The address that stands for what was allocated earlier, and stays: no GPU's memory is there.
const BEFORE: u64 = 1 << 55;
