//! Finds the requested moment in a trace, and the fragmentation of each cache at it.

use vramtrace_format::{DeviceId, Header, Stamped};

use super::{Frag, FragSegment, Sizes, pins, pool};
use crate::analysis::{Knowledge, Moment, StackClassifier, UnknownMoment, knowledge};
use crate::replay::{AllocCause, Live, Observer, SegmentAt, State, Until};
use crate::symbols::Symbols;
use crate::trace::{Definitions, Trace};

/// The requested moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragMoment {
    /// The peak of each cache's reserved bytes; of several such moments the one with most allocated bytes.
    Peak,
    End,
    /// This many ns after the start of the trace.
    Time(u64),
    /// The last request that each cache could not serve.
    OutOfMemory,
}

/// Why a moment cannot be shown.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MomentError {
    #[error("it has no times: only --at peak, --at end and --at oom can be asked of it")]
    NoTimes,
    #[error("no request of PyTorch ended out of memory: give --at peak, --at end or seconds")]
    NoOutOfMemory,
    #[error("{0}; give another moment, e.g. --at peak or --at end")]
    NotKnown(UnknownMoment),
}

/// The fragmentation of every device with blocks. Reads the trace once, and once more up to each moment
/// other than the end. Memory is bounded by the live set.
pub fn find(
    trace: &Trace,
    definitions: &Definitions,
    at: FragMoment,
) -> Result<Vec<Frag>, MomentError> {
    if matches!(at, FragMoment::Time(_)) && !definitions.has_times() {
        return Err(MomentError::NoTimes);
    }
    let mut observer = FragObserver::default();
    let end = trace.replay(definitions, &mut observer).state;
    let used = end.devices.iter().filter(|(_, device)| device.cache.peak_allocated.bytes > 0);
    let used: Vec<DeviceId> = used.map(|(id, _)| *id).collect();
    let refused = |id: &DeviceId| end.devices[id].cache.last_oom;
    if at == FragMoment::OutOfMemory
        && !used.is_empty()
        && !used.iter().any(|id| refused(id).is_some())
    {
        return Err(MomentError::NoOutOfMemory);
    }
    let replay = |until| trace.replay_until(definitions, until, &mut (), &mut |_, _| {}).state;
    let mut all = Vec::new();
    for id in used {
        let until = match at {
            FragMoment::End => Until::End,
            FragMoment::Time(time_ns) => Until::Time(time_ns),
            FragMoment::Peak => Until::Offset(end.devices[&id].cache.fullest.offset),
            FragMoment::OutOfMemory => match refused(&id) {
                Some(oom) => Until::Offset(oom.offset),
                None => continue,
            },
        };
        let earlier;
        let then = match until {
            Until::End => &end,
            until => {
                earlier = replay(until);
                if let Until::Time(time_ns) = until
                    && let Knowledge::NotKnown(why) =
                        knowledge(trace, definitions, &earlier, Moment::At(time_ns))
                {
                    return Err(MomentError::NotKnown(why));
                }
                &earlier
            }
        };
        let sizes = observer.sizes.iter().find(|(of, _)| *of == id);
        let sizes = sizes.map(|(_, sizes)| sizes.clone()).unwrap_or_default();
        all.push(frag(id, then, &end, &sizes, definitions, trace.header()));
    }
    Ok(all)
}

fn frag(
    id: DeviceId,
    then: &State,
    end: &State,
    sizes: &Sizes,
    definitions: &Definitions,
    header: &Header,
) -> Frag {
    let here = |segment: &&SegmentAt| segment.device == id;
    let segments: Vec<FragSegment> =
        then.segments().iter().filter(here).map(FragSegment::of).collect();
    let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
    let symbols = Symbols::of(definitions, header, blocks().map(|block| block.stack));
    let lines = StackClassifier::new(&symbols, header).lines(blocks().map(|block| block.stack));
    let cache = &end.devices[&id].cache;
    let now = then.devices.get(&id).map(|device| &device.cache);
    Frag {
        device: id,
        at_ns: definitions.has_times().then_some(then.time_ns),
        from_ns: (end.history_from_ns > 0).then_some(end.history_from_ns),
        reserved: now.map_or(0, |cache| cache.reserved),
        allocated: now.map_or(0, |cache| cache.allocated),
        reserved_paused: now.map_or(0, |cache| cache.reserved_paused),
        paused: now.map_or(0, |cache| cache.paused),
        largest_free: segments.iter().map(|segment| segment.largest_free).max().unwrap_or(0),
        peak_reserved: cache.peak_reserved.bytes,
        peak_allocated: cache.peak_allocated.bytes,
        small: pool(segments.iter().filter(|segment| segment.small), sizes.usual(true)),
        large: pool(segments.iter().filter(|segment| !segment.small), sizes.usual(false)),
        pins: pins::pins(&segments, &lines),
        segments,
        out_of_memory: cache.last_oom,
        symbols,
        lines,
    }
}

/// The sizes of all requests, by device.
#[derive(Default)]
struct FragObserver {
    sizes: Vec<(DeviceId, Sizes)>,
}

impl Observer for FragObserver {
    fn on_block_alloc(&mut self, _at: &Stamped, _address: u64, live: &Live, _how: AllocCause) {
        let known = self.sizes.iter().position(|(device, _)| *device == live.device);
        let index = known.unwrap_or_else(|| {
            self.sizes.push((live.device, Sizes::default()));
            self.sizes.len() - 1
        });
        self.sizes[index].1.add(live.size);
    }
}
