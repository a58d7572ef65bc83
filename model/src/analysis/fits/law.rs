//! How the size of a block depends on what was varied: the batch, or the batch and the length of samples. Sizes are bytes.
//!
//! A trace has the sizes of blocks, and most have the requests too. A block may be larger than its request: by less than 512 B, and, where it is
//! large and was taken whole, by up to 1 MiB that PyTorch's cache does not split off. So a block of 3.5 MiB at batch 4 and
//! one of 3 MiB at batch 6 may be the same request of 3 MiB. A law holds if it explains each recorded block within these
//! limits, or each request where the trace has them.
//!
//! The size of a tensor is a product of the numbers that its shape has: neither of the two, one of them, both, and the
//! second one once more (attention that is not fused has length x length). A *term* is one of these products with a
//! factor, and a small fixed part, as padding has. Those that explain the recorded sizes are candidates. If the
//! recorded values tell them apart, one is left. If they do not, the law is all of them, and its interval reaches from
//! the smallest size that they give to the largest. Of the batch alone a size that grew is in proportion to it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::guesses::unknown;
use super::varied::{Values, Varied, VariedName};
use crate::allocator::rounding::{MIN_BLOCK, SMALL};

/// The values of a step, and the size of the block that was recorded at them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub at: Values,
    pub bytes: u64,
    /// The smallest request that the block may serve.
    pub least: u64,
}

/// The powers of the first number and of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Powers {
    first: i32,
    second: i32,
}

impl Powers {
    const NONE: Powers = Powers { first: 0, second: 0 };
    const FIRST: Powers = Powers { first: 1, second: 0 };
    /// Of two numbers. What is expected first where nothing tells more.
    const OF_TWO: [Powers; 6] = [
        Powers { first: 1, second: 1 },
        Powers::NONE,
        Powers::FIRST,
        Powers { first: 0, second: 1 },
        Powers { first: 1, second: 2 },
        Powers { first: 0, second: 2 },
    ];
    const OF_ONE: [Powers; 2] = [Powers::NONE, Powers::FIRST];

    fn of(self, at: Values) -> f64 {
        (at.first as f64).powi(self.first) * (at.second as f64).powi(self.second)
    }

    /// `batch x length^2`.
    fn name(self, varied: &Varied) -> String {
        let powers = [self.first, self.second].into_iter().zip(varied.names());
        let factor = |(power, name): (i32, &VariedName)| match power {
            0 => None,
            1 => Some(name.as_str().to_string()),
            power => Some(format!("{}^{power}", name.as_str())),
        };
        powers.filter_map(factor).collect::<Vec<_>>().join(" x ")
    }
}

/// `fixed` + `each` for each unit of the product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    powers: Powers,
    fixed: f64,
    each: f64,
}

/// How a block's size follows what was varied.
#[derive(Clone, Debug, PartialEq)]
pub enum Law {
    /// One of these terms. The recorded values do not tell which; the first is expected.
    Terms(Vec<Term>),
    /// What was recorded follows none of these.
    Unknown(Vec<Point>),
}

/// Laws of the same kind, for output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LawKind {
    Constant,
    /// In proportion to a product.
    Powers(Powers),
    Unknown,
}

impl LawKind {
    /// In proportion to the batch.
    pub const AFFINE: LawKind = LawKind::Powers(Powers::FIRST);

    /// All kinds that blocks may have, where one number differs or two.
    pub fn all(varied: &Varied) -> Vec<LawKind> {
        let proportional = Powers::OF_TWO.into_iter().filter(|powers| *powers != Powers::NONE);
        let known = match varied.second {
            None => vec![LawKind::AFFINE],
            Some(_) => proportional.map(LawKind::Powers).collect(),
        };
        [vec![LawKind::Constant], known, vec![LawKind::Unknown]].concat()
    }

    pub fn name(self, varied: &Varied) -> String {
        match self {
            LawKind::Constant => "constant".into(),
            LawKind::Powers(_) if varied.second.is_none() => "affine".into(),
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
const MAX_SIZE: f64 = (1u64 << 50) as f64;
/// A line through two points is a law, and no guess, if what it has at batch 0 is at most this part of the block: padding
/// and flags are small, and buffers that saturate are not.
const FIXED_PART: f64 = 0.03;
/// The part of a block by which its size may lie beside a line.
const BESIDE: f64 = 0.02;

impl Law {
    pub(super) fn constant(bytes: u64) -> Law {
        Law::Terms(vec![Term { powers: Powers::NONE, fixed: 0.0, each: bytes as f64 }])
    }

    pub fn kind(&self) -> LawKind {
        match self {
            Law::Terms(terms) => match terms[..] {
                [Term { powers: Powers::NONE, .. }] => LawKind::Constant,
                [one] => LawKind::Powers(one.powers),
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
        let bytes = match self {
            Law::Terms(terms) => {
                let mut sizes =
                    terms.iter().map(|term| term.fixed + term.each * term.powers.of(at));
                match bound {
                    Bound::Low => sizes.fold(f64::MAX, f64::min),
                    Bound::Expected => sizes.next().unwrap_or(0.0),
                    Bound::High => sizes.fold(0.0, f64::max),
                }
            }
            Law::Unknown(points) => unknown(points, at, bound),
        };
        bytes.clamp(1.0, MAX_SIZE).round() as u64
    }
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

/// The laws of blocks that were each recorded at several values. `None`: one was not. `of_two`: two numbers differ.
pub(super) fn laws(points: &[Vec<Point>], of_two: bool) -> Vec<Option<Law>> {
    let powers = if of_two { &Powers::OF_TWO[..] } else { &Powers::OF_ONE };
    let several = |points: &Vec<Point>| points.iter().any(|point| point.at != points[0].at);
    let fits: Vec<Option<Fits>> =
        points.iter().map(|points| several(points).then(|| Fits::of(points, powers))).collect();
    let mut known = FactorCounts::default();
    fits.iter().flatten().for_each(|fits| known.learn(fits));
    fits.into_iter().map(|fits| Some(fits?.law(&known, powers))).collect()
}

/// The factors of blocks that one term alone explains, with the number of these blocks: what unambiguous blocks of the same
/// runs tell about the others.
#[derive(Debug, Default)]
struct FactorCounts(BTreeMap<Powers, BTreeMap<u64, u32>>);

impl FactorCounts {
    fn learn(&mut self, fits: &Fits) {
        let one = match fits.candidates[..] {
            [one] => Some(one),
            _ => fits.constant(),
        };
        if let Some(one) = one.filter(|one| fits.is_exact(one))
            && let Some(each) = fits.exact_each(&one)
        {
            *self.0.entry(one.powers).or_default().entry(each).or_default() += 1;
        }
    }

    /// The factor that most blocks have of those that a candidate may have, and their number.
    fn usual(&self, candidate: &Candidate) -> Option<(u64, u32)> {
        let range = candidate.least.ceil() as u64..=candidate.most as u64;
        let factors = self.0.get(&candidate.powers).filter(|_| !range.is_empty())?.range(range);
        factors.map(|(each, count)| (*each, *count)).max_by_key(|(each, count)| (*count, *each))
    }
}

/// A product that explains all points, and the factors with which it does.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    powers: Powers,
    least: f64,
    most: f64,
}

impl Candidate {
    /// Whether no recorded value tells the two apart: one is the other one times a constant.
    fn is_like(&self, other: &Candidate, points: &[Point]) -> bool {
        let ratio = |point: &Point| self.powers.of(point.at) / other.powers.of(point.at);
        let first = points.first().map_or(0.0, ratio);
        points.iter().all(|point| (ratio(point) / first - 1.0).abs() < 1e-9)
    }
}

/// What explains a block.
struct Fits {
    /// The least size at each of the recorded values, in order.
    points: Vec<Point>,
    candidates: Vec<Candidate>,
}

impl Fits {
    fn of(points: &[Point], powers: &[Powers]) -> Fits {
        let candidate = |powers: &Powers| {
            let each = |bytes: u64, point: &Point| bytes as f64 / powers.of(point.at);
            let least = points.iter().map(|point| each(point.least, point));
            let most = points.iter().map(|point| each(point.bytes, point));
            let (least, most) = (least.fold(0.0, f64::max), most.fold(f64::MAX, f64::min));
            (least <= most).then_some(Candidate { powers: *powers, least, most })
        };
        let candidates = powers.iter().filter_map(candidate).collect();
        let mut points = points.to_vec();
        points.sort_by_key(|point| (point.at, point.bytes));
        points.dedup_by_key(|point| point.at);
        Fits { points, candidates }
    }

    /// The constant, where all blocks are of one size.
    fn constant(&self) -> Option<Candidate> {
        let is_constant = self.points.iter().all(|point| point.bytes == self.points[0].bytes);
        let constant = self.candidates.iter().find(|one| one.powers == Powers::NONE);
        constant.filter(|_| is_constant).copied()
    }

    /// Whether the blocks are as large as the requests that a candidate gives.
    fn is_exact(&self, one: &Candidate) -> bool {
        let off = |point: &Point| (point.bytes as f64 - one.most * one.powers.of(point.at)).abs();
        self.points.iter().all(|point| off(point) < MIN_BLOCK as f64)
    }

    /// The factor, where these blocks are as large as their requests: that with the most factors of two, as shapes of tensors
    /// are such numbers. `None`: there is none.
    fn exact_each(&self, one: &Candidate) -> Option<u64> {
        if one.powers == Powers::NONE {
            return Some(one.most as u64);
        }
        let least = |point: &Point| {
            point.bytes.saturating_sub(MIN_BLOCK - 1) as f64 / one.powers.of(point.at)
        };
        let least = self.points.iter().map(least).fold(0.0, f64::max);
        roundest(least.ceil() as u64..=one.most as u64)
    }

    fn term(&self, one: &Candidate, known: &FactorCounts) -> Term {
        let usual = known.usual(one).map(|(each, _)| each);
        let each = match one.powers {
            Powers::NONE => usual,
            _ => self.exact_each(one).or(usual),
        };
        Term { powers: one.powers, fixed: 0.0, each: each.map_or(one.most, |each| each as f64) }
    }

    fn law(self, known: &FactorCounts, powers: &[Powers]) -> Law {
        let of_one = powers.len() == Powers::OF_ONE.len();
        let mut found = self.candidates.clone();
        if found.is_empty() {
            let lines: Vec<Term> = powers.iter().filter_map(|powers| self.line(*powers)).collect();
            return if lines.is_empty() { Law::Unknown(self.points) } else { Law::Terms(lines) };
        }
        if found.iter().any(|one| self.is_exact(one)) {
            found.retain(|one| self.is_exact(one));
        }
        let blocks = |one: &Candidate| known.usual(one).map_or(0, |(_, blocks)| blocks);
        let grew = self.points[0].bytes < self.points[self.points.len() - 1].bytes;
        let by_growth = || {
            let mut found = found.iter().filter(|_| of_one);
            found.find(|one| (one.powers == Powers::FIRST) == grew).copied()
        };
        let usual = found.iter().rev().max_by_key(|one| blocks(one)).copied();
        let best = usual.filter(|one| blocks(one) > 0).or_else(by_growth);
        if let Some(best) = self.constant().or(best) {
            found.retain(|one| one.is_like(&best, &self.points));
        }
        found.sort_by_key(|one| std::cmp::Reverse(blocks(one)));
        Law::Terms(found.iter().map(|one| self.term(one, known)).collect())
    }

    /// The line on which the points lie: through two of them where the fixed part is small, or through three and more.
    fn line(&self, powers: Powers) -> Option<Term> {
        let place = |point: &Point| (powers.of(point.at), point.bytes as f64);
        let mut places: Vec<(f64, f64)> = self.points.iter().map(place).collect();
        places.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
        let distinct = places.chunk_by(|one, other| one.0 == other.0).count();
        let (first, last) = (*places.first()?, *places.last()?);
        let each = (last.1 - first.1) / (last.0 - first.0);
        let fixed = first.1 - each * first.0;
        // The last row of a padded tensor has no padding: its fixed part is negative by less than a block.
        let is_line = distinct > 1 && each > 0.0 && fixed > -(MIN_BLOCK as f64);
        let is_known = is_line && (distinct > 2 || fixed <= FIXED_PART * first.1);
        let near =
            |(x, y): &(f64, f64)| (fixed + each * x - y).abs() <= (SMALL as f64).min(BESIDE * y);
        (is_known && places.iter().all(near)).then_some(Term { powers, fixed, each })
    }
}

/// The number with the most factors of two. `None`: the range is empty.
fn roundest(range: RangeInclusive<u64>) -> Option<u64> {
    let (low, high) = (*range.start(), *range.end());
    (0..u64::BITS).rev().map(|bits| high >> bits << bits).find(|it| *it >= low && *it > 0)
}
