//! Streams and private pools of blocks in traces, and what comes of them.

use vramtrace_format::{
    Alloc, BLOCK_STREAMS, ContextId, Definition, DeviceId, Event, Kind, PoolId, SiteId, Space,
    StackId,
};

use super::tests::{MIB, SEGMENT, recorded, requests};
use super::*;
use crate::allocator::{Conf, Request, replay};
use crate::replay::Until;
use crate::testing::TraceBuilder;
use crate::trace::Trace;

/// A block of this many MiB, of a stream and of the pool of a capture.
fn block(t: &mut TraceBuilder, at: u64, address: u64, mib: u64, stream: u64, capture: u16) {
    let site = SiteId(1000 + stream as u32 * 16 + u32::from(capture));
    t.define(Definition::Site {
        id: site,
        api: Kind::Block as u16,
        kind: Some(Kind::Block),
        device: DeviceId(0),
        context: ContextId(0),
        pool: PoolId(capture),
        stream,
    });
    let size = mib * MIB;
    let alloc =
        Alloc { key: address, space: Space::Block, size, site, stack: StackId(0), requested: None };
    t.event(at, Event::Alloc(alloc));
}

fn segment(t: &mut TraceBuilder, at: u64, number: u64) {
    t.alloc(at, Kind::Device, SEGMENT * number, 20 * MIB);
}

/// A segment of this number, and at its start a block of 8 MiB.
fn begun(t: &mut TraceBuilder, number: u64, stream: u64, capture: u16) {
    segment(t, 1000 * number, number);
    block(t, 1000 * number + 1, SEGMENT * number, 8, stream, capture);
}

fn stream_pools(recorded: &Recorded) -> Vec<(u32, u16)> {
    let stream_pool = |request| match request {
        Request::Alloc { stream, pool, .. } => Some((stream, pool)),
        _ => None,
    };
    recorded.log.requests().filter_map(stream_pool).collect()
}

#[test]
fn blocks_of_two_streams_do_not_share_a_segment() {
    let mut t = TraceBuilder::new();
    begun(&mut t, 1, 0, 0);
    t.free(1500, Space::Block, SEGMENT);
    begun(&mut t, 2, 0x23, 0);
    let found = recorded(&t);
    assert_eq!(stream_pools(&found), [(0, 0), (1, 0)]);
    assert_eq!(replay(&found.log, &Conf::default(), None).peak_reserved, 40 * MIB);
    assert_eq!((found.knows_streams, found.streams, found.knows_uses), (true, 2, false));
}

/// The run took a segment although one of the stream's was free: another stream still used the block.
#[test]
fn a_fit_that_uses_by_other_streams_may_undo_is_too_close_to_say() {
    let mut t = TraceBuilder::new();
    begun(&mut t, 1, 0, 0);
    t.free(1500, Space::Block, SEGMENT);
    begun(&mut t, 2, 0, 0);
    begun(&mut t, 3, 0x23, 0);
    let found = recorded(&t);
    let confs = [("default".to_string(), Conf::default())];
    let capacities: Vec<Capacity> =
        [30, 45, 70].map(|mib| Capacity { bytes: mib * MIB, origin: Origin::Asked }).to_vec();
    let prediction = predict(&found, &confs, capacities);
    assert_eq!(prediction.unseen, 20 * MIB);
    let of = |at: &AtCapacity| (at.fits, at.too_close);
    let verdicts: Vec<(bool, bool)> = prediction.settings[0].at.iter().map(of).collect();
    assert_eq!(verdicts, [(false, false), (true, true), (true, false)]);
}

/// A program that uses one stream alone is told from an older recorder by the setting.
#[test]
fn one_stream_is_known_to_be_the_only_one() {
    for noted in [false, true] {
        let mut t = TraceBuilder::new();
        begun(&mut t, 1, 0, 0);
        if noted {
            t.setting(BLOCK_STREAMS, "current");
        }
        let found = recorded(&t);
        assert_eq!((found.knows_streams, found.streams), (noted, 1));
    }
}

#[test]
fn a_block_has_the_stream_of_its_segment() {
    let mut t = TraceBuilder::new();
    segment(&mut t, 1000, 1);
    block(&mut t, 1001, SEGMENT, 2, 0x23, 0);
    // The program named the stream of this request; the thread's was another.
    block(&mut t, 1002, SEGMENT + 4 * MIB, 2, 0, 0);
    segment(&mut t, 2000, 2);
    block(&mut t, 2001, SEGMENT * 2, 2, 0, 0);
    assert_eq!(stream_pools(&recorded(&t)), [(0, 0), (0, 0), (1, 0)]);
}

#[test]
fn captures_whose_blocks_share_a_segment_share_a_pool() {
    let mut t = TraceBuilder::new();
    for number in 1..=3 {
        begun(&mut t, number, 0x23, number as u16);
    }
    block(&mut t, 3500, SEGMENT + 8 * MIB, 2, 0x23, 2);
    // An answer of the driver that was not for this request.
    begun(&mut t, 4, 0, 0);
    block(&mut t, 4002, SEGMENT * 4 + 8 * MIB, 8, 0, 3);
    let pools: Vec<u16> = stream_pools(&recorded(&t)).into_iter().map(|(_, pool)| pool).collect();
    assert_eq!(pools, [1, 1, 3, 1, 0, 0]);
}

/// The trace of an expandable segment has pages: two captures share a pool where they share addresses of one mapping.
#[test]
fn captures_whose_blocks_share_mapped_memory_share_a_pool() {
    let (address, size) = (SEGMENT, 40 * MIB);
    let mut t = TraceBuilder::new();
    t.mapped(1000, address, size, 1);
    block(&mut t, 1002, address, 16, 0x23, 1);
    block(&mut t, 1003, address + 16 * MIB, 16, 0x23, 1);
    t.free(1004, Space::Block, address);
    block(&mut t, 2000, address, 8, 0x23, 2);
    t.free(2001, Space::Block, address);
    t.free(2002, Space::Block, address + 16 * MIB);
    // Other memory at these addresses is another segment's.
    t.unmap(3000, address, size);
    t.mapped(4000, address, size, 2);
    block(&mut t, 4002, address, 16, 0x23, 3);
    let found = recorded(&t);
    assert_eq!(stream_pools(&found), [(0, 1), (0, 1), (0, 1), (0, 3)]);
    let ends = found.log.requests().filter(|it| matches!(it, Request::PoolEnds { pool: 1 }));
    assert_eq!(ends.count(), 1, "its memory went");
}

#[test]
fn a_private_pool_ends_with_its_first_segment_that_goes() {
    let mut t = TraceBuilder::new();
    begun(&mut t, 1, 0, 1);
    t.free(1500, Space::Block, SEGMENT);
    t.free(1600, Space::Device, SEGMENT);
    begun(&mut t, 2, 0, 0);
    let found = recorded(&t);
    let expected = [
        Request::Alloc { size: 8 * MIB, stream: 0, pool: 1, slot: 0 },
        Request::Free { slot: 0 },
        Request::PoolEnds { pool: 1 },
        Request::EmptyCache,
        Request::Alloc { size: 8 * MIB, stream: 0, pool: 0, slot: 0 },
    ];
    assert_eq!(requests(&found), expected);
    assert_eq!(replay(&found.log, &Conf::default(), None).peak_reserved, 20 * MIB);
}

/// The cache joins free neighbours: what it takes whole ends at an allocated block or at the end of a segment.
#[test]
fn a_block_with_free_memory_behind_it_was_split_off() {
    let mut t = TraceBuilder::new();
    segment(&mut t, 1000, 1);
    block(&mut t, 1001, SEGMENT, 2, 0, 0);
    block(&mut t, 1002, SEGMENT + 2 * MIB, 8, 0, 0);
    block(&mut t, 1003, SEGMENT + 10 * MIB, 10, 0, 0);
    t.free(2000, Space::Block, SEGMENT + 2 * MIB);
    block(&mut t, 2001, SEGMENT + 2 * MIB, 8, 0, 0);
    t.free(3000, Space::Block, SEGMENT + 2 * MIB);
    t.free(3001, Space::Block, SEGMENT + 10 * MIB);
    block(&mut t, 3002, SEGMENT + 2 * MIB, 8, 0, 0);
    let trace = Trace::of(&t);
    let all = Recorded::read(&trace, &trace.definitions().0, Until::End, true);
    let split: Vec<bool> = all[0].sources.iter().map(|source| source.split).collect();
    assert_eq!(split, [true, true, false, false, true]);
}
