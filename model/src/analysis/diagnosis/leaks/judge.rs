//! From the histories of stacks to verdicts: a sequence of rules, in the order in which [`judge`] applies them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use vramtrace_format::{DeviceId, Header, StackId};

use super::driver;
use super::growth::{Axes, BinnedHistory, Growth, KeptReason, Left, QUIET, RISES, WARM_UP};
use super::observer::{GrowthObserver, LevelTotals, LiveThen, StackHistory, StackSums};
use super::sorted::{Sorted, pool_of};
use super::suppress::Suppressions;
use super::verdict::{Leak, LeakReason, Leaks, Verdict, headroom};
use crate::analysis::holdings::segment_stacks;
use crate::analysis::{Level, StackClassifier};
use crate::replay::{DeviceState, State};
use crate::symbols::Symbols;
use crate::trace::Definitions;

/// Of the whole run, what is freed in this last part is freed at the end.
const END: f64 = 0.02;
/// Likewise what is freed after the last allocation, if that takes no longer, or if the last
/// allocation is in this last part.
const TEARDOWN: f64 = 0.1;
/// No more than this is sure where nothing at all was freed: the program may be loading.
const LOADING: f64 = 0.7;
/// And no more than this if its pieces are of many sizes: weights are, what a loop keeps is not.
const LOADING_WEIGHTS: f64 = 0.45;
/// As many pieces of one size are not loaded.
const MANY: u64 = 256;
/// Who allocates first on a device, within this part of all events, may be loading.
const FIRST: f64 = 0.02;
/// And has loaded if it allocates nothing for so long, and for a quarter of the time: a process may take less to end.
const LOADED_NS: u64 = 1_000_000_000;
/// Of fewer pieces it is not known whether they are a set, such as the layers' parts of a KV cache, unless they are freed.
const SET: u64 = 8;
/// If at least this part of all allocations is its own; the rest is what weights are made of.
const MIN_OWN_PART: f64 = 0.4;
/// Who allocates over a smaller part of the events than this may make gradients, or an optimizer's
/// state, in the first step.
const ALL_THE_TIME: f64 = 0.7;
/// What grew is freed if this part of it is.
const FREED: f64 = 0.9;
/// A process frees its memory when it ends if it does so for this many stacks, and this part.
const TIDY: u64 = 4;
const TIDY_PART: f64 = 0.8;

pub(super) type LevelAndDevice = (Level, DeviceId);

/// The history and the figures of one stack, or of the stacks of one line.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub at: LevelAndDevice,
    pub history: BinnedHistory,
    /// The stack that holds the largest number of bytes, and that number.
    pub stack: StackId,
    most: u64,
    pub stacks: u64,
    pub sums: StackSums,
    /// What was live before the end's frees.
    pub held: LiveThen,
}

impl Case {
    fn of(
        (level, device, stack): (Level, DeviceId, StackId),
        observer: &GrowthObserver,
        track: &StackHistory,
        axes: &Axes,
        from_ns: u64,
    ) -> Case {
        let last_alloc_ns = track.last_alloc_ns.saturating_sub(from_ns);
        let history = axes.history(&track.time, &track.activity, last_alloc_ns);
        let (at, most, held) = ((level, device), history.settled(), observer.held(track));
        Case { at, history, stack, most, stacks: 1, sums: track.sums, held }
    }

    /// Several as one. `None`: there is none.
    pub(super) fn sum<'c>(mut cases: impl Iterator<Item = &'c Case>) -> Option<Case> {
        let mut all = cases.next()?.clone();
        for other in cases {
            if other.most > all.most {
                (all.stack, all.most) = (other.stack, other.most);
            }
            all.history.add(&other.history);
            all.stacks += other.stacks;
            all.sums.add(&other.sums);
            all.held.bytes = all.held.bytes.saturating_add(other.held.bytes);
            all.held.count += other.held.count;
            all.held.variance += other.held.variance;
        }
        Some(all)
    }

    /// It holds something, or did before the end's frees.
    fn holds(&self) -> bool {
        self.sums.bytes > 0 || self.history.settled() > 0
    }
}

/// A leak and what it was judged by.
pub(super) struct JudgedLeak {
    pub case: Case,
    pub leak: Leak,
}

/// Memory that does not leak by itself, and why.
pub(super) struct Innocent {
    pub case: Case,
    pub why: KeptReason,
}

/// Whose memory is judged.
pub(super) struct Subject<'s> {
    pub header: &'s Header,
    pub running: bool,
    pub definitions: &'s Definitions,
}

#[derive(Clone)]
pub(super) struct Judge<'a> {
    pub observer: &'a GrowthObserver,
    pub axes: BTreeMap<LevelAndDevice, Axes>,
    headrooms: BTreeMap<LevelAndDevice, Option<u64>>,
    /// Live bytes of all stacks, as in `BinnedHistory::time`.
    live: BTreeMap<LevelAndDevice, BinnedHistory>,
    /// The process ended by itself: what it held then is no step under way.
    in_order: bool,
    /// A refusal or an error ended it: what it freed after that shows nothing.
    refused: bool,
    from_ns: u64,
}

pub(super) fn judge(
    subject: Subject,
    state: &State,
    observer: &GrowthObserver,
    rules: &Suppressions,
    least: u64,
) -> Leaks {
    let Subject { header, running, definitions } = subject;
    let from_ns = observer.from_ns.or(observer.driver.from_ns).unwrap_or(state.time_ns);
    let (of_driver, driver_is_unknown) = driver::judge(observer, state, definitions, running);
    let mut judge = Judge::new(observer, state, definitions, running, from_ns);
    let (mut found, mut others) = judge.each_stack(state);
    // Of the others, those that hold more than they did: many stacks may lead to one line.
    let wanted = found.iter().map(|one| one.case.stack);
    let wanted = wanted
        .chain(others.iter().filter(|one| one.case.holds()).map(|one| one.case.stack))
        .chain(of_driver.iter().map(|leak| leak.stack.id));
    let symbols = Symbols::of(definitions, header, wanted);
    let classifier = StackClassifier::new(&symbols, header);
    judge.together(&classifier, &mut found);
    judge.until_refused(state, &mut found, &mut others);
    judge.lines(&classifier, &mut found, &mut others);
    if judge.in_order {
        judge.unfreed(&classifier, &mut found, &mut others);
    }
    for JudgedLeak { case, .. } in found.extract_if(.., |one| one.is_outgrown(&classifier)) {
        others.push(Innocent { case, why: KeptReason::Outgrown });
    }
    let mut sorted = Sorted::new(&classifier, rules, least);
    let not_judged = (!definitions.has_times()).then_some("the recording has no times");
    if not_judged.is_some() {
        (found, others) = Default::default();
    }
    let found = found.into_iter().map(|one| one.leak);
    // What failed grows no more.
    let now = |leak: Leak| if judge.refused { leak.with_room(None) } else { leak };
    found.chain(of_driver).map(now).for_each(|leak| sorted.leak(leak));
    others.iter().for_each(|one| sorted.innocent(one));
    sorted.free_in_caches(state);
    let length = state.time_ns.saturating_sub(from_ns);
    let counted = |of: &DeviceState| of.peak.in_use.counted_by_cap();
    Leaks {
        trace: PathBuf::new(),
        running,
        from_ns,
        beginning_lost: state.history_from_ns > 0,
        sampled: None,
        off: state.off.clone(),
        not_judged,
        live_is_known: state.live_is_known(),
        warm_ns: from_ns + (length as f64 * WARM_UP) as u64,
        until_ns: state.time_ns,
        leaks: sorted.leaks(from_ns),
        peaks: state.devices.iter().map(|(id, of)| (*id, counted(of))).collect(),
        kept: sorted.kept.into_values().map(|(kept, _)| kept).collect(),
        pooled: sorted.pooled.into_values().collect(),
        driver_is_unknown,
        host_pinned_bytes: state.host_pinned.live_bytes,
        suppressed: sorted.suppressed.into_values().collect(),
        samples_blocks: definitions.samples_blocks(),
        has_stacks: !definitions.stacks().is_empty(),
        header: header.clone(),
    }
}

impl<'a> Judge<'a> {
    fn new(
        observer: &'a GrowthObserver,
        state: &State,
        definitions: &Definitions,
        running: bool,
        from_ns: u64,
    ) -> Judge<'a> {
        let end_ns = state.time_ns.saturating_sub(from_ns);
        let last = observer.places.values().map(|place| place.last_alloc_ns).max().unwrap_or(0);
        let refused = observer.last_refusal_ns >= last.max(1);
        let failed = state.exit_status.is_some_and(|status| status != 0);
        let last = last.saturating_sub(from_ns);
        let mut settled_ns = end_ns;
        if !running {
            settled_ns = (end_ns as f64 * (1.0 - END)) as u64;
            // The interpreter drops all lists at its end, and then may take its time to end.
            let busy_ns = observer.last_frees.map_or(0, |frees| frees.busy_ns());
            let at_once = busy_ns as f64 <= end_ns as f64 * END;
            if at_once || last as f64 >= end_ns as f64 * (1.0 - TEARDOWN) {
                settled_ns = settled_ns.min(last);
            }
        }
        let axes = |place: &LevelTotals| Axes {
            settled_ns,
            end_ns,
            until_ns: end_ns,
            refused,
            last_alloc_ns: place.last_alloc_ns.saturating_sub(from_ns),
            events: if running { place.events } else { place.last_alloc_events },
            all_events: place.events,
        };
        let axes = observer.places.iter().map(|(at, place)| (*at, axes(place))).collect();
        let headroom_of = |at: &LevelAndDevice| {
            let (level, device) = *at;
            // Blocks fill what their framework keeps first.
            let cache = state.devices.get(&device).filter(|_| level == Level::Tensor);
            let free = cache.map_or(0, |device| device.cache.free_resident());
            Some(headroom(state, definitions, device)?.saturating_add(free))
        };
        let headrooms = observer.places.keys().map(|at| (*at, headroom_of(at))).collect();
        let in_order = state.ended_ns.is_some() && !running;
        let live = BTreeMap::new();
        Judge { observer, axes, headrooms, live, in_order, refused: refused || failed, from_ns }
    }

    /// A stack by itself first. Blocks stand for the memory that they lie in.
    fn each_stack(&mut self, state: &State) -> (Vec<JudgedLeak>, Vec<Innocent>) {
        let segments = segment_stacks(state);
        let mut keys: Vec<_> = self.observer.tracks.keys().copied().collect();
        keys.sort_unstable();
        keys.retain(|(level, device, stack)| {
            let is_block = *level == Level::Tensor || !segments.contains(&(*device, *stack));
            is_block && self.axes.contains_key(&(*level, *device))
        });
        let case = |key: &(Level, DeviceId, StackId)| {
            let (axes, track) = (&self.axes[&(key.0, key.1)], &self.observer.tracks[key]);
            Case::of(*key, self.observer, track, axes, self.from_ns)
        };
        let cases: Vec<Case> = keys.iter().map(case).collect();
        for case in &cases {
            self.live.entry(case.at).or_default().add(&case.history);
        }
        let (mut found, mut others) = (Vec::new(), Vec::new());
        for case in cases {
            match self.case(&case) {
                Ok(leak) => found.push(JudgedLeak { case, leak }),
                // Nothing of it went.
                Err(KeptReason::Moves) if case.sums.frees == 0 => {
                    let last = self.axes[&case.at].last_alloc_ns;
                    let quiet = last.saturating_sub(case.history.last_alloc_ns);
                    let at_end = quiet as f64 <= last as f64 * QUIET;
                    let why = if at_end { KeptReason::Unjudged } else { KeptReason::Stopped };
                    others.push(Innocent { case, why });
                }
                Err(why) => others.push(Innocent { case, why }),
            }
        }
        (found, others)
    }

    /// What stopped since it was refused is no cache that is full: it is judged up to the first refusal, and the largest that
    /// went on for a while then up to its last allocation.
    fn until_refused(
        &self,
        state: &State,
        found: &mut Vec<JudgedLeak>,
        others: &mut Vec<Innocent>,
    ) {
        let firsts = &self.observer.first_refusals;
        self.until(firsts, state, found, others);
        let stopped = others.iter().filter(|other| other.why == KeptReason::Stopped);
        let largest = stopped.max_by_key(|other| other.case.sums.bytes);
        let later = largest.and_then(|Innocent { case, .. }| {
            let track = self.observer.tracks.get(&(case.at.0, case.at.1, case.stack))?;
            let is_later = firsts.get(&case.at)?.0 < case.history.last_alloc_ns;
            let is_refused = track.last_alloc_ns <= self.observer.last_refusal_ns;
            let then = (case.history.last_alloc_ns, track.last_alloc_events);
            (is_later && is_refused).then_some((case.at, then))
        });
        self.until(&later.into_iter().collect(), state, found, others);
    }

    /// Judges what stopped since these times, each with the events before it.
    fn until(
        &self,
        times: &BTreeMap<LevelAndDevice, (u64, u64)>,
        state: &State,
        found: &mut Vec<JudgedLeak>,
        others: &mut Vec<Innocent>,
    ) {
        if times.is_empty() {
            return;
        }
        let mut until = self.clone();
        (until.in_order, until.refused, until.live) = (false, true, BTreeMap::new());
        until.axes.retain(|at, axes| {
            let Some(&(time_ns, events)) = times.get(at) else { return false };
            axes.last_alloc_ns = axes.last_alloc_ns.min(time_ns);
            (axes.settled_ns, axes.until_ns, axes.events) = (time_ns, time_ns, events);
            axes.refused = true;
            true
        });
        for one in until.each_stack(state).0 {
            let stopped = |other: &Innocent| {
                let Case { at, stack, .. } = other.case;
                (at, stack) == (one.case.at, one.case.stack)
                    && matches!(other.why, KeptReason::Stopped | KeptReason::Unjudged)
            };
            let ended = one.case.history.last_alloc_ns <= until.axes[&one.case.at].until_ns;
            if let Some(index) = others.iter().position(stopped).filter(|_| ended) {
                others.swap_remove(index);
                found.push(one);
            }
        }
    }

    /// The verdict on a case by its growth, or why it is none.
    pub(super) fn case(&self, case: &Case) -> Result<Leak, KeptReason> {
        let (growth, verdict) = self.growth(case)?;
        let sums = &case.sums;
        // Several stacks of one line may have come between each other.
        let others = self.observer.frees.saturating_sub(sums.frees);
        // Without stacks it is all memory: then what it frees comes between.
        let between =
            if case.stack == StackId(0) { sums.frees } else { sums.interleaved.min(others) };
        let alone = between < RISES as u64;
        let stays = sums.highest_count > sums.allocations / 2;
        if alone && stays && (sums.allocations < MANY || sums.are_of_many_sizes()) {
            return Err(KeptReason::Unjudged);
        }
        // It loaded, and works now.
        let (end_ns, last_ns) = (self.axes[&case.at].until_ns, case.history.last_alloc_ns);
        let idle_ns = end_ns.saturating_sub(last_ns);
        if self.is_first(case) && idle_ns >= LOADED_NS && idle_ns > end_ns / 4 {
            return Err(KeptReason::Stopped);
        }
        // While it grew, other memory of the device may have gone.
        let first = (growth.first_ns / self.axes[&case.at].bin_ns()) as usize;
        let grown = |of: &BinnedHistory| {
            let from = of.time.iter().skip(first.saturating_sub(1)).min();
            of.settled().saturating_sub(from.copied().unwrap_or(0))
        };
        if grown(&self.live[&case.at]) < grown(&case.history) / 2 && !self.observer.is_sampled {
            return Err(KeptReason::Moves);
        }
        let confidence = self.confidence(case, &growth, verdict);
        let leak = self.leak(case, verdict, LeakReason::Trend, confidence);
        let rate = Some(growth.bytes_per_second);
        // Without stacks it is all memory of the device: what was there before is no leak.
        let bytes =
            if case.stack == StackId(0) { growth.risen.min(leak.bytes) } else { leak.bytes };
        let leak = Leak { rate, bytes, growth: Some(growth), ..leak };
        Ok(leak.with_room(self.headrooms[&case.at]))
    }

    fn growth(&self, case: &Case) -> Result<(Growth, Verdict), KeptReason> {
        let (axes, history, bytes) = (&self.axes[&case.at], &case.history, case.sums.bytes);
        let left = if self.in_order { Left::Known(bytes) } else { Left::AtMost(bytes) };
        match history.growth(axes, left) {
            Ok(growth) => Ok((growth, Verdict::Growing)),
            Err(still) => {
                if let Some(growth) = self.late(case) {
                    return Ok((growth, Verdict::Growing));
                }
                let gone = history.settled().saturating_sub(bytes);
                if gone == 0 {
                    return Err(still);
                }
                let growth = history.growth(axes, Left::AtMost(u64::MAX)).map_err(|_| still)?;
                let freed = gone as f64 >= FREED * growth.risen as f64;
                let verdict = if self.refused { Verdict::Growing } else { Verdict::FreedAtEnd };
                freed.then_some((growth, verdict)).ok_or(still)
            }
        }
    }

    /// It allocated from the beginning: the program may be loading.
    fn is_first(&self, case: &Case) -> bool {
        let place = &self.observer.places[&case.at];
        case.sums.first_event as f64 <= FIRST * place.last_alloc_events as f64
    }

    fn confidence(&self, case: &Case, growth: &Growth, verdict: Verdict) -> f64 {
        let rises = growth.rises as f64;
        let mut confidence = growth.tau * growth.straight.sqrt() * (1.0 - 1.0 / (rises + 2.0));
        let place = &self.observer.places[&case.at];
        let places = self.observer.places.iter().filter(|((_, device), _)| *device == case.at.1);
        let alone = places.map(|(_, place)| place.last_alloc_frees).sum::<u64>() == 0;
        if alone {
            confidence = confidence.min(LOADING);
        }
        let sums = &case.sums;
        let most = sums.allocations as f64 >= MIN_OWN_PART * place.allocations as f64;
        let once = alone || (self.is_first(case) && most) || growth.spread_of_events < ALL_THE_TIME;
        if sums.is_full() && (sums.highest_count >= SET || verdict == Verdict::FreedAtEnd) {
            confidence = confidence.min(LOADING_WEIGHTS);
        }
        // A server captures its CUDA graphs when it starts, and each keeps some memory of their pool.
        let private = sums.private > sums.allocations / 2 && sums.count < MANY;
        if private && !self.refused {
            confidence = confidence.min(LOADING_WEIGHTS);
        }
        // What it frees itself is no weight.
        let stays = sums.highest_count >= sums.allocations / 10 * 9;
        if once && stays && sums.are_of_many_sizes() {
            confidence = confidence.min(LOADING_WEIGHTS);
        }
        confidence
    }

    fn leak(&self, case: &Case, verdict: Verdict, because: LeakReason, confidence: f64) -> Leak {
        let sums = &case.sums;
        // With those that it freed as it ended.
        let all = verdict == Verdict::FreedAtEnd || verdict == Verdict::Growing && self.refused;
        let (bytes, count, variance) = match all {
            true => (case.held.bytes, case.held.count, case.held.variance),
            false => (sums.bytes, sums.count, sums.variance),
        };
        let (level, device) = case.at;
        Leak {
            verdict,
            stacks: case.stacks,
            bytes,
            error_bytes: variance.sqrt() as u64,
            count,
            allocations: sums.allocations,
            frees: sums.frees,
            confidence: confidence.clamp(0.0, 1.0),
            shape: case.history.time.clone(),
            because,
            ..Leak::of(level, device, case.stack)
        }
    }

    /// Where a process freed nearly all it held before it ended, what it did not free is a leak.
    fn unfreed(
        &self,
        classifier: &StackClassifier,
        found: &mut Vec<JudgedLeak>,
        others: &mut Vec<Innocent>,
    ) {
        let mut gone = Vec::new();
        for at in self.axes.keys().filter(|(level, _)| *level == Level::Driver) {
            let holds = |index: &usize| {
                let case = &others[*index].case;
                case.at == *at
                    && case.history.settled() > 0
                    && pool_of(classifier, at.0, case.stack).is_none()
            };
            let held: Vec<usize> = (0..others.len()).filter(holds).collect();
            let left = held.iter().filter(|index| others[**index].case.sums.bytes > 0);
            let left: Vec<usize> = left.copied().collect();
            let freed = (held.len() - left.len()) as u64;
            if freed < TIDY || (freed as f64) < TIDY_PART * held.len() as f64 {
                continue;
            }
            // Rule of succession: the chance that a stack's memory is freed.
            let confidence = (freed + 1) as f64 / (held.len() + 2) as f64;
            let because = LeakReason::OthersFreed { freed, held: held.len() as u64 };
            for index in left {
                let case = others[index].case.clone();
                let leak = self.leak(&case, Verdict::NeverFreed, because, confidence);
                found.push(JudgedLeak { case, leak });
                gone.push(index);
            }
        }
        remove(others, gone);
    }
}

pub(super) fn remove<T>(all: &mut Vec<T>, mut gone: Vec<usize>) {
    gone.sort_unstable();
    for index in gone.into_iter().rev() {
        all.swap_remove(index);
    }
}
