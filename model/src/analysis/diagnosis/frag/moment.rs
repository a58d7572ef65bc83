//! Finds the requested moment in a trace, and the fragmentation of each cache at it.

use vramtrace_format::{DeviceId, Stamped};

use super::{Frag, Sizes, pins, pool};
use crate::analysis::steps::{EventPlace, Steps};
use crate::analysis::whatif::NOT_OF_SAMPLES;
use crate::analysis::{Knowledge, Moment, MomentFacts, StackClassifier, knowledge};
use crate::facts::ProcessId;
use crate::replay::{
    AllocCause, ByDevice, CacheSums, DeviceState, Live, Observer, SegmentAt, State, Until, Visitor,
};
use crate::symbols::Symbols;
use crate::trace::{Definitions, Trace};
use crate::units::seconds;

/// Why a moment cannot be shown.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MomentError {
    #[error("{NOT_OF_SAMPLES}")]
    Sampled,
    #[error("it has no times: only --at peak, --at end and --at oom can be asked of it")]
    NoTimes,
    #[error("no request of PyTorch ended out of memory: give --at peak, --at end or seconds")]
    NoOutOfMemory,
    #[error("it has no segments: what was reserved is not known")]
    NoSegments,
    #[error("{0}; give another moment, e.g. --at peak or --at end")]
    NotKnown(String),
    #[error("--at step:{0}: {1}")]
    NoStep(usize, String),
    #[error("--at {}: it ends at {}", seconds(*.at_ns), seconds(*.end_ns))]
    AfterEnd { at_ns: u64, end_ns: u64 },
}

/// Times are printed in ms.
pub const ROUNDED_NS: u64 = 1_000_000;

/// The fragmentation of every device with blocks. Reads the trace once, and once more up to a moment other
/// than the end. Memory is bounded by the live set.
pub fn find(
    trace: &Trace,
    definitions: &Definitions,
    at: Moment,
) -> Result<Vec<Frag>, MomentError> {
    if matches!(at, Moment::At(_)) && !definitions.has_times() {
        return Err(MomentError::NoTimes);
    }
    let place = match at {
        Moment::Step(asked) => {
            let steps = Steps::of(trace, definitions);
            let Some(EventPlace { offset, time_ns }) = steps.moment(asked) else {
                return Err(MomentError::NoStep(asked.number, steps.why_not(asked.number)));
            };
            Moment::Event { offset, time_ns }
        }
        at => at,
    };
    let mut sizes = RequestSizes::default();
    let end = trace.replay(definitions, &mut sizes).state;
    if let Moment::At(at_ns) = at
        && at_ns > end.time_ns.saturating_add(ROUNDED_NS)
    {
        return Err(MomentError::AfterEnd { at_ns, end_ns: end.time_ns });
    }
    let mut frags = FragAt::new(trace, definitions, &end, &sizes, (at, place))?;
    trace.visit(definitions, &mut [&mut frags]);
    frags.finish()
}

/// Finds the fragmentation of every device with blocks at a moment.
pub struct FragAt<'t> {
    trace: &'t Trace,
    definitions: &'t Definitions,
    end: &'t State,
    sizes: &'t RequestSizes,
    /// The moment as it was asked for.
    asked: Moment,
    /// Each device, and its place.
    places: Vec<(DeviceId, Until)>,
    found: Vec<Option<Frag>>,
    not_known: Option<String>,
}

impl<'t> FragAt<'t> {
    /// `end`: the state at the end; `sizes`: of the whole trace.
    pub fn new(
        trace: &'t Trace,
        definitions: &'t Definitions,
        end: &'t State,
        sizes: &'t RequestSizes,
        (asked, at): (Moment, Moment),
    ) -> Result<FragAt<'t>, MomentError> {
        if definitions.samples_blocks() {
            return Err(MomentError::Sampled);
        }
        let used = end.devices.iter().filter(|(_, device)| device.cache.peak_reserved.bytes > 0);
        let used: Vec<DeviceId> = used.map(|(id, _)| *id).collect();
        let has_blocks = |device: &DeviceState| device.cache.peak_allocated.bytes > 0;
        if used.is_empty() && end.devices.values().any(has_blocks) {
            return Err(MomentError::NoSegments);
        }
        let cache = |id: &DeviceId| &end.devices[id].cache;
        let place = |id: DeviceId| match at {
            Moment::End => Some((id, Until::End)),
            Moment::At(time_ns) => Some((id, Until::Time(time_ns))),
            Moment::Event { offset, .. } => Some((id, Until::Offset(offset))),
            Moment::Step(_) => None,
            // Of several moments with as many reserved bytes the one with most allocated bytes.
            Moment::Peak => Some((id, Until::Offset(cache(&id).fullest.offset))),
            Moment::AllocatedPeak => Some((id, Until::Offset(cache(&id).peak_allocated.offset))),
            Moment::OutOfMemory => cache(&id).last_oom.map(|oom| (id, Until::Offset(oom.offset))),
        };
        let places: Vec<(DeviceId, Until)> = used.iter().filter_map(|id| place(*id)).collect();
        if at == Moment::OutOfMemory && !used.is_empty() && places.is_empty() {
            return Err(MomentError::NoOutOfMemory);
        }
        let mut frags = FragAt {
            trace,
            definitions,
            end,
            sizes,
            asked,
            found: places.iter().map(|_| None).collect(),
            places,
            not_known: None,
        };
        if at == Moment::End {
            for index in 0..frags.places.len() {
                frags.found[index] = Some(frags.at(index, end));
            }
        }
        Ok(frags)
    }

    /// In the order of the devices.
    pub fn finish(self) -> Result<Vec<Frag>, MomentError> {
        match self.not_known {
            Some(why) => Err(MomentError::NotKnown(why)),
            None => Ok(self.found.into_iter().flatten().collect()),
        }
    }
}

impl Visitor for FragAt<'_> {
    /// The state at the end is known.
    fn stops(&self) -> Vec<Until> {
        let places = self.places.iter().map(|(_, until)| *until);
        places.filter(|until| *until != Until::End).collect()
    }

    fn visit(&mut self, stop: usize, state: &State) {
        if let Until::Time(time_ns) = self.places[stop].1
            && let Knowledge::NotKnown(why) =
                knowledge(self.trace, self.definitions, state, Moment::At(time_ns))
        {
            self.not_known.get_or_insert(why);
            return;
        }
        self.found[stop] = Some(self.at(stop, state));
    }
}

impl FragAt<'_> {
    fn at(&self, index: usize, then: &State) -> Frag {
        let (id, _) = self.places[index];
        let header = self.trace.header();
        let all = then.segments();
        let segments: Vec<&SegmentAt> = all.iter().filter(|it| it.device == id).collect();
        let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
        let stacks = || blocks().map(|block| block.live.stack);
        let symbols = Symbols::of(self.definitions, header, stacks());
        let lines = StackClassifier::new(&symbols, header).lines(stacks());
        let cache = &self.end.devices[&id].cache;
        let nothing = CacheSums::default();
        let now = then.devices.get(&id).map_or(&nothing, |device| &device.cache);
        let [small, large] =
            [true, false].map(|small| pool(&segments, small, self.sizes.usual(id, small)));
        Frag {
            process: ProcessId::of(header),
            device: id,
            moment: MomentFacts {
                label: self.asked.label(),
                at_ns: self.definitions.has_times().then_some(then.time_ns),
            },
            reserved_bytes: now.reserved,
            allocated_bytes: now.allocated,
            reserved_paused_bytes: now.reserved_paused,
            paused_bytes: now.paused,
            free_in_segments_bytes: small.free().saturating_add(large.free()),
            largest_free_block_bytes: small.largest_free.max(large.largest_free),
            releasable_bytes: small.releasable.saturating_add(large.releasable),
            unusable_bytes: small.unusable.saturating_add(large.unusable),
            peak_reserved_bytes: cache.peak_reserved.bytes,
            peak_allocated_bytes: cache.peak_allocated.bytes,
            fragmentation: cache.fragmentation(),
            history_from_ns: self.end.history_from_ns,
            out_of_memory: cache.last_oom,
            small,
            large,
            pins: pins::pins(&segments, &lines),
            segments: segments.len() as u64,
            symbols,
        }
    }
}

/// The sizes of all requests, by device: an observer of a whole trace.
#[derive(Clone, Debug, Default)]
pub struct RequestSizes {
    devices: ByDevice<Sizes>,
}

impl RequestSizes {
    /// The usual request of one of the two pools.
    pub(in crate::analysis) fn usual(&self, device: DeviceId, small: bool) -> u64 {
        self.devices.get(&device).map_or(0, |sizes| sizes.usual(small))
    }
}

impl Observer for RequestSizes {
    fn on_block_alloc(&mut self, _at: &Stamped, _address: u64, live: &Live, _how: AllocCause) {
        self.devices.of(live.device).add(live.size);
    }
}
