//! Streams and private pools of blocks, as far as the trace has them.
//!
//! All blocks of a segment have one stream and one pool. A recorded stream is the thread's current one, which a program
//! may pass over (`caching_allocator_alloc` with a stream, a restored graph pool), and a recorded pool is the number of a
//! capture, of which several may share a pool. So a block has the lane of its segment, and captures whose blocks share a
//! segment share a pool.

use std::collections::{BTreeMap, BTreeSet};

use crate::allocator::{Log, LogSegment};

/// The number of a stream, and of a private pool (0 = default).
pub(super) type Lane = (u32, u16);

#[derive(Debug)]
struct Segment {
    end: u64,
    lane: Lane,
}

/// The segments of a device.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// By address.
    segments: BTreeMap<u64, Segment>,
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
    pub(super) fn of_block(&mut self, address: u64, lane: Lane, log: &mut Log) -> Lane {
        let fresh = self.fresh.take();
        if !self.differ && lane == (0, 0) {
            self.streams.insert(0);
            return lane;
        }
        self.differ = true;
        let segment = self.segments.range_mut(..=address).next_back();
        let segment = segment.filter(|(_, segment)| address < segment.end);
        let lane = match segment {
            Some((start, segment)) if fresh == Some(*start) => {
                segment.lane = lane;
                lane
            }
            Some((_, segment)) => {
                if segment.lane.1 != 0 && lane.1 != 0 {
                    log.merge_pools(segment.lane.1, lane.1);
                }
                segment.lane
            }
            None => lane,
        };
        self.streams.insert(lane.0);
        lane
    }

    /// The number of streams with blocks.
    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }
}
