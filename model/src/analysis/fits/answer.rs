//! The answer: which batch, or which length, fits on a card, under each setting of the allocator.

use serde::Serialize;
use vramtrace_format::DeviceId;

use super::cards::{Architecture, Card, architecture_of};
use super::caveats::caveats;
use super::law::{Bound, LawKind};
use super::margins::Margin;
use super::recording::Recording;
use super::scaling::{Scaling, Share};
use super::stacks::Kind;
use super::varied::{Axis, Number, Values};
use super::{LARGEST_BATCH, NotComparable};
use crate::allocator::{Conf, ReplayOutcome, bisected};
use crate::facts;

/// What is asked of the recordings.
#[derive(Clone, Debug)]
pub struct Question {
    /// Of two numbers that differ: the one that is given, and its value. The other one is searched. `None`: the batch is, at
    /// the largest recorded length.
    pub at: Option<(Axis, u64)>,
    /// `None`: the recorded card.
    pub card: Option<Card>,
    /// Bytes of the card that others use. `None`: on the recorded card what they held of it then, else 0.
    pub in_use: Option<u64>,
    /// Values of the number that is searched, which are predicted.
    pub values: Vec<u64>,
    pub confs: Vec<(String, Conf)>,
}

impl Question {
    /// Which batch fits on the recorded card.
    pub fn usual(recordings: &[Recording]) -> Question {
        let confs = usual_settings(recordings);
        Question { at: None, card: None, in_use: None, values: Vec::new(), confs }
    }
}

/// The settings that are tried where none are given: those of the recordings, and these.
const SETTINGS: [&str; 2] = ["default", "expandable_segments:True"];

/// Each setting once, the recorded ones first.
pub fn usual_settings(recordings: &[Recording]) -> Vec<(String, Conf)> {
    let recorded = recordings.iter().filter_map(|recording| {
        let in_force = &recording.recorded.in_force;
        Some((in_force.name().to_string(), in_force.conf.clone()?))
    });
    let named = |name: &str| Some((name.to_string(), Conf::parse(name).ok()?));
    let mut confs: Vec<(String, Conf)> = Vec::new();
    for (name, conf) in recorded.chain(SETTINGS.into_iter().filter_map(named)) {
        if confs.iter().all(|(_, other)| *other != conf) {
            confs.push((name, conf));
        }
    }
    confs
}

/// What the recordings tell: the facts of `vramtrace fits`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Answer {
    /// The number whose values fit or do not: `batch`.
    pub varied: String,
    /// Of two numbers that differ between the recordings the other one; null: one differs.
    pub at: Option<Number>,
    pub recorded: Vec<RecordedRun>,
    /// null: no card is known.
    pub card: Option<AnsweredCard>,
    /// By setting. Empty without a card.
    pub settings: Vec<SettingAnswer>,
    /// The batches that were asked for, under each setting.
    #[serde(rename = "predictions")]
    pub predicted: Vec<Predicted>,
    pub laws: Vec<LawShare>,
    /// The part of the memory of a step that was seen at more than one batch.
    pub paired: f64,
    /// What limits the answer.
    pub caveats: Vec<String>,
    /// The architectures of the recorded card and of the one that is asked for, where they differ: then there is no verdict.
    #[serde(skip)]
    pub other: Option<(Architecture, Architecture)>,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct RecordedRun {
    pub trace: String,
    /// The values of the number whose values fit or do not.
    pub batches: Vec<u64>,
    /// The numbers of its steps, each combination once.
    pub values: Vec<Vec<Number>>,
    pub steps: usize,
    #[serde(serialize_with = "facts::number")]
    #[cfg_attr(feature = "schemas", schemars(with = "u8"))]
    pub device: DeviceId,
    pub card: Option<String>,
    /// null: the trace does not contain it.
    pub setting: Option<String>,
    pub peak_allocated_bytes: u64,
    pub peak_reserved_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct AnsweredCard {
    /// null: so many bytes of a card like the recorded one.
    pub name: Option<String>,
    pub bytes: u64,
    /// What others use of it.
    #[serde(rename = "in_use_bytes")]
    pub in_use: u64,
    /// The trace has this figure: --in-use was not given, and the card is the recorded one.
    pub in_use_recorded: bool,
    #[cfg_attr(feature = "schemas", schemars(with = "Option<String>"))]
    pub architecture: Option<Architecture>,
    /// false: of another architecture than the recorded one. There is no verdict.
    pub verdict: bool,
}

impl AnsweredCard {
    /// Bytes that the program can use.
    pub fn capacity(&self) -> u64 {
        self.bytes.saturating_sub(self.in_use)
    }
}

/// Allocations of the replayed steps whose size follows a law.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct LawShare {
    /// `constant`, `affine` or `unknown`. Where two numbers differ, what it is in proportion to in place of `affine`, as
    /// `batch x length^2`.
    pub law: String,
    pub allocations: u64,
    pub bytes: u64,
}

impl Answer {
    /// Whether each value that was asked for fits under one of the settings.
    pub fn all_fit(&self) -> bool {
        let values = self.predicted.chunk_by(|a, b| a.value == b.value);
        let fits = |one: &Predicted| one.verdict.is_none_or(|verdict| verdict == FitsVerdict::Fits);
        values.into_iter().all(|of| of.iter().any(fits))
    }
}

/// Answers a question.
pub fn answer(recordings: &[Recording], question: &Question) -> Result<Answer, NotComparable> {
    let scaling = Scaling::of(recordings)?;
    let base = scaling.base;
    let of_recording = || {
        let name = base.card.clone();
        let architecture = name.as_deref().and_then(architecture_of);
        base.recorded.card_bytes.map(|bytes| Card { name, bytes, architecture })
    };
    let card = question.card.clone().or_else(of_recording);
    let asked = card.as_ref().and_then(|card| card.architecture);
    let here = base.card.as_deref().and_then(architecture_of);
    let other = here.zip(asked).filter(|(here, asked)| here != asked);
    let of_others = base.recorded.others_bytes.filter(|_| question.card.is_none());
    let card = card.map(|card| AnsweredCard {
        name: card.name,
        bytes: card.bytes,
        in_use: question.in_use.or(of_others).unwrap_or(0),
        in_use_recorded: question.in_use.is_none() && of_others.is_some(),
        architecture: card.architecture,
        verdict: other.is_none(),
    });
    let line = SearchLine::through(scaling.base_values(), question.at);
    let settings = card
        .as_ref()
        .map(|card| answers(&scaling, line, &question.confs, card.capacity()))
        .unwrap_or_default();
    let predict = |value: &u64| {
        let one = |(index, conf): (usize, &(String, Conf))| {
            let setting = settings.get(index).filter(|_| other.is_none());
            predict(&scaling, (line, *value), conf, setting)
        };
        question.confs.iter().enumerate().map(one).collect::<Vec<_>>()
    };
    let shares = scaling.shares();
    let law = |kind: LawKind| {
        let Share { blocks, bytes } = shares.get(&kind).copied().unwrap_or_default();
        LawShare { law: kind.name(&base.varied), allocations: blocks, bytes }
    };
    let searched = line.searched;
    Ok(Answer {
        varied: base.varied.name(searched).to_string(),
        at: base.varied.second.as_ref().map(|_| Number {
            name: base.varied.name(searched.other()).to_string(),
            value: line.through.of(searched.other()),
        }),
        recorded: recordings.iter().map(|one| one.facts(searched)).collect(),
        predicted: question.values.iter().flat_map(predict).collect(),
        laws: LawKind::all(&base.varied).into_iter().map(law).collect(),
        paired: scaling.paired,
        caveats: caveats(&scaling, card.as_ref()),
        settings,
        card,
        other,
    })
}

impl Recording {
    fn facts(&self, searched: Axis) -> RecordedRun {
        let of = &self.recorded;
        RecordedRun {
            trace: self.name.clone(),
            batches: self.values_of(searched),
            values: self.values().into_iter().map(|at| self.varied.numbers(at)).collect(),
            steps: self.steps(),
            device: of.device,
            card: self.card.clone(),
            setting: of.in_force.variable().map(|(_, text)| text.to_string()),
            peak_allocated_bytes: of.peak_allocated,
            peak_reserved_bytes: of.peak_reserved,
        }
    }
}

/// The values among which the largest that fits is searched: one number varies, the other one stays.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SearchLine {
    searched: Axis,
    through: Values,
}

impl SearchLine {
    fn through(base: Values, at: Option<(Axis, u64)>) -> SearchLine {
        match at {
            None => SearchLine { searched: Axis::First, through: base },
            Some((axis, value)) => {
                SearchLine { searched: axis.other(), through: base.with(axis, value) }
            }
        }
    }

    fn at(self, value: u64) -> Values {
        self.through.with(self.searched, value)
    }
}

/// Bytes. The interval is meant to hold the truth in 95 of 100 cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Interval {
    #[serde(rename = "expected_bytes")]
    pub expected: u64,
    #[serde(rename = "low_bytes")]
    pub low: u64,
    #[serde(rename = "high_bytes")]
    pub high: u64,
}

/// A run at one value under one setting, without a limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Predicted {
    pub value: u64,
    #[serde(rename = "conf")]
    pub setting: String,
    /// PyTorch's own figures: torch.cuda.max_memory_allocated and max_memory_reserved.
    #[serde(rename = "peak_allocated")]
    pub allocated: Interval,
    #[serde(rename = "peak_reserved")]
    pub reserved: Interval,
    /// PyTorch's cache and all other memory of the process on the device.
    #[serde(rename = "peak_total")]
    pub total: Interval,
    /// `fits`, `does not fit`, `too close to say`; null: no verdict.
    #[cfg_attr(feature = "schemas", schemars(with = "Option<String>"))]
    pub verdict: Option<FitsVerdict>,
}

/// Whether a batch, or a length, fits on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
pub enum FitsVerdict {
    Fits,
    DoesNotFit,
    TooClose,
}

impl From<FitsVerdict> for &'static str {
    fn from(verdict: FitsVerdict) -> &'static str {
        match verdict {
            FitsVerdict::Fits => "fits",
            FitsVerdict::DoesNotFit => "does not fit",
            FitsVerdict::TooClose => "too close to say",
        }
    }
}

/// The values that fit on a card under one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct SettingAnswer {
    #[serde(rename = "conf")]
    pub setting: String,
    pub in_force: bool,
    /// Why recorded calls would fail with it.
    pub forbidden: Option<String>,
    /// The largest value that fits; 0: none.
    pub fits: u64,
    /// The largest that is expected to fit.
    pub expected: u64,
    /// The smallest that does not fit; null: none was found.
    #[serde(rename = "does_not_fit")]
    pub fails: Option<u64>,
}

impl SettingAnswer {
    /// The values between those that fit and those that do not.
    pub fn too_close(&self) -> Option<(u64, u64)> {
        let fails = self.fails?;
        (fails > self.fits + 1).then(|| (self.fits + 1, fails - 1))
    }

    /// A smaller value never needs more.
    fn verdict(&self, value: u64) -> FitsVerdict {
        match () {
            () if value <= self.fits => FitsVerdict::Fits,
            () if self.fails.is_some_and(|fails| value >= fails) => FitsVerdict::DoesNotFit,
            () => FitsVerdict::TooClose,
        }
    }
}

/// The run at a value. `setting`: what fits under it, where there is a verdict.
fn predict(
    scaling: &Scaling,
    (line, value): (SearchLine, u64),
    (name, conf): &(String, Conf),
    setting: Option<&SettingAnswer>,
) -> Predicted {
    let at = line.at(value);
    let [low, expected, high] =
        [Bound::Low, Bound::Expected, Bound::High].map(|bound| scaling.replay(at, bound, conf));
    let unused = unused(&expected, conf);
    let margin = Margin::reserved(at, &scaling.recorded, scaling.model_off);
    let reserved = |of: fn(&ReplayOutcome) -> u64| {
        margin.around_fragmented(of(&low), of(&expected), of(&high), unused)
    };
    let allocated = |outcome: &ReplayOutcome| outcome.peak_allocated;
    let margin_of_allocated = Margin::allocated(at, &scaling.recorded);
    Predicted {
        value,
        setting: name.clone(),
        allocated: margin_of_allocated.around(
            allocated(&low),
            allocated(&expected),
            allocated(&high),
        ),
        reserved: reserved(|outcome| outcome.peak_reserved),
        total: reserved(|outcome| outcome.peak_total),
        verdict: setting.map(|setting| setting.verdict(value)),
    }
}

/// What the cache has and no block uses, as far as it depends on the order of the requests.
fn unused(outcome: &ReplayOutcome, conf: &Conf) -> u64 {
    match conf.expandable_segments {
        true => 0,
        false => outcome.peak_reserved.saturating_sub(outcome.peak_allocated),
    }
}

/// Whether all requests at these values are served. For a bound of the interval the capacity is less or more by the margin.
fn served(scaling: &Scaling, at: Values, bound: Bound, conf: &Conf, capacity: u64) -> bool {
    let margin = Margin::reserved(at, &scaling.recorded, scaling.model_off);
    // Where cuDNN is refused a workspace it takes another one, and the places of later blocks are not known, nor are they in
    // compiled code.
    let places_known = ![Kind::Workspace, Kind::Compiled].into_iter().any(|kind| scaling.has(kind));
    let capacity = match bound {
        Bound::High if !places_known => {
            let unused = unused(&scaling.replay(at, Bound::Expected, conf), conf);
            margin.capacity(capacity, true).saturating_sub(Margin::more_fragmented(unused))
        }
        Bound::High => margin.capacity(capacity, true),
        Bound::Expected => capacity,
        Bound::Low => margin.capacity(capacity, false),
    };
    if bound == Bound::Low && !places_known {
        return scaling.needed(at, conf) <= capacity;
    }
    scaling.replay_within(at, bound, conf, Some(capacity)).fits()
}

/// The values that fit under each setting, on all cores.
fn answers(
    scaling: &Scaling,
    line: SearchLine,
    confs: &[(String, Conf)],
    capacity: u64,
) -> Vec<SettingAnswer> {
    let bounds = [Bound::High, Bound::Expected, Bound::Low];
    let largest: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let one = |conf, bound| scope.spawn(move || largest(scaling, line, bound, conf, capacity));
        let all: Vec<Vec<_>> = confs
            .iter()
            .map(|(_, conf)| bounds.iter().map(|bound| one(conf, *bound)).collect())
            .collect();
        let join = |one: std::thread::ScopedJoinHandle<u64>| one.join().unwrap_or_default();
        all.into_iter().map(|of| of.into_iter().map(join).collect()).collect()
    });
    let recorded = &scaling.base.recorded;
    let answer = |((name, conf), largest): (&(String, Conf), Vec<u64>)| {
        let (fits, expected, low) = (largest[0], largest[1], largest[2]);
        SettingAnswer {
            setting: name.clone(),
            in_force: recorded.in_force.conf.as_ref() == Some(conf),
            forbidden: recorded.forbids(name, conf),
            fits: fits.min(expected),
            expected,
            fails: Some(low.max(expected) + 1).filter(|fails| *fails <= LARGEST_BATCH),
        }
    };
    confs.iter().zip(largest).map(answer).collect()
}

/// The largest value whose requests are served; 0: none. The search takes it that a smaller value needs less.
fn largest(scaling: &Scaling, line: SearchLine, bound: Bound, conf: &Conf, capacity: u64) -> u64 {
    let at = |value, bound| served(scaling, line.at(value), bound, conf, capacity);
    // Compiled code may have other blocks at any value, in places that leave more unused: at one of 25 measured it took 6 % more
    // than predicted. So larger values, by two and by a twelfth, are to fit as well.
    let is_unsure = bound == Bound::High && scaling.has(Kind::Compiled);
    let served = |value| {
        let larger = [1, 2, value / 12].into_iter().filter(|_| is_unsure);
        at(value, bound) && larger.map(|more| value + more).all(|value| at(value, Bound::Expected))
    };
    let (mut fits, mut fails) = (0, scaling.base_values().of(line.searched));
    while served(fails) {
        fits = fails;
        if fails >= LARGEST_BATCH {
            return fits;
        }
        fails = (fails * 2).min(LARGEST_BATCH);
    }
    bisected(fails, fits, 1, served)
}
