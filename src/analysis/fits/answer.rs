//! The answer: which batch, or which length, fits on a card, under each setting of the allocator.

use super::cards::{Architecture, Card, architecture_of};
use super::law::Bound;
use super::margins::Margin;
use super::recording::Recording;
use super::scaling::Scaling;
use super::varied::{Axis, Values, Varied};
use super::{LARGEST_BATCH, NotComparable};
use crate::allocator::{Conf, ReplayOutcome};

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

/// What the recordings tell.
#[derive(Debug)]
pub struct Answer<'r> {
    pub recordings: &'r [Recording],
    pub scaling: Scaling<'r>,
    line: Line,
    /// `None`: neither asked for nor in the trace.
    pub card: Option<Card>,
    pub in_use: u64,
    /// `in_use` is what others held of the recorded card, by the trace.
    pub in_use_recorded: bool,
    /// The architectures of the recorded card and of the one that is asked for, where they differ.
    pub other: Option<(Architecture, Architecture)>,
    /// By setting. Empty without a card.
    pub settings: Vec<SettingAnswer>,
    /// By value, then by setting.
    pub predicted: Vec<Predicted>,
}

impl Answer<'_> {
    /// Whether the card is the recorded one, or of its architecture.
    pub fn has_verdict(&self) -> bool {
        self.other.is_none()
    }

    pub fn varied(&self) -> &Varied {
        &self.scaling.base().varied
    }

    /// The number whose values fit or do not.
    pub fn searched(&self) -> Axis {
        self.line.searched
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.varied().name(self.line.searched)
    }

    /// Of two numbers the other one, and its value.
    pub fn at(&self) -> Option<(&str, u64)> {
        self.varied().second.as_ref()?;
        let other = self.line.searched.other();
        Some((self.varied().name(other), self.line.through.of(other)))
    }

    /// Whether each value that was asked for fits under one of the settings.
    pub fn all_fit(&self) -> bool {
        let values = self.predicted.chunk_by(|a, b| a.value == b.value);
        let fits = |one: &Predicted| one.verdict.is_none_or(|verdict| verdict == Verdict::Fits);
        values.into_iter().all(|of| of.iter().any(fits))
    }

    /// Bytes of the card that the program can use.
    pub fn capacity(&self) -> Option<u64> {
        self.card.as_ref().map(|card| card.bytes.saturating_sub(self.in_use))
    }
}

/// Answers a question.
pub fn answer<'r>(
    recordings: &'r [Recording],
    question: &Question,
) -> Result<Answer<'r>, NotComparable> {
    let scaling = Scaling::of(recordings)?;
    let recorded = scaling.base();
    let of_recording = || {
        let architecture = recorded.card.as_deref().and_then(architecture_of);
        let name = recorded.card.clone();
        recorded.recorded.card_bytes.map(|bytes| Card { name, bytes, architecture })
    };
    let card = question.card.clone().or_else(of_recording);
    let asked = card.as_ref().and_then(|card| card.architecture);
    let here = recorded.card.as_deref().and_then(architecture_of);
    let other = here.zip(asked).filter(|(here, asked)| here != asked);
    let of_others = recorded.recorded.others_bytes.filter(|_| question.card.is_none());
    let in_use_recorded = question.in_use.is_none() && of_others.is_some();
    let in_use = question.in_use.or(of_others).unwrap_or(0);
    let capacity = card.as_ref().map(|card| card.bytes.saturating_sub(in_use));
    let line = Line::through(scaling.base_values(), question.at);
    let settings = capacity.map(|capacity| answers(&scaling, line, &question.confs, capacity));
    let settings = settings.unwrap_or_default();
    let predict = |value: &u64| {
        let one = |(index, conf): (usize, &(String, Conf))| {
            let setting = settings.get(index).filter(|_| other.is_none());
            predict(&scaling, (line, *value), conf, setting)
        };
        question.confs.iter().enumerate().map(one).collect::<Vec<_>>()
    };
    let predicted = question.values.iter().flat_map(predict).collect();
    Ok(Answer {
        recordings,
        in_use,
        in_use_recorded,
        settings,
        line,
        scaling,
        card,
        other,
        predicted,
    })
}

/// The values among which the largest that fits is searched: one number varies, the other one stays.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    searched: Axis,
    through: Values,
}

impl Line {
    fn through(base: Values, at: Option<(Axis, u64)>) -> Line {
        match at {
            None => Line { searched: Axis::First, through: base },
            Some((axis, value)) => Line { searched: axis.other(), through: base.with(axis, value) },
        }
    }

    fn at(self, value: u64) -> Values {
        self.through.with(self.searched, value)
    }
}

/// Bytes, with the interval that holds the truth in 95 of 100 cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    pub low: u64,
    pub expected: u64,
    pub high: u64,
}

/// A run at one value under one setting, without a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    pub value: u64,
    pub setting: String,
    /// PyTorch's own figures: torch.cuda.max_memory_allocated and max_memory_reserved.
    pub allocated: Interval,
    pub reserved: Interval,
    /// The cache and everything else on the device.
    pub total: Interval,
    /// On the card.
    pub verdict: Option<Verdict>,
}

/// Whether a batch, or a length, fits on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Fits,
    DoesNotFit,
    TooClose,
}

impl Verdict {
    /// As in output.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Fits => "fits",
            Verdict::DoesNotFit => "does not fit",
            Verdict::TooClose => "too close to say",
        }
    }
}

/// The values that fit on a card under one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct SettingAnswer {
    pub setting: String,
    pub in_force: bool,
    /// Why recorded calls would fail with it.
    pub forbidden: Option<String>,
    /// The largest value that fits for certain; 0: none.
    pub fits: u64,
    /// The largest that is expected to fit.
    pub expected: u64,
    /// The smallest that does not fit for certain. `None`: above all values that were tried.
    pub fails: Option<u64>,
}

impl SettingAnswer {
    /// The values between those that fit and those that do not.
    pub fn too_close(&self) -> Option<(u64, u64)> {
        let fails = self.fails?;
        (fails > self.fits + 1).then(|| (self.fits + 1, fails - 1))
    }

    /// A smaller value never needs more.
    fn verdict(&self, value: u64) -> Verdict {
        match () {
            () if value <= self.fits => Verdict::Fits,
            () if self.fails.is_some_and(|fails| value >= fails) => Verdict::DoesNotFit,
            () => Verdict::TooClose,
        }
    }
}

/// The run at a value. `setting`: what fits under it, where there is a verdict.
fn predict(
    scaling: &Scaling,
    (line, value): (Line, u64),
    (name, conf): &(String, Conf),
    setting: Option<&SettingAnswer>,
) -> Predicted {
    let at = line.at(value);
    let [low, expected, high] =
        [Bound::Low, Bound::Expected, Bound::High].map(|bound| scaling.replay(at, bound, conf));
    let unused = unused(&expected, conf);
    let margin = reserved_margin(scaling, at);
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
    let margin = reserved_margin(scaling, at);
    // Where cuDNN is refused a workspace it takes another one, and the places of later blocks are not known.
    let places_known = !scaling.has_workspaces();
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

fn reserved_margin(scaling: &Scaling, at: Values) -> Margin {
    Margin::reserved(at, &scaling.recorded, scaling.model_off)
}

/// The values that fit under each setting, on all cores.
fn answers(
    scaling: &Scaling,
    line: Line,
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
    let recorded = &scaling.base().recorded;
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
fn largest(scaling: &Scaling, line: Line, bound: Bound, conf: &Conf, capacity: u64) -> u64 {
    let served = |value| served(scaling, line.at(value), bound, conf, capacity);
    let (mut fits, mut fails) = (0, scaling.base_values().of(line.searched));
    while served(fails) {
        fits = fails;
        if fails >= LARGEST_BATCH {
            return fits;
        }
        fails = (fails * 2).min(LARGEST_BATCH);
    }
    while fails - fits > 1 {
        let middle = fits + (fails - fits) / 2;
        if served(middle) {
            fits = middle;
        } else {
            fails = middle;
        }
    }
    fits
}
