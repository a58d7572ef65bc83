//! All that a trace tells of the moment in which a request got nothing, with names.

use std::collections::BTreeMap;

use vramtrace_format::{DeviceId, Header, StackId, Stamped};

use super::grew::{self, Grown};
use super::{AtStep, Oom, PostMortem, UsedSum, at_failure};
use crate::analysis::frag::{self, FragSegment, Pin, PoolFrag, Sizes};
use crate::analysis::steps::Steps;
use crate::analysis::{GroupBy, Holdings, Level, StackClassifier};
use crate::replay::{AllocCause, Live, Observer, State, Until};
use crate::symbols::{FREE_CACHE, Symbols};
use crate::trace::{Definitions, Trace};

/// A post-mortem with names, fragmentation and growth.
#[derive(Clone, Debug)]
pub struct Explained {
    pub one: PostMortem,
    /// Its number among the failures of the run, from 1.
    pub number: usize,
    pub symbols: Symbols,
    pub sum: UsedSum,
    /// PyTorch's segments of the two pools, and the lines whose blocks pin free memory in them.
    pub small: PoolFrag,
    pub large: PoolFrag,
    pub pins: Vec<Pin>,
    /// The step of a training in which it was.
    pub step: Option<AtStep>,
    /// Begin of the time in which `grew` is counted. `None`: the trace begins later, or has no times.
    pub grew_from_ns: Option<u64>,
    /// The lines that grew, the largest growth first.
    pub grew: Vec<Grown>,
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
        Explained {
            step,
            ..named(trace.header(), definitions, number, one, before, &segments, &sizes)
        }
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

fn named(
    header: &Header,
    definitions: &Definitions,
    number: usize,
    one: PostMortem,
    before: Option<Before>,
    segments: &[FragSegment],
    sizes: &Sizes,
) -> Explained {
    let earlier = before.iter().flat_map(|before| before.held.stacks());
    let wanted = one.held.stacks().chain(earlier).chain([one.oom.stack]);
    let symbols = Symbols::of(definitions, header, wanted);
    let classifier = StackClassifier::new(&symbols, header);
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    let lines = classifier.lines(blocks.map(|block| block.stack));
    let pool = |small: bool| {
        let of_pool = segments.iter().filter(|segment| segment.small == small);
        frag::pool(of_pool, sizes.usual(small))
    };
    // The sums of the cache include its blocks; what the driver took is a part of its own.
    let beside =
        Holdings { blocks: Default::default(), driver: Default::default(), ..one.held.clone() };
    let libraries = classifier.holders(&beside, GroupBy::Library);
    let libraries = libraries.into_iter().map(|holder| (holder.library, holder.bytes)).collect();
    let grew = before.as_ref().map(|before| grew::grown(&before.held, &one.held, &classifier));
    Explained {
        number,
        sum: UsedSum::of(&one.device, &one.oom, libraries),
        small: pool(true),
        large: pool(false),
        pins: frag::pins(segments, &lines),
        step: None,
        grew_from_ns: before.map(|before| before.at_ns),
        grew: grew.unwrap_or_default(),
        one,
        symbols,
    }
}

impl Explained {
    /// The stack of the request, if it has frames.
    pub fn stack(&self) -> Option<StackId> {
        let stack = self.one.oom.stack;
        (stack != FREE_CACHE && !self.symbols.indexes(stack).is_empty()).then_some(stack)
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
