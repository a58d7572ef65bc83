//! Streams and private pools of blocks, as far as the trace has them.
//!
//! All blocks of a segment have one stream and one pool. A recorded stream is the thread's current one, which a program
//! may pass over (`caching_allocator_alloc` with a stream, a restored graph pool), and a recorded pool is the number of a
//! capture, of which several may share a pool. So a block has the lane of its segment, and captures whose blocks share a
//! segment share a pool. Of an expandable segment the trace has the pages, and not which of them are one segment: there
//! blocks that share addresses are of one lane.

use std::collections::{BTreeMap, BTreeSet};

use crate::allocator::{Log, LogSegment};

/// The number of a stream, and of a private pool (0 = default).
pub(super) type Lane = (u32, u16);

#[derive(Debug)]
struct Segment {
    end: u64,
    lane: Lane,
}

impl Segment {
    /// The lane of a block in it, recorded with `lane`.
    fn shared_with(&self, lane: Lane, log: &mut Log) -> Lane {
        if self.lane.1 != 0 && lane.1 != 0 {
            log.merge_pools(self.lane.1, lane.1);
        }
        self.lane
    }
}

/// What holds an address, and where it begins.
fn at(segments: &mut BTreeMap<u64, Segment>, address: u64) -> Option<(u64, &mut Segment)> {
    let (start, segment) = segments.range_mut(..=address).next_back()?;
    (address < segment.end).then_some((*start, segment))
}

/// The segments of a device.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// By address.
    segments: BTreeMap<u64, Segment>,
    /// Mapped memory that blocks have had since a lane was seen that is not the default one, by address.
    mapped: BTreeMap<u64, Segment>,
    /// The segment whose first block comes next.
    fresh: Option<u64>,
    /// A lane was seen that is not the default one: before that, all are.
    differ: bool,
    streams: BTreeSet<u32>,
}

impl Lanes {
    /// A new segment; its first block follows.
    pub(super) fn add(&mut self, start: u64, bytes: u64) {
        self.segments.insert(start, Segment { end: start.saturating_add(bytes), lane: (0, 0) });
        self.fresh = Some(start);
    }

    /// A segment that exists at the beginning.
    pub(super) fn add_existing(&mut self, segment: &LogSegment) {
        let lane = (segment.stream, segment.pool);
        self.differ |= lane != (0, 0);
        self.streams.insert(lane.0);
        let end = segment.address.saturating_add(segment.size);
        self.segments.insert(segment.address, Segment { end, lane });
    }

    /// The segment goes. Answers with its private pool, if it had one.
    pub(super) fn remove(&mut self, start: u64) -> Option<u16> {
        let (_, pool) = self.segments.remove(&start)?.lane;
        (pool != 0).then_some(pool)
    }

    /// The lane of a new block, recorded with `lane`. Pools that turn out to be one become one in `log`.
    pub(super) fn of_block(
        &mut self,
        (address, bytes): (u64, u64),
        lane: Lane,
        log: &mut Log,
    ) -> Lane {
        let fresh = self.fresh.take();
        if !self.differ && lane == (0, 0) {
            self.streams.insert(0);
            return lane;
        }
        self.differ = true;
        let lane = match at(&mut self.segments, address) {
            Some((start, segment)) if fresh == Some(start) => {
                segment.lane = lane;
                lane
            }
            Some((_, segment)) => segment.shared_with(lane, log),
            None => self.of_mapped(address, bytes, lane, log),
        };
        self.streams.insert(lane.0);
        lane
    }

    fn of_mapped(&mut self, address: u64, bytes: u64, lane: Lane, log: &mut Log) -> Lane {
        let end = address.saturating_add(bytes);
        match at(&mut self.mapped, address) {
            Some((_, known)) => {
                known.end = known.end.max(end);
                known.shared_with(lane, log)
            }
            None => {
                self.mapped.insert(address, Segment { end, lane });
                lane
            }
        }
    }

    /// The memory is no longer mapped. Answers with the private pools of its blocks.
    pub(super) fn unmapped(&mut self, start: u64, end: u64) -> Vec<u16> {
        let before = at(&mut self.mapped, start).map(|(first, _)| first);
        let gone: Vec<u64> =
            before.into_iter().chain(self.mapped.range(start..end).map(|(at, _)| *at)).collect();
        let mut pools: Vec<u16> =
            gone.into_iter().filter_map(|at| Some(self.mapped.remove(&at)?.lane.1)).collect();
        pools.retain(|pool| *pool != 0);
        pools.dedup();
        pools
    }

    /// Whether memory of the segment follows behind an address in it.
    pub(super) fn segment_goes_on(&self, address: u64) -> bool {
        let segment = self.segments.range(..address).next_back();
        segment.is_some_and(|(_, segment)| address < segment.end)
    }

    /// The number of streams with blocks.
    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }
}
