//! Streams and private pools of blocks, as far as the trace has them.
//!
//! All blocks of a segment have one stream and one pool. A recorded stream is the thread's current one, which a program
//! may pass over (`caching_allocator_alloc` with a stream, a restored graph pool), and a recorded pool is the number of a
//! capture, of which several may share a pool. So a block has the stream and pool of its segment, and captures whose blocks share a
//! segment share a pool. Of an expandable segment the trace has the pages, and not which of them are one segment: there
//! blocks that share addresses have the same.

use std::collections::{BTreeMap, BTreeSet};

use crate::allocator::{Log, LogSegment};

/// The number of a stream, and of a private pool (0 = default).
pub(super) type StreamPool = (u32, u16);

#[derive(Debug)]
struct Segment {
    end: u64,
    of: StreamPool,
}

impl Segment {
    /// The stream and pool of a block in it, recorded with `of`.
    fn shared_with(&self, of: StreamPool, log: &mut Log) -> StreamPool {
        if self.of.1 != 0 && of.1 != 0 {
            log.merge_pools(self.of.1, of.1);
        }
        self.of
    }
}

/// What holds an address, and where it begins.
fn at(segments: &mut BTreeMap<u64, Segment>, address: u64) -> Option<(u64, &mut Segment)> {
    let (start, segment) = segments.range_mut(..=address).next_back()?;
    (address < segment.end).then_some((*start, segment))
}

/// The segments of a device.
#[derive(Debug, Default)]
pub(super) struct SegmentStreams {
    /// By address.
    segments: BTreeMap<u64, Segment>,
    /// Mapped memory that blocks have had since a stream or pool was seen that is not the default one, by address.
    mapped: BTreeMap<u64, Segment>,
    /// The segment whose first block comes next.
    fresh: Option<u64>,
    /// A stream or pool was seen that is not the default one: before that, all are.
    differ: bool,
    streams: BTreeSet<u32>,
}

impl SegmentStreams {
    /// A new segment; its first block follows.
    pub(super) fn add(&mut self, start: u64, bytes: u64) {
        self.segments.insert(start, Segment { end: start.saturating_add(bytes), of: (0, 0) });
        self.fresh = Some(start);
    }

    /// A segment that exists at the beginning.
    pub(super) fn add_existing(&mut self, segment: &LogSegment) {
        let of = (segment.stream, segment.pool);
        self.differ |= of != (0, 0);
        self.streams.insert(of.0);
        let end = segment.address.saturating_add(segment.size);
        self.segments.insert(segment.address, Segment { end, of });
    }

    /// The segment goes. Answers with its private pool, if it had one.
    pub(super) fn remove(&mut self, start: u64) -> Option<u16> {
        let (_, pool) = self.segments.remove(&start)?.of;
        (pool != 0).then_some(pool)
    }

    /// The stream and pool of a new block, recorded with `of`. Pools that turn out to be one become one in `log`.
    pub(super) fn of_block(
        &mut self,
        (address, bytes): (u64, u64),
        of: StreamPool,
        log: &mut Log,
    ) -> StreamPool {
        let fresh = self.fresh.take();
        if !self.differ && of == (0, 0) {
            self.streams.insert(0);
            return of;
        }
        self.differ = true;
        let of = match at(&mut self.segments, address) {
            Some((start, segment)) if fresh == Some(start) => {
                segment.of = of;
                of
            }
            Some((_, segment)) => segment.shared_with(of, log),
            None => self.of_mapped(address, bytes, of, log),
        };
        self.streams.insert(of.0);
        of
    }

    fn of_mapped(&mut self, address: u64, bytes: u64, of: StreamPool, log: &mut Log) -> StreamPool {
        let end = address.saturating_add(bytes);
        match at(&mut self.mapped, address) {
            Some((_, known)) => {
                known.end = known.end.max(end);
                known.shared_with(of, log)
            }
            None => {
                self.mapped.insert(address, Segment { end, of });
                of
            }
        }
    }

    /// The memory is no longer mapped. Answers with the private pools of its blocks.
    pub(super) fn unmapped(&mut self, start: u64, end: u64) -> Vec<u16> {
        let before = at(&mut self.mapped, start).map(|(first, _)| first);
        let gone: Vec<u64> =
            before.into_iter().chain(self.mapped.range(start..end).map(|(at, _)| *at)).collect();
        let mut pools: Vec<u16> =
            gone.into_iter().filter_map(|at| Some(self.mapped.remove(&at)?.of.1)).collect();
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
