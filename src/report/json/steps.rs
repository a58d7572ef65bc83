//! The key `steps` of `report --by step --json`.

use serde::Serialize;

use crate::analysis::steps::{InStep, Step, StepGrowth, StepState, Steps};
use crate::analysis::{NamedStack, StackClassifier};
use crate::report::wording::ordinal;

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StepsFacts {
    /// Iterations, without one that the trace ends in. Null: they cannot be told.
    pub count: Option<usize>,
    /// `no-backward`: the program has none. Any other: they cannot be told from micro-batches. Null: they are known.
    pub unknown: Option<&'static str>,
    pub why: Option<String>,
    pub steps: Vec<StepFacts>,
    /// Forward passes without backward, between the iterations.
    pub apart: Vec<ApartFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StepFacts {
    /// From 1: the number of `--at step:N`.
    pub number: usize,
    /// `whole`, `skipped` (the optimizer did not run) or `unfinished` (the trace ends in it).
    pub state: &'static str,
    pub begin_s: f64,
    pub end_s: f64,
    pub duration_s: f64,
    /// When most was allocated.
    pub peak_s: f64,
    /// Micro-batches; in a cycle of several optimizers, their backward passes together.
    pub backward_passes: usize,
    /// Steps of optimizers.
    pub updates: usize,
    /// The NVTX range that names a batch.
    pub batch: Option<String>,
    pub devices: Vec<InStepFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ApartFacts {
    /// The number of iterations before it.
    pub after: usize,
    pub forward_passes: usize,
    pub begin_s: f64,
    pub end_s: f64,
    pub devices: Vec<InStepFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InStepFacts {
    pub device: Option<u8>,
    /// Allocated, as in `holders`.
    pub peak_bytes: u64,
    /// Allocated after it.
    pub left_bytes: u64,
    pub largest_request_bytes: u64,
    /// The stack that grew most since the end of the iteration before.
    pub grew: Option<GrewFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GrewFacts {
    pub bytes: u64,
    #[serde(flatten)]
    pub stack: NamedStack,
}

/// The value of `steps`. `growth`: of each iteration.
pub fn facts(steps: &Steps, growth: &[StepGrowth], classifier: &StackClassifier) -> StepsFacts {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let grew = |growth: &StepGrowth, device| {
        let (_, stack, bytes) = *growth.grown.iter().find(|(of, ..)| *of == device)?;
        Some(GrewFacts { bytes, stack: classifier.named(stack) })
    };
    let in_step = |device, memory: &InStep, grew| InStepFacts {
        device: ordinal(device),
        peak_bytes: memory.peak_bytes,
        left_bytes: memory.left_bytes,
        largest_request_bytes: memory.largest_request,
        grew,
    };
    let step = |(step, growth): (&Step, &StepGrowth)| StepFacts {
        number: step.number,
        state: match step.state {
            StepState::Whole => "whole",
            StepState::Skipped => "skipped",
            StepState::Unfinished => "unfinished",
        },
        begin_s: seconds(step.begin.time_ns),
        end_s: seconds(step.end.time_ns),
        duration_s: seconds(step.duration_ns),
        peak_s: seconds(step.peak.time_ns),
        backward_passes: step.backward_passes,
        updates: step.updates,
        batch: growth.batch.clone(),
        devices: step
            .devices
            .iter()
            .map(|(device, memory)| in_step(*device, memory, grew(growth, *device)))
            .collect(),
    };
    let unknown = steps.found.as_ref().err();
    StepsFacts {
        count: unknown.is_none().then(|| steps.whole()),
        unknown: unknown.map(|why| why.name()),
        why: unknown.map(|why| why.to_string()),
        steps: steps.steps().iter().zip(growth).map(step).collect(),
        apart: steps
            .apart
            .iter()
            .map(|apart| ApartFacts {
                after: apart.after,
                forward_passes: apart.passes,
                begin_s: seconds(apart.begin.time_ns),
                end_s: seconds(apart.end.time_ns),
                devices: apart
                    .devices
                    .iter()
                    .map(|(device, memory)| in_step(*device, memory, None))
                    .collect(),
            })
            .collect(),
    }
}
