//! How the size of a block depends on the batch. Sizes are bytes.
//!
//! A trace has the sizes of blocks, and most have the requests too. A block may be larger than its request: by less than 512 B, and, where it is
//! large and was taken whole, by up to 1 MiB that PyTorch's cache does not split off. So a block of 3.5 MiB at batch 4 and
//! one of 3 MiB at batch 6 may be the same request of 3 MiB. A law holds if it explains each recorded block within these
//! limits, or each request where the trace has them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::guesses::unknown;
use super::terms::{self, Powers, Term};
use super::varied::{Values, Varied};
use crate::allocator::rounding::{MIN_BLOCK, SMALL};

/// The values of a step, and the size of the block that was recorded at them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub at: Values,
    pub bytes: u64,
    /// The smallest request that the block may serve.
    pub least: u64,
}

/// How a block's size follows the batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Law {
    Constant(u64),
    /// `fixed` + `each` for each sample.
    Affine {
        fixed: f64,
        each: f64,
    },
    /// Quadratic in what was varied: `fixed` + `each` * x + `square` * x * x. Needs three recorded values.
    Quadratic {
        fixed: f64,
        each: f64,
        square: f64,
    },
    /// Grew, and no longer grows.
    Saturated(u64),
    /// Of two numbers: in proportion to one of these terms. The recorded values do not tell which; the first is expected.
    Terms(Vec<Term>),
    /// What was recorded follows none of these.
    Unknown(Vec<Point>),
}

/// Laws of the same kind, for output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LawKind {
    Constant,
    Affine,
    Quadratic,
    Saturated,
    /// Of two numbers: other than constant.
    Powers(Powers),
    Unknown,
}

impl LawKind {
    /// All kinds that blocks may have, where one number differs or two.
    pub fn all(varied: &Varied) -> Vec<LawKind> {
        let mut all = vec![LawKind::Constant];
        match varied.second {
            None => all.extend([LawKind::Affine, LawKind::Quadratic, LawKind::Saturated]),
            Some(_) => all.extend(Powers::ALL.map(LawKind::of)),
        }
        all.push(LawKind::Unknown);
        let mut seen = Vec::new();
        all.retain(|kind| {
            !seen.contains(kind) && {
                seen.push(*kind);
                true
            }
        });
        all
    }

    fn of(powers: Powers) -> LawKind {
        if powers == Powers::NONE { LawKind::Constant } else { LawKind::Powers(powers) }
    }

    pub fn name(self, varied: &Varied) -> String {
        match self {
            LawKind::Constant => "constant".into(),
            LawKind::Affine => "affine".into(),
            LawKind::Quadratic => "quadratic".into(),
            LawKind::Saturated => "saturated".into(),
            LawKind::Powers(powers) => powers.name(varied),
            LawKind::Unknown => "unknown".into(),
        }
    }
}

/// Which end of the interval of an unknown law is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Low,
    Expected,
    High,
}

/// The largest size that a law may give.
const MOST: f64 = (1u64 << 50) as f64;

/// A line through two points is a law, and no guess, if what it has at batch 0 is at most this part of the block: padding
/// and flags are small, and buffers that saturate are not.
pub(super) const FIXED_PART: f64 = 0.03;

/// The number with the most factors of two: shapes of tensors are such numbers, and blocks that are reused must have the
/// same size. `None`: the range is empty.
pub(super) fn roundest(range: RangeInclusive<u64>) -> Option<u64> {
    let (low, high) = (*range.start(), *range.end());
    (0..u64::BITS).rev().map(|bits| high >> bits << bits).find(|it| *it >= low && *it > 0)
}

/// What unambiguous blocks of the same runs tell about those that two laws explain.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// Sizes of constant blocks: weights, and what is as large as they. With the number of blocks.
    constants: BTreeMap<u64, u32>,
    /// Bytes for each sample, with the number of blocks.
    each: BTreeMap<u64, u32>,
}

/// What most blocks have of the sizes in a range, and their number.
pub(super) fn usual(sizes: &BTreeMap<u64, u32>, range: RangeInclusive<u64>) -> Option<(u64, u32)> {
    if range.is_empty() {
        return None;
    }
    sizes
        .range(range)
        .map(|(size, count)| (*size, *count))
        .max_by_key(|(size, count)| (*count, *size))
}

impl Known {
    /// Adds a block that only one law explains, without slack.
    pub(super) fn learn(&mut self, points: &[Point]) {
        let fits = Candidates::of(points);
        if fits.batches.len() < 2 {
            return;
        }
        let bytes = fits.batches[0].bytes;
        if fits.batches.iter().all(|point| point.bytes == bytes) {
            *self.constants.entry(bytes).or_default() += 1;
        } else if let (None, Some(each)) = (fits.constant, fits.proportional)
            && fits.meets(&|batch| each * batch as f64) == fits.batches.len()
            && let Some(each) = fits.exact_each()
        {
            *self.each.entry(each).or_default() += 1;
        }
    }
}

impl Law {
    /// The law of a block.
    pub(super) fn of(points: &[Point], known: &Known) -> Law {
        let fits = Candidates::of(points);
        if fits.batches.len() < 2 {
            return Law::Unknown(points.to_vec());
        }
        match (fits.constant, fits.proportional) {
            (Some(bytes), None) => Law::Constant(fits.known_constant(known, bytes)),
            (None, Some(each)) => fits.line(each),
            (Some(bytes), Some(each)) => fits.closer(bytes, each, known),
            (None, None) => fits.by_shape(),
        }
    }

    pub fn kind(&self) -> LawKind {
        match self {
            Law::Constant(_) => LawKind::Constant,
            Law::Affine { .. } => LawKind::Affine,
            Law::Quadratic { .. } => LawKind::Quadratic,
            Law::Saturated(_) => LawKind::Saturated,
            Law::Terms(terms) => match &terms[..] {
                [one] => LawKind::of(one.powers),
                _ => LawKind::Unknown,
            },
            Law::Unknown(_) => LawKind::Unknown,
        }
    }

    /// Whether a recorded block may be as large as the law has it.
    pub(super) fn explains(&self, point: Point) -> bool {
        let bytes = self.at(point.at, Bound::Expected);
        (point.least..point.bytes + MIN_BLOCK).contains(&bytes)
    }

    /// The size at other values.
    pub fn at(&self, at: Values, bound: Bound) -> u64 {
        let x = at.first as f64;
        let bytes = match self {
            Law::Constant(bytes) | Law::Saturated(bytes) => return *bytes,
            Law::Affine { fixed, each } => fixed + each * x,
            Law::Quadratic { fixed, each, square } => fixed + each * x + square * x * x,
            Law::Terms(terms) => terms::at(terms, at, bound),
            Law::Unknown(points) => unknown(points, at, bound),
        };
        bytes.clamp(1.0, MOST).round() as u64
    }
}

/// The laws that explain all points.
struct Candidates {
    /// The least size at each batch, in order.
    batches: Vec<Point>,
    /// The largest constant, and the largest bytes for each sample.
    constant: Option<u64>,
    proportional: Option<f64>,
    /// The smallest ones.
    least_constant: u64,
    least_each: f64,
}

/// The smallest request that a block may serve. Those of up to 1 MiB are served from blocks of their own size. `split`: the
/// cache split the block off a larger one.
pub(super) fn least_request(bytes: u64, split: bool) -> u64 {
    let unsplit = if bytes > SMALL && !split { SMALL } else { 0 };
    let least = bytes.saturating_sub(unsplit + MIN_BLOCK - 1);
    if bytes > SMALL { least.max(SMALL + 1) } else { least }
}

/// Whether two blocks at one batch may serve the same request.
pub(super) fn same_request(one: Point, other: Point) -> bool {
    one.least.max(other.least) <= one.bytes.min(other.bytes)
}

impl Candidates {
    fn of(points: &[Point]) -> Candidates {
        let per = |bytes: u64, point: &Point| bytes as f64 / point.at.first.max(1) as f64;
        let constant = points.iter().map(|point| point.bytes).min().unwrap_or(0);
        let least_constant = points.iter().map(|point| point.least).max().unwrap_or(0);
        let each = points.iter().map(|point| per(point.bytes, point)).fold(f64::MAX, f64::min);
        let least_each = points.iter().map(|point| per(point.least, point)).fold(0.0, f64::max);
        let mut batches = points.to_vec();
        batches.sort_by_key(|point| (point.at.first, point.bytes));
        batches.dedup_by_key(|point| point.at.first);
        Candidates {
            batches,
            constant: Some(constant).filter(|bytes| least_constant <= *bytes),
            proportional: Some(each).filter(|each| least_each <= *each),
            least_constant,
            least_each,
        }
    }

    /// The number of batches at which a law has the size of the block, without slack.
    fn meets(&self, law: &dyn Fn(u64) -> f64) -> usize {
        let is_met =
            |point: &&Point| (point.bytes as f64 - law(point.at.first)).abs() < MIN_BLOCK as f64;
        self.batches.iter().filter(is_met).count()
    }

    /// The size of known blocks that explains the points, or the largest size that does.
    fn known_constant(&self, known: &Known, bytes: u64) -> u64 {
        usual(&known.constants, self.least_constant..=bytes).map_or(bytes, |(size, _)| size)
    }

    /// The law of a size in proportion to the batch.
    fn line(&self, each: f64) -> Law {
        let exact = self.exact_each().map(|each| each as f64);
        Law::Affine { fixed: 0.0, each: exact.unwrap_or(each) }
    }

    /// The bytes for each sample, where these blocks are as large as their requests.
    fn exact_each(&self) -> Option<u64> {
        let least = |point: &Point| {
            point.bytes.saturating_sub(MIN_BLOCK - 1) as f64 / point.at.first.max(1) as f64
        };
        let least = self.batches.iter().map(least).fold(0.0, f64::max);
        roundest(least.ceil() as u64..=self.proportional? as u64)
    }

    /// Of two laws the one that meets all batches without slack, or else the one that other blocks have.
    fn closer(&self, bytes: u64, each: f64, known: &Known) -> Law {
        let constant = self.meets(&|_| bytes as f64);
        let proportional = self.meets(&|batch| each * batch as f64);
        let is_line = Law::Affine { fixed: 0.0, each };
        if constant == self.batches.len() {
            return Law::Constant(bytes);
        }
        if proportional == self.batches.len() {
            return self.line(each);
        }
        let as_others = usual(&known.each, self.least_each.ceil() as u64..=each.round() as u64);
        let as_weights = usual(&known.constants, self.least_constant..=bytes);
        match (as_weights, as_others) {
            (Some((bytes, blocks)), of) if of.is_none_or(|(_, others)| others <= blocks) => {
                Law::Constant(bytes)
            }
            (_, Some((each, _))) => Law::Affine { fixed: 0.0, each: each as f64 },
            _ if self.batches[0].bytes < self.batches[self.batches.len() - 1].bytes => is_line,
            _ => Law::Constant(bytes),
        }
    }

    /// The law of points that are neither equal nor proportional.
    fn by_shape(&self) -> Law {
        let at =
            |index: usize| (self.batches[index].at.first as f64, self.batches[index].bytes as f64);
        let last = self.batches.len() - 1;
        let ((x1, y1), (x2, y2)) = (at(0), at(last));
        let each = (y2 - y1) / (x2 - x1);
        let fixed = y1 - each * x1;
        let near = |law: &dyn Fn(f64) -> f64| {
            let mut all = (0..=last).map(at);
            all.all(|(x, y)| (law(x) - y).abs() <= (SMALL as f64).min(0.02 * y))
        };
        let is_line = near(&|x| fixed + each * x) && each > 0.0 && fixed >= 0.0;
        if is_line && (last > 1 || fixed <= FIXED_PART * y1) {
            return Law::Affine { fixed, each };
        }
        if last > 1 {
            let (_, before) = at(last - 1);
            if y2 == before && y1 < y2 {
                return Law::Saturated(y2 as u64);
            }
            if let Some((fixed, each, square)) = parabola(at(0), at(last / 2), at(last))
                && square > 0.0
                && fixed.abs() <= FIXED_PART * y1
                && near(&|x| fixed + each * x + square * x * x)
            {
                return Law::Quadratic { fixed, each, square };
            }
        }
        Law::Unknown(self.batches.clone())
    }
}

/// The parabola through three points.
fn parabola(a: (f64, f64), b: (f64, f64), c: (f64, f64)) -> Option<(f64, f64, f64)> {
    let slope = |p: (f64, f64), q: (f64, f64)| (q.1 - p.1) / (q.0 - p.0);
    let square = (slope(b, c) - slope(a, b)) / (c.0 - a.0);
    let each = slope(a, b) - square * (a.0 + b.0);
    let fixed = a.1 - each * a.0 - square * a.0 * a.0;
    square.is_finite().then_some((fixed, each, square))
}
