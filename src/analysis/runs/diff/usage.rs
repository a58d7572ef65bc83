//! The memory that a run held at one moment, by the names of its lines. Sizes are bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vramtrace_format::{Cause, DeviceId};

use crate::analysis::roles::{HeldByRole, Role};
use crate::analysis::{GroupBy, Holder, NamedHoldings, Process, StackClassifier};
use crate::symbols::{Frame, base_name};

/// The usage of all processes and devices of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Whether the lines have what the driver took for itself. Baselines of older versions lack it.
    #[serde(default)]
    pub has_driver_memory: bool,
    pub places: Vec<PlaceUse>,
}

impl Usage {
    /// The same, as an older version saved it.
    pub(super) fn without_driver_memory(&self) -> Usage {
        let mut all = self.clone();
        all.has_driver_memory = false;
        for place in &mut all.places {
            for line in place.lines.iter().filter(|line| !line.name.driver_memory.is_empty()) {
                place.in_use_bytes = place.in_use_bytes.saturating_sub(line.bytes);
                let mut causes = Cause::ALL.into_iter();
                let cause = causes.find(|cause| cause.name() == line.name.driver_memory);
                let role = Role::of_cause(cause.unwrap_or(Cause::Other));
                if let Some(bytes) = place.roles.get_mut(role.name()) {
                    *bytes = bytes.saturating_sub(line.bytes);
                }
            }
            place.lines.retain(|line| line.name.driver_memory.is_empty());
            place.roles.retain(|_, bytes| *bytes > 0);
        }
        all
    }
}

/// The usage of one device by one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlaceUse {
    pub rank: Option<u32>,
    /// Index of a process without a rank, in the order in which these began.
    pub process: u32,
    pub device: Option<u8>,
    /// The peak of driver memory in the run.
    pub peak_bytes: u64,
    /// The moment of all figures below, since the start of the trace.
    pub at_seconds: f64,
    /// Held memory without the free part of a framework's cache.
    pub in_use_bytes: u64,
    pub free_in_cache_bytes: u64,
    /// Bytes by role. Empty where no blocks of a cache were recorded.
    pub roles: BTreeMap<String, u64>,
    /// Largest first. Their sum is `in_use_bytes`.
    pub lines: Vec<LineUse>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LineUse {
    #[serde(flatten)]
    pub name: LineName,
    pub bytes: u64,
    pub count: u64,
}

/// The names that identify a line in any run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LineName {
    pub library: String,
    /// The last part of the path. Empty: not known.
    pub file: String,
    pub line: Option<u32>,
    pub function: String,
    /// The program's line that called it, `train.py:41 main`. Empty: none.
    pub called_from: String,
    /// What the driver took the memory for: `graphs`, `modules`. Empty: it was allocated.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub driver_memory: String,
}

impl LineName {
    /// `modeling.py:212 forward, called from train.py:41 main`.
    pub fn words(&self) -> String {
        let place = match (self.file.as_str(), self.line) {
            ("", _) => String::new(),
            (file, Some(line)) => format!("{file}:{line} "),
            (file, None) => format!("{file} "),
        };
        let caller = match self.called_from.as_str() {
            "" => String::new(),
            caller => format!(", called from {caller}"),
        };
        let kind = match self.driver_memory.as_str() {
            "" => String::new(),
            kind => format!("{}: ", kind.replace('_', " ")),
        };
        format!("{kind}{place}{}{caller}", self.function)
    }

    /// The same name without line numbers.
    pub(super) fn without_lines(&self) -> LineName {
        let caller = self.called_from.split_once(' ').map_or("", |(_, function)| function);
        LineName { line: None, called_from: caller.to_string(), ..self.clone() }
    }
}

impl PlaceUse {
    /// The usage of each device of a process, from the holdings `who.live`. `process_index`: see
    /// [`PlaceUse::process`].
    pub fn of(
        process: &Process,
        who: &NamedHoldings,
        roles: Option<&HeldByRole>,
        process_index: u32,
    ) -> Vec<PlaceUse> {
        let classifier = StackClassifier::new(&who.symbols, &process.header);
        let holders = classifier.holders(&who.live, GroupBy::Line);
        let place = |(device, at_ns): (&DeviceId, &u64)| {
            let here = || holders.iter().filter(|holder| holder.device == *device);
            let bytes = |holder: &Holder| (!holder.stack.is_free_cache()).then_some(holder.bytes);
            let in_use = here().filter_map(bytes).fold(0, u64::saturating_add);
            let all = here().map(|holder| holder.bytes).fold(0, u64::saturating_add);
            let peak = process.state.devices.get(device).map_or(0, |state| state.peak.bytes);
            let of_roles = roles.into_iter().flat_map(|roles| roles.of_device(*device));
            let of_roles = of_roles.filter(|(role, _)| *role != Role::FreeCache);
            PlaceUse {
                rank: process.header.rank,
                process: process_index,
                device: (*device != DeviceId::UNKNOWN).then_some(device.0),
                peak_bytes: peak,
                at_seconds: *at_ns as f64 / 1e9,
                in_use_bytes: in_use,
                free_in_cache_bytes: all - in_use,
                roles: of_roles.map(|(role, held)| (role.name().to_string(), held.bytes)).collect(),
                lines: here().filter(|holder| !holder.stack.is_free_cache()).map(line).collect(),
            }
        };
        who.live.at_ns.iter().map(place).filter(|place| place.in_use_bytes > 0).collect()
    }

    /// `rank 3, GPU 0`.
    pub fn name(&self) -> String {
        let device = self.device.map_or("unknown device".into(), |device| format!("GPU {device}"));
        match (self.rank, self.process) {
            (Some(rank), _) => format!("rank {rank}, {device}"),
            (None, 0) => device,
            (None, index) => format!("process {}, {device}", index + 1),
        }
    }
}

fn line(holder: &Holder) -> LineUse {
    let words = |frame: &Frame| match frame.place() {
        Some(place) => format!("{place} {}", frame.function),
        None => frame.function.to_string(),
    };
    let Holder { stack, library, driver_memory, bytes, count, .. } = holder;
    let file = stack.lead().map(|frame| base_name(&frame.file).to_string());
    let name = LineName {
        library: library.clone().unwrap_or_default(),
        file: file.unwrap_or_default(),
        line: stack.lead().and_then(|frame| frame.line),
        function: match stack.function() {
            Some(name) => name.into_owned(),
            None => stack.why_no_frames().unwrap_or_default().to_string(),
        },
        called_from: stack.caller().map(words).unwrap_or_default(),
        driver_memory: driver_memory.map(|cause| cause.name().to_string()).unwrap_or_default(),
    };
    LineUse { name, bytes: *bytes, count: *count }
}
