//! Finding the moment in a trace, and what the cache was then.

use vramtrace_format::{DeviceId, Header, Stamped};

use super::{Frag, Segment, Sizes, pins, pool};
use crate::analysis::Reading;
use crate::replay::{Birth, Live, Observer, SegmentAt, State};
use crate::symbols::Symbols;
use crate::trace::{Definitions, Trace, Until};

/// Which moment is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// When each device's cache first reserved its most.
    Peak,
    End,
    /// This many ns after the start.
    Time(u64),
    /// When each device's cache last gave up on a request.
    OutOfMemory,
}

/// Why a moment cannot be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotThere {
    #[error("it has no times: only --at peak, --at end and --at oom can be asked of it")]
    NoTimes,
    #[error("no request of PyTorch ended out of memory: give --at peak, --at end or seconds")]
    NoOutOfMemory,
}

/// Every device that has blocks. Reads the trace once, and once more up to each moment that is not
/// the end; memory is bounded by what is live.
pub fn find(trace: &Trace, definitions: &Definitions, at: At) -> Result<Vec<Frag>, NotThere> {
    if matches!(at, At::Time(_)) && !definitions.has_times() {
        return Err(NotThere::NoTimes);
    }
    let mut watch = Watch::default();
    let end = trace.replay(definitions, &mut watch).state;
    let used = end.devices.iter().filter(|(_, device)| device.cache.peak_allocated.bytes > 0);
    let used: Vec<DeviceId> = used.map(|(id, _)| *id).collect();
    let refused = |id: &DeviceId| end.devices[id].cache.last_oom;
    if at == At::OutOfMemory && !used.is_empty() && !used.iter().any(|id| refused(id).is_some()) {
        return Err(NotThere::NoOutOfMemory);
    }
    let replay = |until| trace.replay_until(definitions, until, &mut (), &mut |_, _| {}).state;
    let mut all = Vec::new();
    for id in used {
        let until = match at {
            At::End => Until::End,
            At::Time(time_ns) => Until::Time(time_ns),
            At::Peak => Until::Offset(end.devices[&id].cache.peak_reserved.offset),
            At::OutOfMemory => match refused(&id) {
                Some(oom) => Until::Offset(oom.offset),
                None => continue,
            },
        };
        let earlier;
        let then = match until {
            Until::End => &end,
            until => {
                earlier = replay(until);
                &earlier
            }
        };
        let sizes = watch.sizes.iter().find(|(of, _)| *of == id);
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
    let segments: Vec<Segment> = then.segments().iter().filter(here).map(Segment::of).collect();
    let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
    let symbols = Symbols::of(definitions, header, blocks().map(|block| block.stack));
    let lines = Reading::new(&symbols, header).lines(blocks().map(|block| block.stack));
    let cache = &end.devices[&id].cache;
    let now = then.devices.get(&id).map(|device| &device.cache);
    Frag {
        device: id,
        at_ns: definitions.has_times().then_some(then.time_ns),
        from_ns: (end.history_from_ns > 0).then_some(end.history_from_ns),
        reserved: now.map_or(0, |cache| cache.reserved),
        allocated: now.map_or(0, |cache| cache.allocated),
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
struct Watch {
    sizes: Vec<(DeviceId, Sizes)>,
}

impl Observer for Watch {
    fn block_born(&mut self, _at: &Stamped, _address: u64, live: &Live, _how: Birth) {
        let known = self.sizes.iter().position(|(device, _)| *device == live.device);
        let index = known.unwrap_or_else(|| {
            self.sizes.push((live.device, Sizes::default()));
            self.sizes.len() - 1
        });
        self.sizes[index].1.add(live.size);
    }
}
