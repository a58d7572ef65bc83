//! All that a trace tells of the moment in which a request got nothing, with names.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use vramtrace_format::{DeviceId, Header, Stamped};

use super::grew::{self, Grown};
use super::{Advice, AtStep, Neighbour, Oom, PostMortem, Tried, UsedSum, advice, at_failure};
use crate::analysis::frag::{self, FragSegment, Sizes};
use crate::analysis::steps::Steps;
use crate::analysis::{GroupBy, Holder, Holdings, Level, NamedStack, StackClassifier};
use crate::facts::{self, ProcessId};
use crate::replay::{AllocCause, Live, Observer, State, Until};
use crate::symbols::Symbols;
use crate::trace::{Definitions, Trace};

/// A post-mortem with names, fragmentation and growth, as it stands in a document.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Explained {
    /// `fragmentation`, `cap`, `bad_cap`, `card`, `mps`, `cgroup`, `torch` or `unknown`.
    cause: &'static str,
    /// Of the request.
    #[serde(flatten, serialize_with = "with_no_frames")]
    pub stack: NamedStack,
    #[serde(flatten)]
    pub sum: UsedSum,
    card_bytes: Option<u64>,
    /// Other processes on the card, as NVML listed them.
    neighbours: Vec<Neighbour>,
    live_is_known: bool,
    /// PyTorch's cache; null where the trace has none.
    pub torch: Option<CacheAtOom>,
    /// Largest first.
    pub holders: Vec<Holder>,
    /// The step of a training that it ended; null: none, or they cannot be told.
    pub step: Option<AtStep>,
    /// Begin of the time in which `grew` is counted. Null: the trace begins later, or has no times.
    #[serde(rename = "grew_since_s", serialize_with = "facts::seconds_or_null")]
    #[cfg_attr(test, schemars(with = "Option<f64>"))]
    pub grew_from_ns: Option<u64>,
    /// The lines that grew, the largest growth first.
    pub grew: Vec<Grown>,
    /// Replayed up to the request; best first.
    pub settings: Vec<Tried>,
    /// The most promising first.
    pub advice: Vec<Advice>,
    /// Libraries whose symbols could not be read, and why.
    pub problems: Vec<String>,
    #[serde(skip)]
    pub one: PostMortem,
    /// Its number among the failures of the run, from 1.
    #[serde(skip)]
    pub number: usize,
    #[serde(skip)]
    pub process: ProcessId,
    /// The name of the driver's function that was refused.
    #[serde(skip)]
    pub api: String,
    /// The trace has times.
    #[serde(skip)]
    pub timed: bool,
}

/// `no_frames` is null where there are some.
fn with_no_frames<S: Serializer>(stack: &NamedStack, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Facts<'s> {
        #[serde(flatten)]
        stack: &'s NamedStack,
        #[serde(skip_serializing_if = "Option::is_none")]
        no_frames: Option<()>,
    }
    let no_frames = stack.why_no_frames().is_none().then_some(());
    Facts { stack, no_frames }.serialize(to)
}

/// PyTorch's cache at a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CacheAtOom {
    pub allocated_bytes: u64,
    pub reserved_bytes: u64,
    pub free_bytes: u64,
    pub largest_hole_bytes: u64,
    pub fits_in_one_piece: bool,
    pub releasable_bytes: u64,
    pub unusable_bytes: u64,
    pub segments: u64,
    pub segments_pinned: u64,
}

/// Growth is listed for the last tenth of the time before a failure.
const LAST_PART: u64 = 10;

/// Explains each of `ooms`, given with its number, in the same order. Reads the trace up to the last of
/// them, once for the steps of a training, and once more for each remedy.
pub fn explain(trace: &Trace, definitions: &Definitions, ooms: &[(usize, Oom)]) -> Vec<Explained> {
    let timed = definitions.has_times();
    let stops = ooms.iter().flat_map(|(_, oom)| {
        let before = Until::Time(oom.time_ns - oom.time_ns / LAST_PART);
        [before, Until::Offset(oom.offset)]
    });
    let stops: Vec<Until> = stops.collect();
    let mut before: Vec<Option<Before>> = ooms.iter().map(|_| None).collect();
    let mut found: Vec<Option<(PostMortem, Vec<FragSegment>)>> =
        ooms.iter().map(|_| None).collect();
    let mut sizes = SizesObserver::default();
    let mut visitor = (stops, |stop: usize, state: &State| {
        let (_, oom) = &ooms[stop / 2];
        match stop % 2 {
            0 => before[stop / 2] = timed.then(|| Before::of(state, oom)).flatten(),
            _ => {
                let segments = state.segments();
                let here = segments.iter().filter(|segment| {
                    segment.device == oom.device && !definitions.samples_blocks()
                });
                let segments = here.map(FragSegment::of).collect();
                found[stop / 2] = Some((at_failure(state, oom.clone(), definitions), segments));
            }
        }
    });
    trace.visit_observed(definitions, &mut [&mut visitor], &mut sizes);
    let steps = (!ooms.is_empty()).then(|| Steps::of(trace, definitions));
    let all = ooms.iter().zip(before).zip(found);
    let all = all.filter_map(|(((number, _), before), found)| Some((*number, before, found?)));
    all.map(|(number, before, (mut one, segments))| {
        one.find_remedy(trace, definitions);
        let sizes = sizes.devices.get(&one.oom.device).cloned().unwrap_or_default();
        let step = steps.as_ref().and_then(|steps| AtStep::of(steps, &one.oom));
        let explained = named(trace.header(), definitions, one, before, &segments, &sizes);
        Explained { step, number, ..explained }
    })
    .collect()
}

struct Before {
    at_ns: u64,
    held: Holdings,
}

impl Before {
    /// `None`: the live memory at that time is not known.
    fn of(state: &State, oom: &Oom) -> Option<Before> {
        let mut held = Holdings::of_state(state, Level::of(state));
        held.keep(oom.device);
        let at_ns = oom.time_ns - oom.time_ns / LAST_PART;
        (state.live_is_known() && at_ns >= state.history_from_ns).then_some(Before { at_ns, held })
    }
}

/// Without its number and its step.
fn named(
    header: &Header,
    definitions: &Definitions,
    one: PostMortem,
    before: Option<Before>,
    segments: &[FragSegment],
    sizes: &Sizes,
) -> Explained {
    let earlier = before.iter().flat_map(|before| before.held.stacks());
    let wanted = one.held.stacks().chain(earlier).chain([one.oom.stack]);
    let symbols = Symbols::of(definitions, header, wanted);
    let classifier = StackClassifier::new(&symbols, header);
    let [small, large] = [true, false].map(|small| {
        let of_pool = segments.iter().filter(|segment| segment.small == small);
        frag::pool(of_pool, sizes.usual(small))
    });
    let count = small.segments + large.segments;
    let torch = (count > 0 || one.reserved > 0).then(|| CacheAtOom {
        allocated_bytes: one.allocated,
        reserved_bytes: one.reserved,
        free_bytes: one.free,
        largest_hole_bytes: one.largest_hole,
        fits_in_one_piece: one.free >= one.oom.size,
        releasable_bytes: one.releasable,
        unusable_bytes: small.unusable.saturating_add(large.unusable),
        segments: count,
        segments_pinned: one.pinned,
    });
    // The sums of the cache include its blocks; what the driver took is a part of its own.
    let mut beside = one.held.clone();
    beside.held.retain(|owner, _| !owner.of_cache && owner.cause.is_none());
    let libraries = classifier.holders(&beside, GroupBy::Library);
    let libraries = libraries.into_iter().map(|holder| (holder.library, holder.bytes)).collect();
    let grew = before.as_ref().map(|before| grew::grown(&before.held, &one.held, &classifier));
    Explained {
        cause: one.cause.name(),
        stack: classifier.named(one.oom.stack),
        sum: UsedSum::of(&one.device, &one.oom, libraries),
        card_bytes: one.card_bytes,
        neighbours: one.oom.neighbours.clone(),
        live_is_known: one.live_is_known,
        torch,
        holders: classifier.holders(&one.held, GroupBy::Line),
        step: None,
        grew_from_ns: before.map(|before| before.at_ns),
        grew: grew.unwrap_or_default(),
        settings: one.remedy.iter().flat_map(|remedy| remedy.settings.clone()).collect(),
        advice: advice(&one),
        problems: symbols.problems().to_vec(),
        number: 0,
        process: ProcessId::of(header),
        api: definitions.site_api_name(one.oom.site),
        timed: definitions.has_times(),
        one,
    }
}

/// The sizes of all requests, by device.
#[derive(Default)]
struct SizesObserver {
    devices: BTreeMap<DeviceId, Sizes>,
}

impl Observer for SizesObserver {
    fn on_block_alloc(&mut self, _at: &Stamped, _address: u64, live: &Live, _how: AllocCause) {
        self.devices.entry(live.device).or_default().add(live.size);
    }
}
