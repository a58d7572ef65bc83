//! From the histories of stacks to verdicts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rustc_hash::{FxHashMap, FxHashSet};
use vramtrace_format::{DeviceId, Header, StackId};

use super::asleep::SleepFindings;
use super::driver_verdict;
use super::growth::{Axes, BinnedHistory, KeptReason, Left, Strength, WARM_UP};
use super::headroom::headroom;
use super::observer::{GrowthObserver, StackHistory};
use super::pieces::Pieces;
use super::suppress::Suppressions;
use super::verdict::{Kept, Leak, LeakReason, Leaks, Pooled, Suppressed, Verdict};
use crate::analysis::{Level, StackClassifier};
use crate::replay::State;
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
/// Sizes that differ by more than this factor are many sizes.
const SIZES: u64 = 4;
/// Who allocates first on a device, within this part of all events, may be loading.
const FIRST: f64 = 0.02;
/// If at least this part of all allocations is its own; the rest is what weights are made of.
const MOST: f64 = 0.4;
/// Who allocates over a smaller part of the events than this may make gradients, or an optimizer's
/// state, in the first step.
const ALL_THE_TIME: f64 = 0.7;
/// What grew is freed if this part of it is.
const FREED: f64 = 0.9;
/// A process frees its memory when it ends if it does so for this many stacks, and this part.
const TIDY: u64 = 4;
const TIDY_PART: f64 = 0.8;

/// Frameworks that keep what they free.
const POOLS: [&str; 5] = ["PyTorch", "XLA", "TensorFlow", "CuPy", "RMM"];

pub(super) type LevelAndDevice = (Level, DeviceId);

/// One stack's, or one line's, history and sums.
#[derive(Clone, Debug, Default)]
pub(super) struct Case {
    history: BinnedHistory,
    /// The stack with the most bytes, and its bytes.
    pub(super) stack: StackId,
    most: u64,
    pub(super) stacks: u64,
    bytes: u64,
    pub(super) count: u64,
    /// Bytes and pieces before the end's frees.
    pub(super) held: (u64, u64),
    /// The variances of `bytes` and of those of `held`.
    variance: f64,
    held_variance: f64,
    pub(super) highest_count: u64,
    pub(super) allocations: u64,
    frees: u64,
    smallest: u64,
    largest: u64,
    pub(super) pieces: Pieces,
    first_event: u64,
}

impl Case {
    fn of(
        stack: StackId,
        observer: &GrowthObserver,
        track: &StackHistory,
        axes: &Axes,
        from_ns: u64,
    ) -> Case {
        let last_alloc_ns = track.last_alloc_ns.saturating_sub(from_ns);
        let history = axes.history(&track.time, &track.activity, last_alloc_ns);
        Case {
            stack,
            most: history.settled(),
            stacks: 1,
            history,
            bytes: track.bytes,
            count: track.count,
            held: observer.held(track),
            variance: track.variance,
            held_variance: observer.held_variance(track),
            highest_count: track.highest_count,
            allocations: track.allocations,
            frees: track.frees,
            smallest: track.smallest,
            largest: track.largest,
            pieces: track.pieces,
            first_event: track.first_event,
        }
    }

    pub(super) fn add(&mut self, other: Case) {
        if self.stacks == 0 || other.most > self.most {
            (self.stack, self.most) = (other.stack, other.most);
        }
        if self.stacks == 0 {
            (self.smallest, self.first_event) = (other.smallest, other.first_event);
        }
        self.smallest = self.smallest.min(other.smallest);
        self.largest = self.largest.max(other.largest);
        self.pieces.add(&other.pieces);
        self.first_event = self.first_event.min(other.first_event);
        self.history.add(&other.history);
        self.stacks += other.stacks;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.count += other.count;
        self.held = (self.held.0.saturating_add(other.held.0), self.held.1 + other.held.1);
        self.variance += other.variance;
        self.held_variance += other.held_variance;
        self.highest_count += other.highest_count;
        self.allocations += other.allocations;
        self.frees += other.frees;
    }
}

/// A leak and what it was judged by.
pub(super) struct JudgedLeak {
    pub at: LevelAndDevice,
    pub case: Case,
    pub leak: Leak,
}

/// Whose memory is judged.
pub(super) struct Subject {
    pub trace: PathBuf,
    pub header: Header,
    pub running: bool,
    pub definitions: Definitions,
    pub sleeps: SleepFindings,
}

pub(super) struct Judge<'a> {
    observer: &'a GrowthObserver,
    axes: BTreeMap<LevelAndDevice, Axes>,
    headrooms: BTreeMap<LevelAndDevice, Option<u64>>,
    /// The process ended by itself: what it held then is no step under way.
    in_order: bool,
}

pub(super) fn judge(
    subject: Subject,
    state: &State,
    observer: &GrowthObserver,
    rules: &Suppressions,
    least: u64,
) -> Leaks {
    let Subject { trace, header, running, definitions, sleeps } = subject;
    let from_ns = observer.from_ns.or(observer.driver.from_ns).unwrap_or(state.time_ns);
    let of_driver = driver_verdict::judge(observer, state, &definitions, running);
    let judge = Judge::new(observer, state, &definitions, running, from_ns);
    // A stack by itself first.
    let mut found: Vec<JudgedLeak> = Vec::new();
    let mut others: Vec<(LevelAndDevice, Case, KeptReason)> = Vec::new();
    let mut keys: Vec<_> = observer.tracks.keys().copied().collect();
    keys.sort_unstable();
    // Blocks stand for the memory that they lie in.
    let segments = segment_stacks(state);
    keys.retain(|(level, device, stack)| {
        *level == Level::Tensor || !segments.contains(&(*device, *stack))
    });
    for key in keys {
        let (level, device, stack) = key;
        let at = (level, device);
        let case = Case::of(stack, observer, &observer.tracks[&key], &judge.axes[&at], from_ns);
        match judge.case(at, &case) {
            Ok(leak) => found.push(JudgedLeak { at, case, leak }),
            Err(still) => others.push((at, case, still)),
        }
    }
    let wanted = found.iter().map(|one| one.leak.stack);
    // Of the others, those that hold more than they did: many stacks may lead to one line.
    let rose = |case: &Case| case.bytes > 0 || case.history.settled() > 0;
    let wanted: Vec<StackId> = wanted
        .chain(others.iter().filter(|(_, case, _)| rose(case)).map(|(_, case, _)| case.stack))
        .chain(sleeps.stacks())
        .chain(of_driver.leaks.iter().map(|leak| leak.stack))
        .chain(of_driver.held.iter().map(|held| held.stack))
        .collect();
    let symbols = Symbols::of(&definitions, &header, wanted);
    let classifier = StackClassifier::new(&symbols, &header);
    judge.together(&classifier, &mut found);
    judge.lines(&classifier, &mut found, &mut others);
    if judge.in_order {
        judge.unfreed(&classifier, &mut found, &mut others);
    }

    let mut larger = Vec::new();
    found.retain(|one| {
        let pieces = one.larger_pieces(&classifier);
        let of_program = pieces.filter(|of| pool_of(&classifier, one.at.0, of.stack).is_none());
        let is_leak = of_program.is_none();
        larger.extend(of_program);
        is_leak
    });
    let asleep = sleeps.leaks(&classifier, observer, &mut found);
    let mut leaks = Vec::new();
    let mut pooled: BTreeMap<(DeviceId, String), Pooled> = BTreeMap::new();
    let mut suppressed: BTreeMap<usize, Suppressed> = BTreeMap::new();
    let mut pool = |device, library: &str, bytes, rate: Option<f64>| {
        let key = (device, library.to_string());
        let library = library.to_string();
        let sums = pooled.entry(key).or_insert(Pooled {
            device,
            library,
            bytes: 0,
            bytes_per_second: None,
            free: false,
        });
        sums.bytes += bytes;
        if let Some(rate) = rate {
            *sums.bytes_per_second.get_or_insert(0.0) += rate;
        }
    };
    for leak in found.into_iter().map(|one| one.leak).chain(asleep).chain(of_driver.leaks) {
        let (level, device) = (leak.level, leak.device);
        let of_pool = || pool_of(&classifier, level, leak.stack);
        if let Some(library) = leak.driver.is_none().then(of_pool).flatten() {
            let rate = leak.rate();
            pool(device, library, leak.bytes, rate);
        } else if leak.bytes < least.max(1) {
        } else if let Some(line) = rules.rule_for(symbols.stack(leak.stack)) {
            let sums = suppressed.entry(line).or_insert(Suppressed { line, leaks: 0, bytes: 0 });
            sums.leaks += 1;
            sums.bytes += leak.bytes;
        } else {
            leaks.push(leak);
        }
    }
    leaks.sort_by(|a, b| {
        let rank = |leak: &Leak| (leak.verdict, std::cmp::Reverse(leak.bytes));
        let sure = Leak::is_sure;
        sure(b).cmp(&sure(a)).then(rank(a).cmp(&rank(b))).then(a.stack.cmp(&b.stack))
    });
    let mut kept: BTreeMap<(DeviceId, Level, KeptReason), Kept> = BTreeMap::new();
    let mut largest: FxHashMap<(DeviceId, Level, KeptReason), u64> = FxHashMap::default();
    for ((level, device), case, why) in others.iter().filter(|(_, case, _)| case.bytes > 0) {
        if let Some(library) = pool_of(&classifier, *level, case.stack) {
            pool(*device, library, case.bytes, None);
            continue;
        }
        let key = (*device, *level, *why);
        let sums = kept.entry(key).or_insert(Kept {
            device: *device,
            level: *level,
            why: *why,
            bytes: 0,
            count: 0,
            stacks: 0,
            largest: case.stack,
        });
        sums.bytes = sums.bytes.saturating_add(case.bytes);
        sums.count = sums.count.saturating_add(case.count);
        sums.stacks += case.stacks;
        let most = largest.entry(key).or_default();
        if case.bytes > *most {
            (*most, sums.largest) = (case.bytes, case.stack);
        }
    }
    for (device, sums) in &state.devices {
        if sums.cache.is_used() && sums.cache.free_resident() > 0 {
            let (device, bytes, library) =
                (*device, sums.cache.free_resident(), "PyTorch".to_string());
            let free = Pooled { device, library, bytes, bytes_per_second: None, free: true };
            pooled.insert((device, " free".into()), free);
        }
    }
    let length = state.time_ns.saturating_sub(from_ns);
    Leaks {
        trace,
        header,
        running,
        from_ns,
        beginning_lost: state.history_from_ns > 0,
        sampled: None,
        off: state.off.clone(),
        live_is_known: state.live_is_known(),
        warm_ns: from_ns + (length as f64 * WARM_UP) as u64,
        until_ns: state.time_ns,
        leaks,
        peaks: state.devices.iter().map(|(id, device)| (*id, device.peak.bytes)).collect(),
        kept: kept.into_values().collect(),
        pooled: pooled.into_values().collect(),
        held_by_driver: of_driver.held,
        driver_is_unknown: of_driver.is_unknown,
        larger_pieces: larger,
        suppressed: suppressed.into_values().collect(),
        symbols,
        definitions,
    }
}

/// Stacks of the memory that blocks lie in.
fn segment_stacks(state: &State) -> FxHashSet<(DeviceId, StackId)> {
    let mut stacks = FxHashSet::default();
    for segment in state.segments() {
        stacks.extend(segment.allocation(state).map(|(_, live)| (live.device, live.stack)));
        stacks.extend(segment.objects(state).map(|(_, live)| (live.device, live.stack)));
    }
    stacks
}

/// The framework that made this allocation of the driver for its pool, if one did.
fn pool_of<'r>(classifier: &'r StackClassifier, level: Level, stack: StackId) -> Option<&'r str> {
    let library = classifier.library_name(&classifier.roles(stack))?;
    (level == Level::Driver && POOLS.contains(&library)).then_some(library)
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
        let axes = |place: &super::observer::LevelTotals| Axes {
            settled_ns,
            end_ns,
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
        Judge { observer, axes, headrooms, in_order: state.ended_ns.is_some() && !running }
    }

    pub(super) fn case(&self, at: LevelAndDevice, case: &Case) -> Result<Leak, KeptReason> {
        let (axes, history) = (&self.axes[&at], &case.history);
        let settled = history.settled();
        let left = if self.in_order { Left::Known(case.bytes) } else { Left::AtMost(case.bytes) };
        let (growth, verdict) = match history.growth(axes, left) {
            Ok(growth) => {
                let verdict = match growth.strength {
                    Strength::Growing => Verdict::Growing,
                    // Too few to tell from a cache, but that none was ever freed.
                    Strength::Sporadic if case.frees == 0 => Verdict::NeverFreed,
                    Strength::Sporadic => return Err(KeptReason::Moves),
                };
                (growth, verdict)
            }
            Err(still) => {
                let growth = history.growth(axes, Left::AtMost(u64::MAX)).map_err(|_| still)?;
                let freed =
                    settled.saturating_sub(case.bytes) as f64 >= FREED * growth.risen as f64;
                if growth.strength != Strength::Growing || !freed {
                    return Err(still);
                }
                (growth, Verdict::FreedAtEnd)
            }
        };
        let rises = growth.rises as f64;
        let mut confidence = growth.tau * growth.straight.sqrt() * (1.0 - 1.0 / (rises + 2.0));
        if growth.strength == Strength::Sporadic {
            confidence *= 0.5;
        }
        let place = &self.observer.places[&at];
        let places = self.observer.places.iter().filter(|((_, device), _)| *device == at.1);
        let alone = places.map(|(_, place)| place.last_alloc_frees).sum::<u64>() == 0;
        if alone {
            confidence = confidence.min(LOADING);
        }
        let first = case.first_event as f64 <= FIRST * place.last_alloc_events as f64;
        let most = case.allocations as f64 >= MOST * place.allocations as f64;
        let once = alone || (first && most) || growth.spread_of_events < ALL_THE_TIME;
        // What it frees itself is no weight.
        let stays = case.highest_count >= case.allocations / 10 * 9;
        if once && stays && case.largest > case.smallest.saturating_mul(SIZES) {
            confidence = confidence.min(LOADING_WEIGHTS);
        }
        let because = match growth.strength {
            Strength::Growing => LeakReason::Trend,
            Strength::Sporadic => LeakReason::NoneFreed,
        };
        let mut leak = self.leak(at, case, verdict, because, confidence);
        let room = self.headrooms[&at].filter(|_| verdict == Verdict::Growing);
        leak.exhausted_in_s = room
            .filter(|_| growth.bytes_per_second > 0.0)
            .map(|room| room as f64 / growth.bytes_per_second);
        leak.growth = Some(growth);
        Ok(leak)
    }

    fn leak(
        &self,
        (level, device): LevelAndDevice,
        case: &Case,
        verdict: Verdict,
        because: LeakReason,
        confidence: f64,
    ) -> Leak {
        let ((bytes, count), variance) = match verdict {
            Verdict::FreedAtEnd => (case.held, case.held_variance),
            _ => ((case.bytes, case.count), case.variance),
        };
        Leak {
            verdict,
            level,
            device,
            stack: case.stack,
            stacks: case.stacks,
            bytes,
            error: variance.sqrt() as u64,
            count,
            allocations: case.allocations,
            frees: case.frees,
            confidence: confidence.clamp(0.0, 1.0),
            growth: None,
            exhausted_in_s: None,
            shape: case.history.time.clone(),
            because,
            driver: None,
        }
    }

    /// Where a process freed nearly all it held before it ended, what it did not free is a leak.
    fn unfreed(
        &self,
        classifier: &StackClassifier,
        found: &mut Vec<JudgedLeak>,
        others: &mut Vec<(LevelAndDevice, Case, KeptReason)>,
    ) {
        let devices: Vec<LevelAndDevice> =
            self.axes.keys().copied().filter(|(level, _)| *level == Level::Driver).collect();
        let mut gone = Vec::new();
        for at in devices {
            let held: Vec<usize> = (0..others.len())
                .filter(|index| {
                    let (of, case, _) = &others[*index];
                    *of == at
                        && case.history.settled() > 0
                        && pool_of(classifier, at.0, case.stack).is_none()
                })
                .collect();
            let left: Vec<usize> =
                held.iter().copied().filter(|index| others[*index].1.bytes > 0).collect();
            let freed = (held.len() - left.len()) as u64;
            if freed < TIDY || (freed as f64) < TIDY_PART * held.len() as f64 {
                continue;
            }
            // Rule of succession: the chance that a stack's memory is freed.
            let confidence = (freed + 1) as f64 / (held.len() + 2) as f64;
            let because = LeakReason::OthersFreed { freed, held: held.len() as u64 };
            for index in left {
                let case = &others[index].1;
                let leak = self.leak(at, case, Verdict::NeverFreed, because, confidence);
                found.push(JudgedLeak { at, case: case.clone(), leak });
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
