//! A recorded run at another batch, or another length: its requests in their order, each with the size that its law gives.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::NotComparable;
use super::law::{self, Bound, Law, LawKind, Point, same_request};
use super::matching::pairs;
use super::recording::{Recording, Stretch};
use super::reductions;
use super::stacks::{Kind, StackKey};
use super::varied::{Values, VariedName};
use crate::allocator::rounding::MIN_BLOCK;
use crate::allocator::{Conf, Log, ReplayOutcome, Request, replay};

/// Steps of a run that are replayed. The second step reaches the peak, with the optimizer's state of the first one; the
/// next ones may still fragment the cache. Later ones repeat.
const STEPS: usize = 4;
/// Less than this part of the bytes of the steps in pairs: other programs.
const COMPARABLE: f64 = 0.5;
/// With larger values a run may allocate a little less, where a library chooses an algorithm that needs a smaller workspace.
const PLAUSIBLE: f64 = 0.9;

/// A run that can be replayed at any values.
#[derive(Debug)]
pub struct Scaling<'r> {
    /// The run that is scaled.
    pub base: &'r Recording,
    /// Of the blocks of the base that are replayed.
    laws: Vec<Law>,
    /// The recorded values of each of these blocks.
    values: Vec<Values>,
    /// The largest buffer of a reduction on the recorded card.
    largest_reduction: Option<u64>,
    /// The part of the bytes of the steps whose blocks were seen at more than one value.
    pub paired: f64,
    /// The part by which the replays of the recordings, under their own settings, differ from what they reserved.
    pub model_off: f64,
    /// All recorded values, in ascending order.
    pub recorded: Vec<Values>,
}

/// Blocks and bytes of the steps that follow a law, at the base's batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub blocks: u64,
    pub bytes: u64,
}

impl<'r> Scaling<'r> {
    /// At least one recording.
    pub fn of(recordings: &'r [Recording]) -> Result<Scaling<'r>, NotComparable> {
        let most = |recording: &&Recording| {
            let largest = recording.largest();
            (largest.product(), largest)
        };
        let Some(base) = recordings.iter().max_by_key(most) else {
            return Err(NotComparable("no trace is given".into()));
        };
        let mut recorded: Vec<Values> = recordings.iter().flat_map(Recording::values).collect();
        recorded.sort_unstable();
        recorded.dedup();
        let kept = &base.stretches[..base.stretches.len().min(STEPS + 1)];
        let points = points(recordings, base, kept);
        let paired = paired(base, kept, &points);
        if recorded.len() > 1 && paired < COMPARABLE {
            let others = recordings.iter().filter(|other| !std::ptr::eq(*other, base));
            let others: Vec<&str> = others.map(|other| other.name.as_str()).collect();
            return Err(NotComparable(format!(
                "only {:.0} % of the memory of a step of {} was allocated by the same stacks in {}: \
                 record one program, at two batches",
                paired * 100.0,
                base.name,
                if others.is_empty() { "its other steps".to_string() } else { others.join(", ") }
            )));
        }
        let differs = |points: &Vec<Point>| points.iter().any(|it| it.bytes != points[0].bytes);
        if recorded.len() > 1 && !points.iter().any(differs) {
            return Err(NotComparable(format!(
                "no block of {} has another size at another value: what was varied is the same in all, or \
                 does not count for its memory",
                base.name
            )));
        }
        let larger = recordings.iter().find(|other| {
            other.largest() != base.largest()
                && other.largest().within(base.largest())
                && other.recorded.peak_allocated as f64 * PLAUSIBLE
                    > base.recorded.peak_allocated as f64
        });
        if let Some(other) = larger {
            let names: Vec<&str> = base.varied.names().map(VariedName::as_str).collect();
            return Err(NotComparable(format!(
                "{} allocated less than {}, whose {} is smaller: give the values of --recorded in the \
                 order of the traces",
                base.name,
                other.name,
                names.join(" or ")
            )));
        }
        let values = kept.iter().flat_map(|it| it.blocks.clone().map(|_| it.at)).collect();
        let model_off = recordings.iter().map(model_off).fold(0.0, f64::max);
        let laws = laws(base, kept, &points);
        let largest_reduction = base.card.as_deref().and_then(reductions::largest_on);
        Ok(Scaling { laws, base, values, largest_reduction, paired, model_off, recorded })
    }

    /// Its values.
    pub fn base_values(&self) -> Values {
        self.base.largest()
    }

    /// Blocks and bytes by law.
    pub fn shares(&self) -> BTreeMap<LawKind, Share> {
        let mut shares: BTreeMap<LawKind, Share> = BTreeMap::new();
        for (law, block) in self.laws.iter().zip(&self.base.blocks) {
            let share = shares.entry(law.kind()).or_default();
            share.blocks += 1;
            share.bytes = share.bytes.saturating_add(block.bytes);
        }
        shares
    }

    /// The requests of the run at other values. `as_recorded`: blocks at their recorded values keep their recorded sizes, which
    /// fit the setting of the recording; a setting that splits blocks needs those of their laws.
    pub fn log(&self, at: Values, bound: Bound, as_recorded: bool) -> Log {
        self.log_with(at, bound, as_recorded, true)
    }

    /// The same. `workspaces`: whether those of convolutions are served; if not, the algorithms that need none are taken.
    fn log_with(&self, at: Values, bound: Bound, as_recorded: bool, workspaces: bool) -> Log {
        let mut log = Log::default();
        let mut next = 0;
        for request in self.base.recorded.log.requests() {
            match request {
                Request::Alloc { size, stream, pool, slot } => {
                    let Some(law) = self.laws.get(next) else { break };
                    let as_recorded = as_recorded && self.values[next] == at;
                    let size = match () {
                        () if !workspaces && self.base.blocks[next].kind == Kind::Workspace => {
                            MIN_BLOCK
                        }
                        () if as_recorded => size,
                        () => self.size(next, law, at, bound),
                    };
                    log.alloc(u64::from(slot), size, stream, pool);
                    next += 1;
                }
                Request::Free { slot } => {
                    log.free(u64::from(slot));
                }
                Request::EmptyCache => log.empty_cache(),
                Request::PoolEnds { pool } => log.pool_ends(pool),
                Request::Outside { bytes } => log.outside(bytes),
            }
        }
        log
    }

    /// The size of a block of the base, by its law.
    fn size(&self, block: usize, law: &Law, at: Values, bound: Bound) -> u64 {
        let bytes = law.at(at, bound);
        match &self.base.blocks[block] {
            of if of.kind == Kind::Reduction => {
                reductions::limited(bytes, of.bytes, self.largest_reduction, bound)
            }
            _ => bytes,
        }
    }

    /// The replay of the run at other values, without a limit.
    pub fn replay(&self, at: Values, bound: Bound, conf: &Conf) -> ReplayOutcome {
        self.replay_within(at, bound, conf, None)
    }

    /// The replay of the run at other values. `capacity`: bytes for the cache and all else on the device.
    pub fn replay_within(
        &self,
        at: Values,
        bound: Bound,
        conf: &Conf,
        capacity: Option<u64>,
    ) -> ReplayOutcome {
        let in_force = self.base.recorded.in_force.conf.as_ref() == Some(conf);
        replay(&self.log(at, bound, in_force), conf, capacity)
    }

    /// Whether it has such blocks.
    pub(super) fn has(&self, kind: Kind) -> bool {
        self.base.blocks[..self.laws.len()].iter().any(|block| block.kind == kind)
    }

    /// The least bytes that the run needs at other values, whatever the places of its blocks, without workspaces of
    /// convolutions.
    pub(super) fn needed(&self, at: Values, conf: &Conf) -> u64 {
        let in_force = self.base.recorded.in_force.conf.as_ref() == Some(conf);
        replay(&self.log_with(at, Bound::Low, in_force, false), conf, None).peak_needed
    }
}

/// The part by which the replay of a run, under its own setting, differs from what it reserved. Runs that freed the cache
/// to serve a request reserved less than the replay, which has no limit.
fn model_off(recording: &Recording) -> f64 {
    let recorded = &recording.recorded;
    let Some(conf) = &recorded.in_force.conf else { return 0.0 };
    let replayed = replay(&recorded.log, conf, None).peak_reserved;
    let limit = recorded.cap_bytes.into_iter().chain(recorded.card_bytes).min();
    let met_limit = limit.is_some_and(|limit| replayed >= limit);
    match recorded.peak_reserved {
        0 => 0.0,
        _ if met_limit => 0.0,
        reserved => (replayed as f64 / reserved as f64 - 1.0).abs(),
    }
}

/// For each kept block of the base, what was recorded of it.
fn points(recordings: &[Recording], base: &Recording, kept: &[Stretch]) -> Vec<Vec<Point>> {
    let mut points = Vec::new();
    for (index, stretch) in kept.iter().enumerate() {
        let own = base.unpaired(stretch);
        let first = points.len();
        let recorded =
            |block: usize| vec![base.blocks[stretch.blocks.start + block].point(stretch.at)];
        points.extend((0..own.len()).map(recorded));
        for other in recordings {
            for partner in partners(base, other, index) {
                let others = other.unpaired(partner);
                for (block, pair) in pairs(&own, &others).into_iter().enumerate() {
                    let Some(pair) = pair else { continue };
                    let point = other.blocks[partner.blocks.start + pair].point(partner.at);
                    let of: &mut Vec<Point> = &mut points[first + block];
                    // What is paired with the first at the same values may be another request: it counts if it may be
                    // the same.
                    let first = of.iter().find(|it| it.at == point.at);
                    if first.is_none_or(|first| same_request(*first, point)) {
                        of.push(point);
                    }
                }
            }
        }
    }
    points
}

/// The steps of a recording that do what a stretch of the base does: the one with the same number first, or else the last
/// one. In the base itself too: blocks of one request may differ.
fn partners<'o>(base: &Recording, other: &'o Recording, index: usize) -> Vec<&'o Stretch> {
    let is_base = std::ptr::eq(base, other);
    let steps = other.stretches.iter().enumerate().take(STEPS + 1);
    let steps = steps.filter(|(at, _)| (*at == 0) == (index == 0) && !(is_base && *at == index));
    let mut steps: Vec<(usize, &Stretch)> = steps.collect();
    // The first step differs from all others.
    steps.sort_by_key(|(at, _)| (at.abs_diff(index), *at < index));
    steps.into_iter().map(|(_, stretch)| stretch).collect()
}

fn paired(base: &Recording, kept: &[Stretch], points: &[Vec<Point>]) -> f64 {
    let steps = kept.get(1..).filter(|steps| !steps.is_empty()).unwrap_or(kept);
    let blocks = || steps.iter().flat_map(|stretch| stretch.blocks.clone());
    let sum = |blocks: &mut dyn Iterator<Item = usize>| -> f64 {
        blocks.map(|block| base.blocks[block].bytes as f64).sum()
    };
    let all = sum(&mut blocks());
    let seen_twice = |block: &usize| points[*block].iter().any(|it| it.at != points[*block][0].at);
    if all == 0.0 { 0.0 } else { sum(&mut blocks().filter(seen_twice)) / all }
}

fn laws(base: &Recording, kept: &[Stretch], points: &[Vec<Point>]) -> Vec<Law> {
    let mut laws = law::laws(points, base.varied.second.is_some());
    for (law, block) in laws.iter_mut().zip(&base.blocks) {
        // Compiled code has other blocks at another batch: a pair that no law explains is of two requests.
        if let Some(Law::Unknown(points)) = law
            && block.kind == Kind::Compiled
        {
            points.retain(|point| point.bytes == block.bytes);
        }
    }
    let sites = sites(base, kept);
    let mut of_sites: FxHashMap<(StackKey, u32), usize> = FxHashMap::default();
    for (block, site) in sites.iter().enumerate() {
        if laws[block].is_some() {
            of_sites.insert(*site, block);
        }
    }
    for block in 0..laws.len() {
        if laws[block].is_some() {
            continue;
        }
        // A sibling is another request if its law does not give the size that was recorded.
        let sibling = of_sites.get(&sites[block]).and_then(|sibling| laws[*sibling].clone());
        let sibling = sibling.filter(|law| points[block].iter().all(|point| law.explains(*point)));
        // What stays to the end is of the model, and not of the values.
        let stays = base.blocks[block].freed_before >= points.len();
        let bytes = base.blocks[block].bytes;
        laws[block] = Some(match sibling {
            Some(law) => law,
            None if stays => Law::constant(bytes),
            None => Law::Unknown(points[block].clone()),
        });
    }
    laws.into_iter().flatten().collect()
}

/// The stack of each block, and its number among those of its stretch.
fn sites(base: &Recording, kept: &[Stretch]) -> Vec<(StackKey, u32)> {
    let mut sites = Vec::new();
    for stretch in kept {
        let mut counts: FxHashMap<StackKey, u32> = FxHashMap::default();
        for block in &base.blocks[stretch.blocks.clone()] {
            let count = counts.entry(block.stack).or_default();
            sites.push((block.stack, *count));
            *count += 1;
        }
    }
    sites
}
