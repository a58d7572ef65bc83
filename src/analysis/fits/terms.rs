//! How the size of a block depends on two numbers, as the batch and the length of samples.
//!
//! The size of a tensor is a product of the numbers that its shape has: neither of the two, one of them, both, and the
//! second one once more (attention that is not fused has length x length). A *term* is one of these products with a
//! factor, and a small fixed part, as padding has. Those that explain the recorded sizes are candidates. If the
//! recorded values tell them apart, one is left. If they do not, the law is all of them, and its interval reaches from
//! the smallest size that they give to the largest.

use std::collections::BTreeMap;

use super::law::{Bound, FIXED_PART, Law, Point, roundest, usual};
use super::varied::{Name, Values, Varied};
use crate::allocator::rounding::{MIN_BLOCK, SMALL};

/// The part of a block by which its size may lie beside a line.
const BESIDE: f64 = 0.02;

/// The powers of the first number and of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Powers {
    first: i32,
    second: i32,
}

impl Powers {
    pub(super) const NONE: Powers = Powers { first: 0, second: 0 };
    /// What is expected first where nothing tells more.
    pub(super) const ALL: [Powers; 6] = [
        Powers { first: 1, second: 1 },
        Powers::NONE,
        Powers { first: 1, second: 0 },
        Powers { first: 0, second: 1 },
        Powers { first: 1, second: 2 },
        Powers { first: 0, second: 2 },
    ];

    fn of(self, at: Values) -> f64 {
        (at.first as f64).powi(self.first) * (at.second as f64).powi(self.second)
    }

    /// `batch x length^2`.
    pub(super) fn name(self, varied: &Varied) -> String {
        let powers = [self.first, self.second].into_iter().zip(varied.names());
        let factor = |(power, name): (i32, &Name)| match power {
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
    pub powers: Powers,
    pub fixed: f64,
    pub each: f64,
}

impl Term {
    fn at(&self, at: Values) -> f64 {
        self.fixed + self.each * self.powers.of(at)
    }
}

/// The size that the terms of a law give.
pub(super) fn at(terms: &[Term], at: Values, bound: Bound) -> f64 {
    let sizes = terms.iter().map(|term| term.at(at));
    match bound {
        Bound::Low => sizes.fold(f64::MAX, f64::min),
        Bound::Expected => terms.first().map_or(0.0, |term| term.at(at)),
        Bound::High => sizes.fold(0.0, f64::max),
    }
}

/// The factors of blocks that one term alone explains, with the number of these blocks.
#[derive(Debug, Default)]
struct Known(BTreeMap<Powers, BTreeMap<u64, u32>>);

impl Known {
    fn learn(&mut self, points: &[Point]) {
        if let [one] = candidates(points)[..]
            && one.is_exact(points)
            && let Some(each) = one.exact_each(points)
        {
            *self.0.entry(one.powers).or_default().entry(each).or_default() += 1;
        }
    }

    /// The factor that most blocks have of those that a candidate may have, and their number.
    fn usual(&self, candidate: &Candidate) -> Option<(u64, u32)> {
        let (least, most) = (candidate.least.ceil() as u64, candidate.most as u64);
        usual(self.0.get(&candidate.powers)?, least..=most)
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
    /// Whether the blocks are as large as the requests that it gives.
    fn is_exact(&self, points: &[Point]) -> bool {
        let off = |point: &Point| (point.bytes as f64 - self.most * self.powers.of(point.at)).abs();
        points.iter().all(|point| off(point) < MIN_BLOCK as f64)
    }

    /// The factor, where these blocks are as large as their requests.
    fn exact_each(&self, points: &[Point]) -> Option<u64> {
        let least = |point: &Point| {
            point.bytes.saturating_sub(MIN_BLOCK - 1) as f64 / self.powers.of(point.at)
        };
        let least = points.iter().map(least).fold(0.0, f64::max);
        roundest(least.ceil() as u64..=self.most as u64)
    }

    fn term(&self, points: &[Point], known: &Known) -> Term {
        let usual = known.usual(self).map(|(each, _)| each);
        let exact = || self.exact_each(points).filter(|_| self.powers != Powers::NONE);
        let each = usual.or_else(exact).map_or(self.most, |each| each as f64);
        Term { powers: self.powers, fixed: 0.0, each }
    }

    /// Whether no recorded value tells the two apart: one is the other one times a constant.
    fn is_like(&self, other: &Candidate, points: &[Point]) -> bool {
        let ratio = |point: &Point| self.powers.of(point.at) / other.powers.of(point.at);
        let first = points.first().map_or(0.0, ratio);
        points.iter().all(|point| (ratio(point) / first - 1.0).abs() < 1e-9)
    }
}

fn candidates(points: &[Point]) -> Vec<Candidate> {
    let candidate = |powers: Powers| {
        let each = |bytes: u64, point: &Point| bytes as f64 / powers.of(point.at);
        let least = points.iter().map(|point| each(point.least, point));
        let most = points.iter().map(|point| each(point.bytes, point));
        let (least, most) = (least.fold(0.0, f64::max), most.fold(f64::MAX, f64::min));
        (least <= most).then_some(Candidate { powers, least, most })
    };
    Powers::ALL.into_iter().filter_map(candidate).collect()
}

/// The laws of blocks that were each recorded at several values. `None`: one was not.
pub(super) fn laws(points: &[Vec<Point>]) -> Vec<Option<Law>> {
    let several = |points: &&Vec<Point>| points.iter().any(|point| point.at != points[0].at);
    let mut known = Known::default();
    points.iter().filter(several).for_each(|points| known.learn(points));
    let law = |points: &Vec<Point>| several(&points).then(|| law(points, &known));
    points.iter().map(law).collect()
}

fn law(points: &[Point], known: &Known) -> Law {
    let mut found = candidates(points);
    if found.is_empty() {
        let terms = with_fixed_part(points);
        return if terms.is_empty() { Law::Unknown(points.to_vec()) } else { Law::Terms(terms) };
    }
    if found.iter().any(|one| one.is_exact(points)) {
        found.retain(|one| one.is_exact(points));
    }
    let blocks = |one: &Candidate| known.usual(one).map_or(0, |(_, blocks)| blocks);
    let is_constant = points.iter().all(|point| point.bytes == points[0].bytes);
    let constant = found.iter().find(|one| is_constant && one.powers == Powers::NONE);
    let best = constant.or_else(|| found.iter().rev().max_by_key(|one| blocks(one))).copied();
    if let Some(best) = best
        && (constant.is_some() || blocks(&best) > 0)
    {
        found.retain(|one| one.is_like(&best, points));
    }
    found.sort_by_key(|one| std::cmp::Reverse(blocks(one)));
    Law::Terms(found.iter().map(|one| one.term(points, known)).collect())
}

/// The lines that the points lie on: through two of them where the fixed part is small, or through three and more.
fn with_fixed_part(points: &[Point]) -> Vec<Term> {
    let term = |powers: Powers| {
        let place = |point: &Point| (powers.of(point.at), point.bytes as f64);
        let mut places: Vec<(f64, f64)> = points.iter().map(place).collect();
        places.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
        let distinct = places.chunk_by(|one, other| one.0 == other.0).count();
        let (first, last) = (*places.first()?, *places.last()?);
        let each = (last.1 - first.1) / (last.0 - first.0);
        let fixed = first.1 - each * first.0;
        let near =
            |(x, y): &(f64, f64)| (fixed + each * x - y).abs() <= (SMALL as f64).min(BESIDE * y);
        let is_line = distinct > 1 && each > 0.0 && fixed >= 0.0 && places.iter().all(near);
        let is_known = is_line && (distinct > 2 || fixed <= FIXED_PART * first.1);
        is_known.then_some(Term { powers, fixed, each })
    };
    Powers::ALL.into_iter().filter_map(term).collect()
}
