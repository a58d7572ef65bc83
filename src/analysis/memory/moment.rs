//! The moments of a run that commands can show.

use std::borrow::Cow;

use serde::Serialize;

use crate::facts;

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
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MomentFacts {
    /// `peak`, `peak-allocated`, `end`, `oom`, `time`, `step` (its peak) or `step-end`.
    pub label: &'static str,
    /// Since the start of the trace; null where the moment differs between devices or processes.
    #[serde(rename = "seconds", serialize_with = "facts::seconds_or_null")]
    #[cfg_attr(test, schemars(with = "Option<f64>"))]
    at_ns: Option<u64>,
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
