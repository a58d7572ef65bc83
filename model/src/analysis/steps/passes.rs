//! Makes a list of passes, parts of a run in which one thing allocates, from the events of a trace.

use rustc_hash::{FxHashMap, FxHashSet};
use vramtrace_format::{DeviceId, StackId, Stamped, ThreadId};

use super::iterations::{cycles, groups, iterations};
use super::stacks::{Caller, Sign, Signs};
use super::step::{EventPlace, NoSteps, Steps};
use crate::replay::cache::CacheOomAt;
use crate::replay::{AllocCause, ByDevice, DeviceState, FreeCause, Key, Live, Observer, Slots};
use crate::symbols::Symbols;
use crate::trace::Definitions;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PassKind {
    #[default]
    Forward,
    Backward,
    Optimizer,
    Scaler,
}

/// The gradients that a backward pass left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gradients {
    /// Their sizes, in ascending order, each with its number.
    pub sizes: Vec<(u64, u32)>,
    /// There are several, and as many allocations of these sizes are older than the first pass.
    pub of_weights: bool,
}

/// A pass, with all that follows up to the next one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Pass {
    pub kind: PassKind,
    pub begin: EventPlace,
    /// The last event before the next pass.
    pub end: EventPlace,
    /// Of a forward pass: a backward pass freed memory of it.
    pub feeds: bool,
    /// Of a forward pass: an optimizer called it.
    pub in_optimizer: bool,
    /// Of an optimizer: its callers, without repetitions.
    pub callers: Vec<Caller>,
    /// Of a backward pass: the sizes of the gradients that it left, as an index.
    pub gradients: Option<usize>,
    /// At least half of the gradients were freed outside of backward before the next pass.
    pub frees_gradients: bool,
    /// They were freed before older memory was, as at the end of a run.
    pub frees_first: bool,
    /// PyTorch gave up on a request in it: the bytes of this pass that were live then, and all that it had
    /// allocated.
    pub failed: Option<(u64, u64)>,
    pub peak: (u64, EventPlace),
    pub settled: Option<EventPlace>,
    pub devices: ByDevice<Figures>,
}

/// Bytes of one device in a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub peak: u64,
    pub left: u64,
    /// Allocated before memory was freed that is older than the iteration: at the end of a run all is freed.
    pub settled: Option<u64>,
    /// Of PyTorch's cache, and of the driver.
    pub largest_block: u64,
    pub largest_of_driver: u64,
}

impl Pass {
    pub(super) fn new(kind: PassKind, begin: EventPlace) -> Pass {
        Pass { kind, begin, end: begin, peak: (0, begin), ..Pass::default() }
    }
}

/// Maximum number of sets of gradients that are distinguished.
const MAX_SETS: usize = 64;
/// Less than one part in this many of the gradients may be freed at another time than the others.
const MAX_LATE_PART: u64 = 10;

/// Finds the iterations of one trace.
#[derive(Clone, Debug, Default)]
pub struct StepObserver {
    signs: Signs,
    passes: Vec<Pass>,
    sets: Vec<Gradients>,
    live: Slots<Born>,
    /// The sizes of allocations that were older than the first pass when the first backward pass ended, each with
    /// its number.
    older: Option<FxHashMap<u64, u32>>,
    allocated: ByDevice<u64>,
    /// Threads that run more than backward passes.
    program: FxHashSet<ThreadId>,
    /// Threads of the engine that runs backward passes. What hooks do there belongs to these passes.
    engine: FxHashSet<ThreadId>,
    /// The last thread that ran a forward pass or an optimizer.
    lead: Option<ThreadId>,
    /// The program's own lines have allocated since the last allocation of a pass.
    interrupted: bool,
    /// The first pass after the last update, and that of the iteration that runs.
    after_update: usize,
    iteration: usize,
    backward: Backward,
    /// Bytes that the current pass has live, and has allocated.
    in_pass: (u64, u64),
    /// Gradients were freed between backward passes, but not all.
    parts: bool,
    missing: bool,
    sampled: bool,
}

/// The birth of a live allocation.
#[derive(Clone, Copy, Debug)]
struct Born {
    bytes: u64,
    thread: ThreadId,
    /// `None`: before the first pass.
    pass: Option<usize>,
    /// A backward pass made it.
    made: bool,
}

/// Memory that backward passes have left.
#[derive(Clone, Debug, Default)]
struct Backward {
    /// The program waits for a backward pass.
    runs: bool,
    /// Live allocations of backward passes.
    made: FxHashMap<Key, Born>,
    bytes: u64,
    /// Their bytes when the last backward pass ended, and those that were freed since then.
    kept: u64,
    freed: u64,
    /// What stayed when most of them were freed, and how much of it was freed since the last backward pass.
    stayed: FxHashSet<Key>,
    late: u64,
}

impl StepObserver {
    /// `symbols` must name all stacks of the trace.
    pub fn new(definitions: &Definitions, symbols: &Symbols) -> StepObserver {
        StepObserver { signs: Signs::new(definitions, symbols), ..StepObserver::default() }
    }

    pub fn finish(mut self) -> Steps {
        self.leave_backward();
        let groups = groups(&self.passes);
        let whole = match () {
            () if groups.is_empty() && self.updates() => Err(NoSteps::NoNames),
            () if groups.is_empty() => Err(NoSteps::NoBackward),
            () if self.missing => Err(NoSteps::EventsMissing),
            () if self.sampled => Err(NoSteps::Sampled),
            () if self.signs.graphs => Err(NoSteps::Graphs),
            () if self.signs.search => Err(NoSteps::Closure),
            () => cycles(&groups, &self.sets, self.parts),
        };
        iterations(&self.passes, &groups, whole)
    }

    /// Whether an optimizer runs more than once: its state may also be loaded.
    fn updates(&self) -> bool {
        self.passes.iter().filter(|pass| pass.kind == PassKind::Optimizer).count() > 1
    }

    /// Whether a thread also runs more than backward passes. Imported traces do not name threads.
    fn is_program(&self, thread: ThreadId) -> bool {
        thread != ThreadId(0) && self.program.contains(&thread)
    }

    fn sign(&mut self, at: &Stamped, stack: StackId) -> Sign {
        let sign = self.signs.get(stack);
        if sign == Sign::Backward && at.thread != ThreadId(0) && !self.is_program(at.thread) {
            self.engine.insert(at.thread);
        }
        match sign {
            Sign::None | Sign::Communication => sign,
            _ if self.engine.contains(&at.thread) => Sign::Backward,
            sign => sign,
        }
    }

    fn follow(&mut self, at: &Stamped, sign: Sign) {
        let kind = match sign {
            Sign::None | Sign::Communication => return,
            Sign::Outside => {
                self.program.insert(at.thread);
                if self.lead.is_none_or(|lead| lead == at.thread) {
                    self.leave_backward();
                    self.interrupted = true;
                }
                return;
            }
            Sign::Backward => PassKind::Backward,
            Sign::Forward { .. } => PassKind::Forward,
            Sign::Optimizer(_) => PassKind::Optimizer,
            Sign::Scaler => PassKind::Scaler,
        };
        match kind {
            PassKind::Backward => self.enter_backward(),
            _ => {
                self.program.insert(at.thread);
                self.lead = Some(at.thread);
                self.leave_backward();
            }
        }
        let begins = match kind {
            PassKind::Forward | PassKind::Backward => self.interrupted,
            PassKind::Optimizer | PassKind::Scaler => false,
        };
        self.interrupted = false;
        if begins || self.passes.last().is_none_or(|pass| pass.kind != kind) {
            self.begin(at, kind);
        }
        let Some(pass) = self.passes.last_mut() else { return };
        match sign {
            Sign::Forward { in_optimizer } => pass.in_optimizer |= in_optimizer,
            Sign::Optimizer(caller) if !pass.callers.contains(&caller) => pass.callers.push(caller),
            _ => {}
        }
    }

    fn begin(&mut self, at: &Stamped, kind: PassKind) {
        let mut pass = Pass::new(kind, place(at));
        for (device, bytes) in &self.allocated {
            let figures = pass.devices.of(*device);
            (figures.peak, figures.left) = (*bytes, *bytes);
        }
        pass.peak.0 = self.sum();
        let number = self.passes.len();
        self.passes.push(pass);
        self.in_pass = (0, 0);
        match kind {
            PassKind::Forward | PassKind::Backward => {
                if self.iteration < self.after_update {
                    self.iteration = number;
                }
            }
            PassKind::Optimizer | PassKind::Scaler => self.after_update = number + 1,
        }
    }

    fn sum(&self) -> u64 {
        self.allocated.values().copied().fold(0, u64::saturating_add)
    }

    fn allocated(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause, block: bool) {
        if !live.is_device_memory() {
            return;
        }
        self.sampled |= live.is_sample();
        if how != AllocCause::Allocated {
            let born = Born { bytes: live.size, thread: live.thread, pass: None, made: false };
            self.live.insert(live, born);
            return;
        }
        let sign = self.sign(at, live.stack);
        self.follow(at, sign);
        let pass = self.passes.len().checked_sub(1);
        let mut born = Born { bytes: live.size, thread: at.thread, pass, made: false };
        let Some(current) = self.passes.last_mut() else {
            self.live.insert(live, born);
            return;
        };
        let figures = current.devices.of(live.device);
        let largest =
            if block { &mut figures.largest_block } else { &mut figures.largest_of_driver };
        *largest = live.size.max(*largest);
        self.in_pass.0 = self.in_pass.0.saturating_add(live.size);
        self.in_pass.1 = self.in_pass.1.saturating_add(live.size);
        let of_backward = matches!(sign, Sign::Backward | Sign::Communication);
        if of_backward && self.backward.runs && !self.is_program(at.thread) {
            self.backward.bytes = self.backward.bytes.saturating_add(live.size);
            born.made = true;
            self.backward.made.insert(key, born);
        }
        self.live.insert(live, born);
    }

    fn freed(&mut self, at: &Stamped, key: Key, live: &Live, how: FreeCause) {
        let Some(born) = self.live.remove(live) else { return };
        let by_other = at.thread != born.thread;
        let threads_known = at.thread != ThreadId(0) && born.thread != ThreadId(0);
        if born.made && self.backward.made.contains_key(&key) {
            let outside = match threads_known {
                true => by_other && self.is_program(at.thread),
                false => !self.backward.runs,
            };
            if outside {
                self.leave_backward();
            }
            self.backward.made.remove(&key);
            self.backward.bytes = self.backward.bytes.saturating_sub(born.bytes);
            if outside && how == FreeCause::Freed {
                self.gradient_freed(born.bytes);
            }
        }
        if born.made
            && self.backward.stayed.remove(&key)
            && threads_known
            && self.is_program(at.thread)
        {
            self.backward.late = self.backward.late.saturating_add(born.bytes);
        }
        let last = self.passes.len().checked_sub(1);
        if born.pass == last {
            self.in_pass.0 = self.in_pass.0.saturating_sub(born.bytes);
        }
        let Some(last) = last else { return };
        // The engine's threads free what a forward pass has saved for them.
        if self.passes[last].kind == PassKind::Backward
            && self.backward.runs
            && (by_other || !threads_known)
            && let Some(pass) = born.pass
        {
            self.passes[pass].feeds = true;
        }
        if born.pass.is_none_or(|pass| pass < self.iteration) {
            self.settle(last);
        }
    }

    fn settle(&mut self, last: usize) {
        let pass = &mut self.passes[last];
        if pass.settled.is_none() {
            pass.settled = Some(pass.end);
            for figures in pass.devices.values_mut() {
                figures.settled = Some(figures.left);
            }
        }
    }

    /// Gradients were freed outside of backward.
    fn gradient_freed(&mut self, bytes: u64) {
        self.backward.freed = self.backward.freed.saturating_add(bytes);
        let Backward { kept, freed, .. } = self.backward;
        if kept > 0 && freed.saturating_mul(2) >= kept {
            self.after_update = self.passes.len();
            if let Some(pass) = self.passes.last_mut() {
                pass.frees_gradients = true;
                pass.frees_first |= pass.settled.is_none();
            }
        }
    }

    fn enter_backward(&mut self) {
        let of = &mut self.backward;
        if std::mem::replace(&mut of.runs, true) {
            return;
        }
        self.parts |= of.late > 0 && of.late >= of.kept / MAX_LATE_PART;
        of.late = 0;
        if of.kept > 0 && of.freed.saturating_mul(2) >= of.kept {
            of.stayed.extend(of.made.drain().map(|(key, _)| key));
            of.bytes = 0;
        }
    }

    /// `sizes`: in ascending order.
    fn gradients(&mut self, sizes: &[u64]) -> Gradients {
        let older = self.older.get_or_insert_with(|| {
            let mut older: FxHashMap<u64, u32> = FxHashMap::default();
            for born in self.live.values().filter(|born| born.pass.is_none()) {
                *older.entry(born.bytes).or_default() += 1;
            }
            older
        });
        let counted = sizes.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u32));
        let counted: Vec<(u64, u32)> = counted.collect();
        let weights = counted.iter().map(|(size, count)| {
            let known = older.get(size).copied().unwrap_or(0);
            size.saturating_mul(u64::from(known.min(*count)))
        });
        let of_weights: u64 = weights.fold(0, u64::saturating_add);
        let bytes = sizes.iter().copied().fold(0, u64::saturating_add);
        let of_weights = sizes.len() > 1 && of_weights >= bytes - bytes / MAX_LATE_PART;
        Gradients { sizes: counted, of_weights }
    }

    /// The program runs again after a backward pass: what that pass left are gradients.
    fn leave_backward(&mut self) {
        if !std::mem::take(&mut self.backward.runs) {
            return;
        }
        self.backward.kept = self.backward.bytes;
        self.backward.freed = 0;
        let of_iteration = |born: &&Born| born.pass.is_some_and(|pass| pass >= self.after_update);
        let mut sizes: Vec<u64> =
            self.backward.made.values().filter(of_iteration).map(|born| born.bytes).collect();
        sizes.sort_unstable();
        let set = self.gradients(&sizes);
        let index = self.sets.iter().position(|known| *known == set);
        let index = index.or_else(|| {
            (self.sets.len() < MAX_SETS).then(|| {
                self.sets.push(set);
                self.sets.len() - 1
            })
        });
        if let Some(pass) = self.passes.last_mut() {
            pass.gradients = index;
        }
    }
}

fn place(at: &Stamped) -> EventPlace {
    EventPlace { offset: at.offset, time_ns: at.time_ns }
}

impl Observer for StepObserver {
    fn on_alloc(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        self.allocated(at, key, live, how, false);
    }

    fn on_free(&mut self, at: &Stamped, key: Key, live: &Live, how: FreeCause) {
        self.freed(at, key, live, how);
    }

    fn on_block_alloc(&mut self, at: &Stamped, address: u64, live: &Live, how: AllocCause) {
        self.allocated(at, Key::block(address), live, how, true);
    }

    /// The blocks of a segment count, the segment does not.
    fn on_segment(&mut self, _at: &Stamped, key: Key, live: &Live) {
        let Some(born) = self.live.remove(live) else { return };
        if self.backward.made.remove(&key).is_some() {
            self.backward.bytes = self.backward.bytes.saturating_sub(born.bytes);
        }
    }

    fn on_cache_oom(&mut self, at: &Stamped, device: DeviceId, oom: &CacheOomAt) {
        let sign = self.sign(at, oom.stack);
        self.follow(at, sign);
        let in_pass = self.in_pass;
        let Some(pass) = self.passes.last_mut() else { return };
        pass.failed = Some(in_pass);
        let figures = pass.devices.of(device);
        figures.largest_block = figures.largest_block.max(oom.size);
        pass.end = place(at);
    }

    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        let bytes = state.allocated_bytes();
        *self.allocated.of(device) = bytes;
        let sum = self.sum();
        let Some(pass) = self.passes.last_mut() else { return };
        pass.end = place(at);
        if sum > pass.peak.0 {
            pass.peak = (sum, place(at));
        }
        let figures = pass.devices.of(device);
        figures.peak = figures.peak.max(bytes);
        figures.left = bytes;
    }

    fn on_history_gap(&mut self, _at: &Stamped) {
        self.missing = true;
        self.live.clear();
        self.backward = Backward::default();
        self.allocated = ByDevice::default();
    }
}
