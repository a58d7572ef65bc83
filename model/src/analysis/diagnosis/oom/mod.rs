//! Out-of-memory failures: all of a trace, and the cause, the holders and the remedies of one.
//!
//! The recorder applies the same rules when it decides to write a post-mortem, without the events that
//! follow (`tests/integration/limits/oom_command.rs` compares the two). The limit of a process is its
//! cap; under a group's cap or on a full card it is what the process had plus what was left. The parts
//! of the used memory add up to the byte. The last part is what only NVML shows; it may be negative.
//!
//! [`list`] finds the failures in one pass. [`examine`] reads the state at each of them.
//! [`PostMortem::find_remedy`] replays the requests up to one of them under other settings.
//! [`explain`] names the holders.

mod advice;
mod at_step;
mod explain;
mod list;
mod other_streams;
mod program;
mod remedy;
mod spread;
mod sum;
mod swallowed;
#[cfg(test)]
mod tests;

pub use advice::{Advice, AdvisedChange, advice};
pub use at_step::AtStep;
pub use explain::{Explained, OomAnswer, explain};
pub use list::{LimitFacts, Neighbour, Oom, OomObserver, OomsFound};
pub use other_streams::OtherStreams;
pub use program::option as program_option;
pub use remedy::Remedy;
pub use spread::Spread;
pub use sum::{Used, UsedPart, UsedSum};
pub use swallowed::{NotReported, Swallowed};

use serde::Serialize;
pub use vramtrace_format::oom::OomCause;
use vramtrace_format::oom::{Figures, OtherLimit};
use vramtrace_format::torch_conf::releases_first;
use vramtrace_format::{OomEvidence, PostMortem as PostMortemEvent, RefusedBy};

use crate::analysis::frag::is_small;
use crate::analysis::leaks::{Growth, Leak, Leaks};
use crate::analysis::{GroupBy, Holdings, Level, StackClassifier};
use crate::replay::{DeviceState, SegmentAt, State, Until, Visitor};
use crate::trace::{Definitions, Trace};

/// The state of one device at an out-of-memory. Sizes are bytes.
#[derive(Clone, Debug)]
pub struct PostMortem {
    pub oom: Oom,
    pub cause: OomCause,
    /// The figures from which the cause follows.
    pub figures: Figures,
    pub cache: CacheAtOom,
    /// Free ranges in the segments of PyTorch's cache that have a block, bytes, each with whether it is in the pool of small blocks.
    pub holes: Vec<(bool, u64)>,
    pub held: Holdings,
    /// The device's sums at that moment.
    pub device: DeviceState,
    /// The trace was imported from another tool: it has no calls of the driver.
    pub imported: bool,
    /// The addresses that were in use in a pool of another allocator, imported.
    pub spread: Option<Spread>,
    /// PyTorch reached a limit that it sets itself, such as a memory fraction.
    pub own_limit: bool,
    /// The refused call, if it allocates nothing that the program uses on the device: a context, a graph, a pool, addresses, host
    /// memory. What it lacked is not known.
    pub other_call: Option<String>,
    /// False: events are missing before it, and the live memory is not known.
    pub live_is_known: bool,
    /// The history begins here.
    pub history_from_ns: u64,
    /// Total memory of the card; `None`: not in the trace.
    pub card_bytes: Option<u64>,
    pub remedy: Option<Remedy>,
    /// The leak without which the request would have been served.
    pub leak: Option<Leak>,
    /// An option of the program, whose lower value leaves more for the request: see [`program::option`].
    pub option: Option<String>,
}

/// PyTorch's cache at a failure; allocated and reserved are PyTorch's own figures where the trace has no blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct CacheAtOom {
    pub allocated_bytes: u64,
    pub reserved_bytes: u64,
    /// In segments, and in no block.
    pub free_in_segments_bytes: u64,
    /// The longest range of them outside of private pools.
    pub largest_free_block_bytes: u64,
    pub fits_in_one_piece: bool,
    /// Of the segments without a block.
    pub releasable_bytes: u64,
    /// Free, and of no use to a request of the default pool: in segments of private pools (of CUDA graphs,
    /// `torch.cuda.MemPool`).
    pub private_bytes: u64,
    /// In pieces that are smaller than the pool's usual request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unusable_bytes: Option<u64>,
    pub segments: u64,
    /// With a block and free bytes.
    pub segments_pinned: u64,
    #[serde(flatten)]
    pub streams: OtherStreams,
}

/// Maximum number of blocks that are replayed for a remedy: with more, the answer would take too long.
const MAX_BLOCKS: u64 = 2_000_000;

impl PostMortem {
    /// Bytes that the limit and the card had left: less than the request. `None`: not in the trace.
    pub fn room(&self) -> Option<u64> {
        let Some(refused) = self.oom.refusal.map(|at| at.refused) else {
            return self.card_free().filter(|_| self.is_imported_from_full_card());
        };
        let under = (refused.limit > 0).then(|| refused.limit.saturating_sub(refused.counted));
        let card = (refused.driver_free > 0).then_some(refused.driver_free);
        let room = match (under, card) {
            (Some(under), Some(card)) => Some(under.min(card)),
            (under, card) => under.or(card),
        };
        room.filter(|room| *room < refused.size)
    }

    /// Free bytes of the card, by the driver's last figure.
    pub fn card_free(&self) -> Option<u64> {
        let at_refusal = self.oom.refusal.map(|at| at.refused.driver_free).filter(|free| *free > 0);
        let recorded = self.oom.post_mortem.and_then(|found| found.driver_free);
        // Of an earlier sample what was allocated since is gone.
        let sampled = self.device.sample.and_then(|at| {
            let grown = self.device.live_bytes.saturating_sub(at.live_bytes);
            Some(at.sample.driver_free?.saturating_sub(grown))
        });
        at_refusal.or(recorded).or(sampled)
    }

    /// Bytes that nvidia-smi would show for the process; without NVML's figure, its recorded memory.
    pub fn ours(&self) -> u64 {
        self.device.in_use().headline()
    }

    /// The cap; or what the process had and what was left. `None`: not known.
    pub fn could_have(&self) -> Option<u64> {
        let refused = self.oom.refusal?.refused;
        let left = match refused.by {
            RefusedBy::Cap => return Some(refused.limit),
            RefusedBy::Group => refused.limit.saturating_sub(refused.counted),
            RefusedBy::Driver => Some(refused.driver_free).filter(|free| *free > 0)?,
            RefusedBy::BadCap | RefusedBy::Warned => return None,
        };
        Some(self.ours().saturating_add(left))
    }

    /// By how much the limit was too low, with the setting in force. `None`: not known, or what grows fills any. Of a call
    /// that takes no memory of the card, that was none.
    pub fn needs_more(&self) -> Option<u64> {
        let enough = self.remedy.as_ref().and_then(|remedy| remedy.as_it_is);
        let replayed =
            enough.zip(self.could_have()).map(|(enough, had)| enough.saturating_sub(had));
        let wanted = self.oom.size.saturating_add(self.figures.over);
        let more = replayed.or_else(|| wanted.checked_sub(self.room()?));
        let is_other = self.figures.other_call || self.may_pass_again();
        more.filter(|more| *more > 0 && self.leak.is_none() && !is_other)
    }

    /// What was in use. `classifier`: with the stacks of `held`.
    pub fn used(&self, classifier: &StackClassifier) -> UsedSum {
        // The sums of the cache include its blocks; what the driver took is a part of its own.
        let mut beside = self.held.clone();
        beside.held.retain(|owner, _| !owner.of_cache && owner.cause.is_none());
        let libraries = classifier.holders(&beside, GroupBy::Library).into_iter();
        let libraries = libraries.map(|holder| (holder.library, holder.bytes)).collect();
        UsedSum::of(&self.device, &self.oom, libraries)
    }

    /// Whether a cap refused the request: a higher one might have served it.
    pub fn is_capped(&self) -> bool {
        let by = self.oom.refusal.map(|at| at.refused.by);
        matches!(by, Some(RefusedBy::Cap | RefusedBy::Group))
    }

    /// An import has no refused call, but may have what the driver said was free: less than the request.
    pub fn is_imported_from_full_card(&self) -> bool {
        self.imported && self.card_free().is_some_and(|free| free < self.oom.size)
    }

    /// The request may be served when it is repeated: what waits for other streams would do.
    pub fn may_pass_again(&self) -> bool {
        let waiting = self.cache.streams.waiting_bytes;
        waiting > 0 && waiting.saturating_add(self.room().unwrap_or(0)) >= self.oom.size
    }

    /// Fills `leak`. `leaks`: of the whole trace. Of a failure after which the program went on, it had grown before.
    pub fn find_leak(&mut self, leaks: &Leaks) {
        /// What is less sure may be a program that loads.
        const SURE: f64 = 0.7;
        // What holds less than a tenth of the process's memory explains no full card.
        let missing = self.oom.size.saturating_sub(self.room().unwrap_or(0));
        let least = missing.max(self.ours() / 10);
        let Oom { went_on, time_ns, .. } = self.oom;
        let had_grown = |by: &Growth| leaks.from_ns.saturating_add(by.last_ns) <= time_ns;
        let is_it = |leak: &&Leak| {
            let grew = leak.device == self.oom.device && leak.rate.is_some();
            let before = !went_on || leak.growth.as_ref().is_some_and(had_grown);
            grew && before && leak.confidence > SURE && leak.bytes >= least
        };
        self.leak = leaks.sure().find(is_it).cloned();
    }

    /// Fills `remedy` by a replay of the requests up to this one. `trace`: the trace of this failure.
    pub fn find_remedy(&mut self, trace: &Trace, definitions: &Definitions) {
        let cache = &self.device.cache;
        let replays = !definitions.samples_blocks() && cache.allocations > 0;
        if replays && cache.allocations <= MAX_BLOCKS {
            self.remedy = remedy::of(self, trace, definitions);
        }
    }
}

/// Every out-of-memory of a trace, and the state at its end. One pass.
pub fn list(trace: &Trace, definitions: &Definitions) -> (OomsFound, State) {
    let mut observer = OomObserver::default();
    let end = trace.replay(definitions, &mut observer).state;
    (observer.finish(end.time_ns, trace), end)
}

/// The failures with which the run ended: the last one of each device, if the program did not go on.
pub fn ended(ooms: &[Oom]) -> Vec<Oom> {
    let last = |(index, oom): &(usize, &Oom)| {
        let later = |later: &Oom| later.device == oom.device && !later.went_on;
        !oom.went_on && !ooms[index + 1..].iter().any(later)
    };
    ooms.iter().enumerate().filter(last).map(|(_, oom)| oom.clone()).collect()
}

/// The failures with which the run ended; of none the last one.
pub fn worst(ooms: &[Oom]) -> Vec<Oom> {
    let ended = ended(ooms);
    if ended.is_empty() { ooms.last().cloned().into_iter().collect() } else { ended }
}

/// The post-mortem of each failure, in the same order. Reads the trace up to the last of them.
#[cfg(test)]
pub fn examine(trace: &Trace, definitions: &Definitions, ooms: &[Oom]) -> Vec<PostMortem> {
    let mut examined = PostMortems::new(definitions, ooms.to_vec());
    trace.visit(definitions, &mut [&mut examined]);
    examined.finish()
}

/// Finds the state at each of some failures.
pub struct PostMortems<'d> {
    definitions: &'d Definitions,
    ooms: Vec<Oom>,
    found: Vec<Option<PostMortem>>,
}

impl<'d> PostMortems<'d> {
    pub fn new(definitions: &'d Definitions, ooms: Vec<Oom>) -> PostMortems<'d> {
        let found = ooms.iter().map(|_| None).collect();
        PostMortems { definitions, ooms, found }
    }

    /// In the order of the failures.
    pub fn finish(self) -> Vec<PostMortem> {
        self.found.into_iter().flatten().collect()
    }
}

impl Visitor for PostMortems<'_> {
    fn stops(&self) -> Vec<Until> {
        self.ooms.iter().map(|oom| Until::Offset(oom.offset)).collect()
    }

    fn visit(&mut self, stop: usize, state: &State) {
        self.found[stop] = Some(at_failure(state, self.ooms[stop].clone(), self.definitions));
    }
}

fn at_failure(state: &State, oom: Oom, definitions: &Definitions) -> PostMortem {
    // Between samples there are other blocks.
    let sampled = definitions.samples_blocks();
    let all = state.segments();
    let is_here = |it: &&SegmentAt| it.device == oom.device && !sampled;
    let here: Vec<&SegmentAt> = all.iter().filter(is_here).collect();
    let sum = |bytes: &dyn Fn(&SegmentAt) -> u64| {
        here.iter().map(|segment| bytes(segment)).fold(0, u64::saturating_add)
    };
    let pinned = || here.iter().filter(|segment| !segment.blocks.is_empty());
    let releasable = sum(&|segment| if segment.blocks.is_empty() { segment.bytes } else { 0 });
    let holes = pinned().flat_map(|it| it.holes().map(|(_, bytes)| (is_small(it), bytes)));
    let imported = definitions.imported_from().is_some();
    let of_cache = oom.level == Level::Tensor;
    // PyTorch releases every segment of the default pool that has no block before it raises the error.
    let of_segment = |it: &SegmentAt| {
        let made = it.allocation(state).or_else(|| it.objects(state).next());
        made.is_some_and(|(_, live)| live.pool.0 > 0)
    };
    let is_private = |it: &SegmentAt| match it.blocks.first() {
        Some(block) => block.live.pool.0 > 0,
        None if imported => of_segment(it),
        None => of_cache && releases_first(|name| definitions.setting(name)),
    };
    let private = sum(&|segment| if is_private(segment) { segment.free() } else { 0 });
    let usable = here.iter().filter(|it| !is_private(it));
    // No call is missing, and none was refused.
    let own_limit = of_cache && oom.refusal.is_none() && state.live_is_known() && !imported;
    let mut held = Holdings::of_state(state, Level::of(state));
    held.keep(oom.device);
    let device = state.devices.get(&oom.device).cloned().unwrap_or_default();
    let free = if sampled { device.cache.free() } else { sum(&|segment| segment.free()) };
    // PyTorch's own figures, where its blocks were not recorded.
    let cache = &device.cache;
    let by_torch = oom.torch.as_ref().map(|oom| (oom.allocated, oom.reserved));
    let by_recorder = oom.post_mortem.and_then(|post_mortem| post_mortem.cache);
    let by_refusal = || oom.refusal.and_then(|at| at.refused.cache);
    let reported = by_recorder.or_else(by_refusal).map(|cache| (cache.allocated, cache.reserved));
    let (allocated, reserved) = match by_torch.or(reported) {
        Some(reported) if cache.blocks == 0 => reported,
        _ => (cache.allocated, cache.reserved),
    };
    // The recorder's figures of this request, if it wrote a post-mortem: it took its decision by them.
    let of_request = |found: &PostMortemEvent| {
        found.size == oom.size && (found.evidence == OomEvidence::FrameworkGaveUp) == of_cache
    };
    let (streams, rest, largest_hole) = match imported && of_cache {
        true => OtherStreams::of(state, definitions, &oom, usable),
        false => {
            let largest_hole = usable.map(|segment| segment.largest_hole()).max().unwrap_or(0);
            (OtherStreams::default(), free.saturating_sub(private), largest_hole)
        }
    };
    let spread = (imported && !of_cache).then(|| Spread::of(state, oom.device, oom.size));
    let figures = match oom.post_mortem.filter(of_request) {
        Some(found) => {
            let free = found.cache.map_or(free, |cache| cache.free());
            Figures::of(&found, free.saturating_sub(private))
        }
        // Neither the limit of a pool nor all that it has free is in a log.
        None if let Some(Spread { holes, largest_hole, .. }) = spread => {
            let known = known_figures(&oom, false, holes, Some(largest_hole));
            Figures { by: None, of_cache: true, ..known }
        }
        None => known_figures(&oom, own_limit, rest, (!sampled).then_some(largest_hole)),
    };
    let at_oom = CacheAtOom {
        allocated_bytes: allocated,
        reserved_bytes: reserved,
        free_in_segments_bytes: free,
        largest_free_block_bytes: largest_hole,
        fits_in_one_piece: free - private >= oom.size,
        releasable_bytes: releasable,
        private_bytes: private,
        unusable_bytes: None,
        segments: here.len() as u64,
        segments_pinned: pinned().filter(|it| it.free() > 0 && !is_private(it)).count() as u64,
        streams,
    };
    let card = definitions.device(oom.device);
    let other_call = oom.refusal.filter(|at| at.refused.by == RefusedBy::Driver).and_then(|at| {
        let of_memory = definitions.site(at.refused.site)?.kind.is_some_and(|kind| !kind.is_host());
        (!of_memory).then(|| definitions.site_api_name(at.refused.site))
    });
    // What the driver could take back from its pools it has: the rest lies beside live allocations.
    let in_pools = device.free_in_pools();
    let of_pools = Figures { of_cache: true, free: in_pools, largest_hole: None, ..figures };
    let is_of_pools = oom.level == Level::Driver
        && oom.size > 0
        && of_pools.by == Some(RefusedBy::Driver)
        && of_pools.left.is_some_and(|left| left < oom.size)
        && of_pools.cause() == OomCause::Fragmentation;
    let figures = if is_of_pools { of_pools } else { figures };
    let other = OtherLimit::of(|name| definitions.setting(name));
    // A context takes as much as the others of the device.
    let is_context = |call: &String| {
        ["cuCtxCreate", "cuDevicePrimaryCtxRetain"].iter().any(|it| call.starts_with(it))
    };
    let mut contexts = state.contexts().filter(|(_, of, _)| of.device == oom.device);
    let each = contexts
        .next()
        .map(|(_, _, bytes)| bytes)
        .filter(|_| other_call.as_ref().is_some_and(is_context));
    let size = each.unwrap_or(figures.size);
    let figures =
        Figures { other, other_call: other_call.is_some() && each.is_none(), size, ..figures };
    PostMortem {
        oom,
        cause: figures.cause(),
        figures,
        cache: at_oom,
        holes: holes.collect(),
        held,
        imported,
        spread,
        own_limit,
        other_call,
        live_is_known: state.live_is_known(),
        history_from_ns: state.history_from_ns,
        card_bytes: card.map(|card| card.total_bytes).filter(|bytes| *bytes > 0),
        device,
        remedy: None,
        leak: None,
        option: None,
    }
}

/// The figures from the calls and blocks of the trace.
fn known_figures(oom: &Oom, own_limit: bool, free: u64, largest_hole: Option<u64>) -> Figures {
    let refused = oom.refusal.map(|at| Figures::of_refused(&at.refused, None));
    let of_cache = oom.level == Level::Tensor;
    let known = refused.unwrap_or_default();
    Figures { all_known: own_limit, of_cache, size: oom.size, free, largest_hole, ..known }
}
