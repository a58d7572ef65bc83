//! The moments of a run that commands can show, whether the trace tells what was live then, and the level of allocations that
//! a figure counts.

use std::borrow::Cow;

use serde::Serialize;
use vramtrace_format::{DeviceId, Stamped};

use crate::facts;
use crate::replay::{Observer, State, Until};
use crate::trace::{Definitions, Trace};
use crate::units::{seconds, size};

/// Driver memory or tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Allocations that the driver made.
    #[default]
    Driver,
    /// Blocks of a framework's cache in place of the driver memory that holds them.
    Tensor,
}

impl Level {
    /// The name in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Level::Driver => "driver",
            Level::Tensor => "tensor",
        }
    }

    /// `Tensor` where blocks of a framework's cache were recorded, else `Driver`.
    pub fn of(state: &State) -> Level {
        if state.cache.is_used() { Level::Tensor } else { Level::Driver }
    }
}

/// The moment whose state is requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// The last event of the trace.
    End,
    /// The peak of driver memory; of PyTorch's cache, of its reserved bytes.
    Peak,
    /// The peak of the bytes in blocks of a framework's cache.
    AllocatedPeak,
    /// The last request that failed; of a run that ended so, the last before its end. Reading a trace replaces it by the
    /// event.
    OutOfMemory,
    /// This many ns after the start of the trace.
    At(u64),
    /// In an iteration of a training. Reading a trace replaces it by the event.
    Step(StepMoment),
    /// After the event at this file offset.
    Event { offset: u64, time_ns: u64 },
}

/// A moment of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepMoment {
    /// From 1.
    pub number: usize,
    /// After it; else when most was allocated in it.
    pub after: bool,
}

impl Moment {
    /// Whether each device reaches this moment at a different time.
    pub fn is_peak(self) -> bool {
        matches!(self, Moment::Peak | Moment::AllocatedPeak)
    }

    /// Its name in JSON.
    pub fn label(self) -> &'static str {
        match self {
            Moment::Peak => "peak",
            Moment::AllocatedPeak => "peak-allocated",
            Moment::End => "end",
            Moment::OutOfMemory => "oom",
            Moment::At(_) | Moment::Event { .. } => "time",
            Moment::Step(StepMoment { after: false, .. }) => "step",
            Moment::Step(StepMoment { after: true, .. }) => "step-end",
        }
    }

    /// `at the peak`.
    pub fn words(self) -> Cow<'static, str> {
        match self {
            Moment::Peak => "at the peak".into(),
            Moment::AllocatedPeak => "at the peak of PyTorch's blocks".into(),
            Moment::End => "at the end".into(),
            Moment::OutOfMemory => "when it ran out of memory".into(),
            Moment::At(_) | Moment::Event { .. } => "at that time".into(),
            Moment::Step(StepMoment { number, after: false }) => {
                format!("at the peak of step {number}").into()
            }
            Moment::Step(StepMoment { number, after: true }) => {
                format!("after step {number}").into()
            }
        }
    }
}

/// A moment in a document.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct MomentFacts {
    /// `peak`, `peak-allocated`, `end`, `oom`, `time`, `step` (its peak) or `step-end`.
    #[serde(rename = "at")]
    pub label: &'static str,
    /// Since the start of the trace; null where the moment differs between devices or processes.
    #[serde(rename = "at_s", with = "facts::SecondsOrNull")]
    pub at_ns: Option<u64>,
}

impl MomentFacts {
    /// `at_ns`: the moment on each device. A time is in it only if one was requested or all are equal: each
    /// device has its own peak.
    pub fn of(moment: Moment, at_ns: impl IntoIterator<Item = u64>) -> MomentFacts {
        let asked = match moment {
            Moment::At(time_ns) | Moment::Event { time_ns, .. } => Some(time_ns),
            _ => None,
        };
        let mut all: Vec<u64> = at_ns.into_iter().collect();
        all.dedup();
        let only = if let [only] = all[..] { Some(only) } else { None };
        MomentFacts { label: moment.label(), at_ns: asked.or(only) }
    }
}

/// Whether the state of a moment is known.
#[derive(Clone, Debug, PartialEq)]
pub enum Knowledge {
    Known,
    /// Events before it are missing and no checkpoint follows: the state may be wrong.
    Unsure,
    /// The events before it were erased to bound the file, or are damaged: why, and the nearest moments that can be shown.
    NotKnown(String),
}

/// Whether `state`, the replay up to this moment, is known to be right.
pub fn knowledge(
    trace: &Trace,
    definitions: &Definitions,
    state: &State,
    moment: Moment,
) -> Knowledge {
    if state.live_is_known() {
        return Knowledge::Known;
    }
    let (Moment::At(after_ns) | Moment::Event { time_ns: after_ns, .. }) = moment else {
        return Knowledge::Unsure;
    };
    // The first whole checkpoint at that time or later: one more reading of the trace.
    let mut next = FirstResume { after_ns, found: None };
    trace.replay_until(definitions, Until::End, &mut next, &mut |_, _| {});
    if next.found.is_none() && !state.is_in_gap() {
        return Knowledge::Unsure;
    }
    let is_off = state.off.last().is_some_and(|span| span.until_ns.is_none());
    let cause = match trace.header().max_bytes {
        _ if is_off => "the recording was switched off".to_string(),
        Some(most) => {
            let most = size(most);
            format!("its events were erased to bound the file (VRAMTRACE_MAX={most})")
        }
        None => "its events are damaged".to_string(),
    };
    let until = state.known_until_ns;
    let until = until.map(|until| format!("; all is known up to {}", seconds(until)));
    Knowledge::NotKnown(format!(
        "what was live at {} is not in the file: {cause}{}{}",
        seconds(after_ns),
        until.unwrap_or_default(),
        next.found.unwrap_or_default(),
    ))
}

struct FirstResume {
    after_ns: u64,
    found: Option<String>,
}

impl Observer for FirstResume {
    fn on_resume(&mut self, at: &Stamped, state: &State) {
        if at.time_ns < self.after_ns || self.found.is_some() {
            return;
        }
        let used = state.devices.iter().filter(|(_, device)| device.was_used());
        let live = used.map(|(device, of)| match *device {
            DeviceId::UNKNOWN => format!("{} on an unknown device", size(of.live_bytes)),
            DeviceId(ordinal) => format!("{} on GPU {ordinal}", size(of.live_bytes)),
        });
        let live: Vec<String> = live.collect();
        let live = match live.is_empty() {
            true => String::new(),
            false => format!(", and {} were live then", live.join(", ")),
        };
        self.found = Some(format!("; from {} on it is known{live}", seconds(at.time_ns)));
    }
}
