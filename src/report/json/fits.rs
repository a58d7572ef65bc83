//! `fits --json`: schema `vramtrace.fits/1`.

use serde::Serialize;

use crate::analysis::fits::{
    Answer, Axis, Interval, LawKind, Name, Predicted, Recording, SettingAnswer, Values,
};
use crate::report::fits::caveats;

pub const SCHEMA: &str = "vramtrace.fits/1";

/// `vramtrace.fits/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FitsReport {
    pub schema: &'static str,
    /// The number whose values fit or do not: `batch`.
    pub varied: String,
    /// Of two numbers that differ between the recordings the other one; null: one differs.
    pub at: Option<NumberFacts>,
    pub recorded: Vec<RecordedFacts>,
    /// null: no card is known.
    pub card: Option<CardFacts>,
    /// By setting.
    pub settings: Vec<SettingFacts>,
    /// The batches that were asked for, under each setting.
    pub predictions: Vec<PredictionFacts>,
    pub laws: Vec<LawFacts>,
    /// The part of the memory of a step that was seen at more than one batch.
    pub paired: f64,
    /// What limits the answer.
    pub caveats: Vec<String>,
}

/// A number that differs between the recordings.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NumberFacts {
    pub name: String,
    pub value: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecordedFacts {
    pub trace: String,
    /// The values of the number whose values fit or do not.
    pub batches: Vec<u64>,
    /// The numbers of its steps, each combination once.
    pub values: Vec<Vec<NumberFacts>>,
    pub steps: u64,
    pub ordinal: u8,
    pub card: Option<String>,
    /// null: the trace does not contain it.
    pub setting: Option<String>,
    pub peak_allocated_bytes: u64,
    pub peak_reserved_bytes: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CardFacts {
    /// null: so many bytes of a card like the recorded one.
    pub name: Option<String>,
    pub bytes: u64,
    /// What others use of it.
    pub in_use_bytes: u64,
    /// The trace has this figure: --in-use was not given, and the card is the recorded one.
    pub in_use_recorded: bool,
    pub architecture: Option<&'static str>,
    /// false: of another architecture than the recorded one. There is no verdict.
    pub verdict: bool,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SettingFacts {
    pub conf: String,
    pub in_force: bool,
    /// Why recorded calls would fail with it.
    pub forbidden: Option<String>,
    /// The largest value that fits; 0: none.
    pub fits: u64,
    /// The largest that is expected to fit.
    pub expected: u64,
    /// The smallest that does not fit; null: none was found.
    pub does_not_fit: Option<u64>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PredictionFacts {
    pub value: u64,
    pub conf: String,
    pub peak_allocated: IntervalFacts,
    pub peak_reserved: IntervalFacts,
    /// PyTorch's cache and all other memory of the process on the device.
    pub peak_total: IntervalFacts,
    /// `fits`, `does not fit`, `too close to say`; null: no verdict.
    pub verdict: Option<&'static str>,
}

/// Bytes. The interval is meant to hold the truth in 95 of 100 cases.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct IntervalFacts {
    pub expected_bytes: u64,
    pub low_bytes: u64,
    pub high_bytes: u64,
}

/// Allocations of the replayed steps whose size follows a law.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LawFacts {
    /// `constant`, `affine`, `quadratic`, `saturated` or `unknown`. Where two numbers differ, what it is in proportion to in
    /// place of the middle three, as `batch x length^2`.
    pub law: String,
    pub allocations: u64,
    pub bytes: u64,
}

/// The document.
pub fn report(answer: &Answer) -> FitsReport {
    let shares = answer.scaling.shares();
    let law = |kind: LawKind| {
        let share = shares.get(&kind).copied().unwrap_or_default();
        LawFacts { law: kind.name(answer.varied()), allocations: share.blocks, bytes: share.bytes }
    };
    FitsReport {
        schema: SCHEMA,
        varied: answer.name().to_string(),
        at: answer.at().map(|(name, value)| NumberFacts { name: name.to_string(), value }),
        recorded: answer.recordings.iter().map(|one| recorded(answer, one)).collect(),
        card: answer.card.as_ref().map(|card| CardFacts {
            name: card.name.clone(),
            bytes: card.bytes,
            in_use_bytes: answer.in_use,
            in_use_recorded: answer.in_use_recorded,
            architecture: card.architecture.map(|architecture| architecture.name()),
            verdict: answer.has_verdict(),
        }),
        settings: answer.settings.iter().map(setting).collect(),
        predictions: answer.predicted.iter().map(prediction).collect(),
        laws: LawKind::all(answer.varied()).into_iter().map(law).collect(),
        paired: answer.scaling.paired,
        caveats: caveats(answer),
    }
}

fn recorded(answer: &Answer, recording: &Recording) -> RecordedFacts {
    let of = &recording.recorded;
    let numbers = |values: Values| {
        let axes = [Axis::First, Axis::Second].into_iter().zip(recording.varied.names());
        let number = |(axis, name): (Axis, &Name)| NumberFacts {
            name: name.as_str().to_string(),
            value: values.of(axis),
        };
        axes.map(number).collect()
    };
    RecordedFacts {
        trace: recording.name.clone(),
        batches: recording.values_of(answer.searched()),
        values: recording.values().into_iter().map(numbers).collect(),
        steps: recording.steps() as u64,
        ordinal: of.device.0,
        card: recording.card.clone(),
        setting: of.in_force.variable().map(|(_, text)| text.to_string()),
        peak_allocated_bytes: of.peak_allocated,
        peak_reserved_bytes: of.peak_reserved,
    }
}

fn setting(setting: &SettingAnswer) -> SettingFacts {
    SettingFacts {
        conf: setting.setting.clone(),
        in_force: setting.in_force,
        forbidden: setting.forbidden.clone(),
        fits: setting.fits,
        expected: setting.expected,
        does_not_fit: setting.fails,
    }
}

fn prediction(predicted: &Predicted) -> PredictionFacts {
    PredictionFacts {
        value: predicted.value,
        conf: predicted.setting.clone(),
        peak_allocated: interval(predicted.allocated),
        peak_reserved: interval(predicted.reserved),
        peak_total: interval(predicted.total),
        verdict: predicted.verdict.map(|verdict| verdict.name()),
    }
}

fn interval(interval: Interval) -> IntervalFacts {
    IntervalFacts {
        expected_bytes: interval.expected,
        low_bytes: interval.low,
        high_bytes: interval.high,
    }
}
