//! torch.cuda.memory._snapshot(), of torch 2.0 to 2.15: segments and blocks at the end, and the
//! history before it if one was recorded. Keys that a torch version does not write are optional.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use vramtrace_format::StackId;

use super::error::ImportProblem;
use super::history::{
    Action, Form, Ground, History, HistoryBlock, HistoryDevice, HistoryEntry, HistoryFrame,
    HistorySegment, is_place,
};
use super::pickle::{self, PickleError, Value};

pub(super) fn read(bytes: &[u8]) -> Result<History, ImportProblem> {
    let (value, cut) = pickle::parse_cut(bytes)?;
    match of_value(&value, bytes.len()) {
        Ok(history) if cut => Ok(history.cut()),
        _ if cut => Err(PickleError::Truncated.into()),
        result => result.map_err(ImportProblem::Snapshot),
    }
}

/// The segments of a dump without a history: torch.cuda.memory.memory_snapshot().
fn alone(value: &Value) -> Option<Vec<Value>> {
    let segments = value.items()?;
    let known = |segment: &Value| segment.get("total_size").is_some();
    (!segments.is_empty() && segments.iter().all(known)).then_some(segments)
}

pub(super) fn is_one(value: &Value) -> bool {
    let has = |key| value.get(key).is_some();
    alone(value).is_some() || has("segments") || has("device_traces")
}

/// `bytes`: length of the file.
pub(super) fn of_value(value: &Value, bytes: usize) -> Result<History, String> {
    let mut reader = Reader {
        history: History::new(Form::Snapshot),
        frames: FxHashMap::default(),
        stacks: FxHashMap::default(),
        room: bytes / BYTES_AN_ENTRY,
        timeless: false,
    };
    if !is_one(value) {
        return Err("has neither segments nor device_traces: it is no PyTorch memory snapshot \
                    (torch.cuda.memory._dump_snapshot)"
            .into());
    }
    reader.read(value)?;
    match reader.history.devices.is_empty() {
        true => {
            Err("a PyTorch memory snapshot without segments and history: it has no memory".into())
        }
        false => Ok(reader.history),
    }
}

const NO_LIST: &str = " is no list";
const NO_PLACE: &str = ": it ends behind all memory";

/// Least bytes of a file for each entry or block. A pickle can refer to one list many times, so that a small hostile
/// file could list more entries than memory holds.
const BYTES_AN_ENTRY: usize = 8;

struct Reader {
    history: History,
    /// Frames and stacks that were read, by the identity of their shared container.
    frames: FxHashMap<usize, u32>,
    stacks: FxHashMap<usize, StackId>,
    /// How many more entries and blocks are accepted.
    room: usize,
    /// At least one entry has no time.
    timeless: bool,
}

impl Reader {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let list = |key: &str| match value.get(key) {
            None => Ok(Vec::new()),
            Some(list) => list.items().ok_or_else(|| format!("{key}{NO_LIST}")),
        };
        let (segments, traces) = match alone(value) {
            Some(segments) => (segments, Vec::new()),
            None => (list("segments")?, list("device_traces")?),
        };
        self.history.conf = value.get("allocator_settings").map(|settings| conf(&settings));
        for (index, segment) in segments.iter().enumerate() {
            let at = |error: String| format!("segments[{index}]{error}");
            let ordinal = segment.get("device").map_or(Some(0), |device| device.int());
            let segment = self.segment(segment).map_err(at)?;
            self.device(ordinal).map_err(at)?.segments.push(segment);
        }
        for (ordinal, trace) in traces.iter().enumerate() {
            let at = |error: String| format!("device_traces[{ordinal}]{error}");
            let entries = trace.items().ok_or_else(|| at(NO_LIST.into()))?;
            if entries.is_empty() {
                continue;
            }
            let mut known = Vec::with_capacity(entries.len());
            for (index, entry) in entries.iter().enumerate() {
                let at = |error: String| at(format!("[{index}]{error}"));
                known.extend(self.entry(entry).map_err(at)?);
            }
            self.device(i64::try_from(ordinal).ok()).map_err(at)?.entries = known;
        }
        self.history.devices.sort_by_key(|device| device.ordinal);
        self.history.devices.iter_mut().for_each(set_pools);
        self.set_times();
        Ok(())
    }

    fn device(&mut self, ordinal: Option<i64>) -> Result<&mut HistoryDevice, String> {
        // 255 stands for a device that is not known.
        let ordinal = ordinal.and_then(|n| u8::try_from(n).ok()).filter(|n| *n < u8::MAX);
        let ordinal = ordinal.ok_or(": the device is no ordinal from 0 to 254")?;
        Ok(self.history.device(ordinal))
    }

    fn take_room(&mut self) -> Result<(), String> {
        self.room = self.room.checked_sub(1).ok_or(": the file lists more than it can hold")?;
        Ok(())
    }

    fn segment(&mut self, segment: &Value) -> Result<HistorySegment, String> {
        self.take_room()?;
        let (address, size) = (number(segment, "address")?, number(segment, "total_size")?);
        if !is_place(address, size) {
            return Err(NO_PLACE.into());
        }
        let end = address + size;
        let mut blocks = Vec::new();
        let mut at = address;
        let listed = segment.get("blocks").and_then(|blocks| blocks.items());
        for (index, block) in listed.ok_or(" has no blocks")?.iter().enumerate() {
            let wrong = |error: String| format!(".blocks[{index}]{error}");
            self.take_room()?;
            let size = number(block, "size").map_err(wrong)?;
            let start = optional(block, "address").unwrap_or(at);
            let next = start.checked_add(size).filter(|next| start >= at && *next <= end);
            const ORDER: &str = " overlaps the block before it, or ends after the segment";
            at = next.ok_or_else(|| wrong(ORDER.into()))?;
            let state = block.get("state").and_then(|state| state.text());
            let state = state.ok_or_else(|| wrong(" has no state".into()))?;
            if &*state == "inactive" {
                continue;
            }
            // Torch 2.0 keeps a list of what the block was.
            let past = block.get("history").and_then(|past| past.items());
            let first = past.unwrap_or_default().into_iter().next();
            let real = first.as_ref().and_then(|first| optional(first, "real_size"));
            let frames = block.get("frames").or(first.and_then(|first| first.get("frames")));
            blocks.push(HistoryBlock {
                address: start,
                size,
                requested: optional(block, "requested_size").or(real).unwrap_or(size).min(size),
                // Called active_awaiting_free in documents.
                pending: &*state != "active_allocated",
                stack: self.stack_at_end(frames).map_err(wrong)?,
            });
        }
        Ok(HistorySegment {
            address,
            size,
            ground: Ground {
                stream: optional(segment, "stream").unwrap_or(0),
                pool: self.pool(segment.get("segment_pool_id"))?,
                expandable: segment.get("is_expandable").and_then(|e| e.int()) == Some(1),
                stack: self.stack_at_end(segment.get("frames"))?,
            },
            blocks,
        })
    }

    /// `None`: an action that changes no memory.
    fn entry(&mut self, entry: &Value) -> Result<Option<HistoryEntry>, String> {
        self.take_room()?;
        let name = entry.get("action").and_then(|action| action.text());
        let name = name.ok_or(": it has no action")?;
        let Some(mut action) = Action::from_name(&name) else { return Ok(None) };
        let mut address = 0;
        if let Action::OutOfMemory { free } = &mut action {
            *free = optional(entry, "device_free");
        } else {
            address = number(entry, "addr")?;
        }
        let size = number(entry, "size")?;
        if !matches!(action, Action::OutOfMemory { .. }) && !is_place(address, size) {
            return Err(NO_PLACE.into());
        }
        let time_us = optional(entry, "time_us");
        self.timeless |= time_us.is_none();
        Ok(Some(HistoryEntry {
            action,
            address,
            size,
            stream: optional(entry, "stream").unwrap_or(0),
            pool: self.pool(entry.get("pool_id"))?,
            time_ns: time_us.unwrap_or(0).saturating_mul(1_000),
            stack: self.stack(entry.get("frames").as_ref())?,
        }))
    }

    /// Index of a private pool by its id. Entries have one from torch 2.12 on.
    fn pool(&mut self, id: Option<Value>) -> Result<u16, String> {
        let pair = id.and_then(|id| id.items()).unwrap_or_default();
        let number = |at: usize| pair.get(at).and_then(Value::int).unwrap_or(0);
        let id = (number(0), number(1));
        let pools = &mut self.history.pools;
        let index = pools.iter().position(|known| *known == id).unwrap_or_else(|| {
            pools.push(id);
            pools.len() - 1
        });
        // Pools are searched linearly: the limit keeps hostile files fast.
        let index = u16::try_from(index).ok().filter(|index| *index < 4_096);
        Ok(index.ok_or(": there are more than 4,095 private pools")?)
    }

    /// Of memory that the history does not allocate: without frames, no stack was taken.
    fn stack_at_end(&mut self, frames: Option<Value>) -> Result<StackId, String> {
        let is_empty = |frames: &Value| frames.items().is_some_and(|frames| frames.is_empty());
        self.stack(frames.filter(|frames| !is_empty(frames)).as_ref())
    }

    fn stack(&mut self, frames: Option<&Value>) -> Result<StackId, String> {
        let Some(list) = frames.filter(|frames| frames.identity().is_some()) else {
            return Ok(StackId(0));
        };
        let identity = list.identity().unwrap_or(0);
        if let Some(known) = self.stacks.get(&identity) {
            return Ok(*known);
        }
        let frames = list.items().ok_or_else(|| format!(".frames{NO_LIST}"))?;
        let indexes = frames.iter().map(|frame| self.frame(frame)).collect();
        let stack = self.history.stacks.stack(indexes);
        self.stacks.insert(identity, stack);
        Ok(stack)
    }

    fn frame(&mut self, frame: &Value) -> u32 {
        let identity = frame.identity().unwrap_or(0);
        if let Some(known) = self.frames.get(&identity) {
            return *known;
        }
        let text = |key: &str| -> Arc<str> {
            frame.get(key).and_then(|text| text.text()).as_deref().unwrap_or("").into()
        };
        let line = frame.get("line").and_then(|line| line.int());
        let line = line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
        let (function, mut file) = (text("name"), text("filename"));
        // A path of Windows, perhaps relative or on a server.
        let drive =
            matches!(file.as_bytes(), [letter, b':', b'\\', ..] if letter.is_ascii_alphabetic());
        if drive || file.contains('\\') && !file.contains('/') {
            file = file.replace('\\', "/").into();
        }
        let index = self.history.stacks.frame(HistoryFrame { function, file, line });
        self.frames.insert(identity, index);
        index
    }

    /// Times from the first entry on; a microsecond each where the file has none.
    fn set_times(&mut self) {
        let entries = || self.history.devices.iter().flat_map(|device| &device.entries);
        let start = entries().map(|entry| entry.time_ns).min().unwrap_or(0);
        let end = entries().map(|entry| entry.time_ns).max().unwrap_or(0);
        // Times that are all the same are none, nor are those in another unit, which end behind all that is counted.
        let are_some = start < end && end < u64::MAX || entries().count() == 1;
        self.history.has_times = !self.timeless && are_some;
        let has_times = self.history.has_times;
        self.history.start_unix_ns = has_times.then_some(start);
        for device in &mut self.history.devices {
            for (entry, index) in device.entries.iter_mut().zip(0..) {
                entry.time_ns = if has_times { entry.time_ns - start } else { index * 1_000 };
            }
        }
    }
}

/// Entries have no pool before torch 2.12: that of a segment is what it has at the end.
fn set_pools(device: &mut HistoryDevice) {
    let at_end: BTreeMap<u64, (u64, u16)> =
        device.segments.iter().map(|of| (of.address, (of.size, of.ground.pool))).collect();
    let mut later = FxHashSet::default();
    let is_made = |it: &&mut HistoryEntry| {
        matches!(it.action, Action::SegmentAlloc | Action::SegmentMap) && it.pool == 0
    };
    for entry in device.entries.iter_mut().rev().filter(is_made) {
        let segment = at_end.range(..=entry.address).next_back();
        if let Some((start, (size, pool))) = segment
            && entry.address - start < *size
            && later.insert(entry.address)
        {
            entry.pool = *pool;
        }
    }
}

/// PYTORCH_CUDA_ALLOC_CONF; if it is empty and the program changed settings, the equivalent string.
fn conf(settings: &Value) -> String {
    let text = settings.get("PYTORCH_CUDA_ALLOC_CONF").and_then(|conf| conf.text());
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        return text.to_string();
    }
    let mut parts = Vec::new();
    if settings.get("expandable_segments").and_then(|on| on.int()) == Some(1) {
        parts.push("expandable_segments:True".to_string());
    }
    let split = settings.get("max_split_size").and_then(|size| size.int());
    if let Some(bytes) = split.filter(|bytes| *bytes > 0) {
        parts.push(format!("max_split_size_mb:{}", bytes >> 20));
    }
    let threshold = settings.get("garbage_collection_threshold").and_then(|share| share.float());
    if let Some(threshold) = threshold.filter(|share| *share > 0.0) {
        parts.push(format!("garbage_collection_threshold:{threshold}"));
    }
    let divisions = settings.get("roundup_power2_divisions");
    let of_size = |power: u32| {
        let mib = (1u64 << power).to_string();
        let number = divisions.as_ref()?.get(&mib)?.int().filter(|number| *number > 0)?;
        Some(format!("{mib}:{number}"))
    };
    let divisions: Vec<String> = (0..16).filter_map(of_size).collect();
    if !divisions.is_empty() {
        parts.push(format!("roundup_power2_divisions:[{}]", divisions.join(",")));
    }
    parts.join(",")
}

/// A number that must be there.
fn number(of: &Value, key: &str) -> Result<u64, String> {
    let value = of.get(key).ok_or_else(|| format!(": it has no {key}"))?;
    let number = value.int().and_then(|n| u64::try_from(n).ok());
    number.ok_or_else(|| format!(": its {key} is no number from 0 up"))
}

/// Handles of streams may have their highest bit set.
fn optional(of: &Value, key: &str) -> Option<u64> {
    of.get(key).and_then(|value| value.int()).map(|n| n as u64)
}
