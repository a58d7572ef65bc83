//! Iterations and their figures.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use vramtrace_format::DeviceId;

use super::StepObserver;
use crate::analysis::StepMoment;
use crate::facts;
use crate::symbols::Symbols;
use crate::trace::{Definitions, Trace};
use crate::units::several;

// The place of an event in the trace. As JSON its seconds since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(into = "f64")]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema), schemars(with = "f64", inline))]
pub struct EventPlace {
    pub offset: u64,
    pub time_ns: u64,
}

impl From<EventPlace> for f64 {
    fn from(place: EventPlace) -> f64 {
        place.time_ns as f64 / 1e9
    }
}

/// The iterations of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps {
    /// In their order; numbers begin with 1. At least one.
    pub found: Result<Vec<Step>, NoSteps>,
    /// Forward passes without a backward pass, between the iterations: evaluation, generation.
    pub apart: Vec<Apart>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Step {
    /// From 1: the number of `--at step:N`.
    pub number: usize,
    /// `skipped`: the optimizer did not run; `unfinished`: the trace ends in it.
    pub state: StepState,
    #[serde(rename = "begin_s")]
    pub begin: EventPlace,
    /// The last event before the next iteration, or before the forward passes that stand apart.
    #[serde(rename = "end_s")]
    pub end: EventPlace,
    /// Up to the begin of the next iteration, if that follows at once; else to its end.
    #[serde(rename = "duration_s", with = "facts::Seconds")]
    pub duration_ns: u64,
    /// The moment when most was allocated on all devices together.
    #[serde(rename = "peak_at_s")]
    pub peak: EventPlace,
    /// Micro-batches; in a cycle of several optimizers, their backward passes together.
    pub backward_passes: usize,
    /// Steps of optimizers: 2 in the cycle of two.
    pub updates: usize,
    #[serde(serialize_with = "facts::devices")]
    #[cfg_attr(feature = "schemas", schemars(with = "Vec<facts::OfDevice<InStep>>"))]
    pub devices: BTreeMap<DeviceId, InStep>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum StepState {
    Whole,
    /// Its optimizer did not run, as after an overflow of half precision.
    Skipped,
    /// The trace ends in it.
    Unfinished,
}

/// The memory of one device in an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct InStep {
    /// Allocated, as in `holders`.
    pub peak_bytes: u64,
    /// Allocated at its end.
    pub left_bytes: u64,
    pub largest_request_bytes: u64,
}

/// Forward passes in a row that no backward pass followed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Apart {
    /// The number of iterations before it.
    pub after: usize,
    pub forward_passes: usize,
    #[serde(rename = "begin_s")]
    pub begin: EventPlace,
    #[serde(rename = "end_s")]
    pub end: EventPlace,
    #[serde(serialize_with = "facts::devices")]
    #[cfg_attr(feature = "schemas", schemars(with = "Vec<facts::OfDevice<InStep>>"))]
    pub devices: BTreeMap<DeviceId, InStep>,
}

/// The key `steps` of `report --by step --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct StepsFacts<'s> {
    /// Iterations, without one that the trace ends in. Null: they are not known.
    pub count: Option<usize>,
    /// `no-backward`: the program has none. Any other: they look like micro-batches. Null: they are known.
    #[cfg_attr(feature = "schemas", schemars(with = "Option<String>"))]
    pub unknown: Option<NoSteps>,
    pub why: Option<String>,
    pub steps: &'s [Step],
    /// Forward passes without backward, between the iterations.
    pub apart: &'s [Apart],
}

/// Why a trace has no iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoSteps {
    NoBackward,
    /// Nothing lies between two backward passes that ends an iteration.
    NoUpdates,
    /// Optimizers that take unequal turns.
    Turns,
    /// Gradients are often freed without an optimizer.
    Frees,
    /// No optimizer is seen, and gradients are freed at different times.
    Parts,
    /// No optimizer is seen, and the gradients may be those of inputs.
    Inputs,
    /// A step of the optimizer runs several passes.
    Closure,
    Graphs,
    /// Optimizers are seen, and backward passes are not: frames have no names.
    NoNames,
    /// The trace lacks events.
    EventsMissing,
    /// The trace has a sample of the allocations.
    Sampled,
}

impl fmt::Display for NoSteps {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        let why = match self {
            NoSteps::NoBackward => {
                return to.write_str("no steps: the stacks show no backward pass of PyTorch");
            }
            NoSteps::NoUpdates => {
                "between backward passes, no optimizer allocates and no gradients are freed"
            }
            NoSteps::Turns => "several optimizers take turns of different lengths",
            NoSteps::Frees => "many backward passes end in freed gradients without an optimizer",
            NoSteps::Parts => "no optimizer allocates, and gradients are freed at different times",
            NoSteps::Inputs => "no optimizer allocates, and the gradients may be those of inputs",
            NoSteps::Closure => "one step of the optimizer runs several passes",
            NoSteps::Graphs => "CUDA graphs repeat passes without allocating",
            NoSteps::NoNames => {
                "an optimizer runs, and no frame names a backward pass: read the trace on the machine that recorded it, \
                 or `vramtrace pack` it there"
            }
            NoSteps::EventsMissing => "the trace lacks events",
            NoSteps::Sampled => "the trace has a sample of the allocations",
        };
        write!(to, "iterations cannot be told from micro-batches: {why}")
    }
}

impl Steps {
    /// Reads the trace once.
    pub fn of(trace: &Trace, definitions: &Definitions) -> Steps {
        let symbols = Symbols::of_all(definitions, trace.header());
        let mut observer = StepObserver::new(definitions, &symbols);
        trace.replay(definitions, &mut observer);
        observer.finish()
    }

    pub fn facts(&self) -> StepsFacts<'_> {
        let unknown = self.found.as_ref().err();
        StepsFacts {
            count: unknown.is_none().then(|| self.whole()),
            unknown: unknown.copied(),
            why: unknown.map(NoSteps::to_string),
            steps: self.steps(),
            apart: &self.apart,
        }
    }

    pub fn steps(&self) -> &[Step] {
        self.found.as_deref().unwrap_or_default()
    }

    /// The number of iterations that are not cut off by the end of the trace.
    pub fn whole(&self) -> usize {
        self.steps().iter().filter(|step| step.state != StepState::Unfinished).count()
    }

    /// The iteration with this number.
    pub fn get(&self, number: usize) -> Option<&Step> {
        self.steps().get(number.checked_sub(1)?)
    }

    /// The event of a moment of an iteration.
    pub fn moment(&self, asked: StepMoment) -> Option<EventPlace> {
        let step = self.get(asked.number)?;
        Some(if asked.after { step.end } else { step.peak })
    }

    /// Why there is no iteration with this number.
    pub fn why_not(&self, number: usize) -> String {
        match &self.found {
            Ok(steps) => {
                let all = several(steps.len() as u64, "step");
                format!("the run has {all}, there is no step {number}")
            }
            Err(why) => why.to_string(),
        }
    }

    /// The iteration that runs at this place of the file.
    pub fn at(&self, offset: u64) -> Option<&Step> {
        let after = self.steps().partition_point(|step| step.begin.offset <= offset);
        self.get(after).filter(|step| offset <= step.end.offset)
    }
}
