//! Figures of small traces that can be counted by hand.

use vramtrace_format::{Event, Kind, Listed, Purpose, Space, StackId};

use super::*;
use crate::analysis::Moment;
use crate::testing::{SECOND, TraceBuilder};
use crate::trace::Trace;

const MIB: u64 = 1 << 20;
const A: u64 = 1 << 40;
const B: u64 = 2 << 40;
const C: u64 = 3 << 40;
const D: u64 = 4 << 40;

fn found(builder: &TraceBuilder, at: Moment) -> Result<Frag, MomentError> {
    let trace = Trace::of(builder);
    let (definitions, _) = trace.definitions();
    let mut found = find(&trace, &definitions, at)?;
    assert_eq!(found.len(), 1);
    Ok(found.remove(0))
}

/// Two lines: one keeps two segments of 20 MiB by 2 MiB each, alone in one; the other has most of
/// the second. A third segment holds nothing; a small one has a block of 512 B.
fn kept() -> TraceBuilder {
    let mut t = TraceBuilder::new();
    t.code(1, "cache", "/home/me/model.py", 7);
    t.code(2, "main", "/home/me/train.py", 9);
    t.stack(1, &[], &[1, 2], &[]);
    t.stack(2, &[], &[2], &[]);
    for (n, segment) in [A, B, C].into_iter().enumerate() {
        t.alloc(SECOND + n as u64 * 1000, Kind::Device, segment, 20 * MIB);
    }
    t.alloc_by(2 * SECOND, Kind::Block, A + 8 * MIB, 2 * MIB, 1);
    t.alloc_by(2 * SECOND, Kind::Block, B, 12 * MIB, 2);
    t.alloc_by(2 * SECOND, Kind::Block, B + 18 * MIB, 2 * MIB, 1);
    t.alloc_by(2 * SECOND, Kind::Block, C, 20 * MIB, 2);
    t.alloc(3 * SECOND, Kind::Device, D, 2 * MIB);
    t.alloc_by(3 * SECOND + 1000, Kind::Block, D, 512, 2);
    t.free(4 * SECOND, Space::Block, C);
    t
}

#[test]
fn free_memory_by_what_keeps_it() {
    let frag = found(&kept(), Moment::End).unwrap();
    assert_eq!((frag.reserved_bytes, frag.allocated_bytes), (62 * MIB, 16 * MIB + 512));
    assert_eq!(frag.free_in_segments_bytes, 46 * MIB - 512);
    assert_eq!(frag.releasable_bytes, 20 * MIB);
    assert_eq!(frag.largest_free_block_bytes, 20 * MIB);
    // Of 36 MiB of large requests 20 came at once: all pinned pieces are smaller.
    assert_eq!(frag.large.usual_request, 20 * MIB);
    assert_eq!(frag.large.unusable, (18 + 6) * MIB);
    assert_eq!((frag.small.usual_request, frag.small.unusable), (512, 0));
    assert_eq!((frag.small.segments, frag.large.segments), (1, 3));
    assert_eq!((frag.peak_reserved_bytes, frag.peak_allocated_bytes), (62 * MIB, 36 * MIB + 512));
    assert!((frag.fragmentation.unwrap() - (1.0 - 36.0 / 62.0)).abs() < 1e-4);
    assert_eq!(frag.moment.at_ns, Some(4 * SECOND));
}

#[test]
fn who_pins_what() {
    let frag = found(&kept(), Moment::End).unwrap();
    let [first, second] = frag.pins[..] else { panic!("{:?}", frag.pins) };
    assert_eq!(first.stack, StackId(1));
    assert_eq!((first.segments, first.alone, first.blocks, first.bytes), (2, 1, 2, 4 * MIB));
    assert_eq!(first.pinned, 18 * MIB + 6 * MIB / 7, "the second is shared by bytes");
    assert_eq!(second.stack, StackId(2));
    assert_eq!((second.segments, second.alone), (2, 1));
    let kept = frag.free_in_segments_bytes - frag.releasable_bytes;
    assert!(frag.pins.iter().map(|pin| pin.pinned).sum::<u64>() <= kept);
    assert!(frag.pins.iter().map(|pin| pin.pinned).sum::<u64>() + 10 > kept);
}

#[test]
fn the_moments() {
    let mut t = kept();
    t.free(5 * SECOND, Space::Block, A + 8 * MIB);
    t.free(5 * SECOND, Space::Device, A);
    t.out_of_memory(6 * SECOND, 7);
    t.free(7 * SECOND, Space::Device, C);
    let reserved = |at| found(&t, at).map(|frag| frag.reserved_bytes / MIB);
    assert_eq!(reserved(Moment::Peak), Ok(62));
    assert_eq!(reserved(Moment::End), Ok(22));
    assert_eq!(reserved(Moment::OutOfMemory), Ok(42));
    assert_eq!(reserved(Moment::At(5 * SECOND + SECOND / 2)), Ok(42));
    assert_eq!(reserved(Moment::At(2 * SECOND)), Ok(60));
    assert_eq!(reserved(Moment::At(5)), Ok(0));
    let peak = found(&t, Moment::Peak).unwrap();
    assert_eq!(peak.allocated_bytes, 36 * MIB + 512, "when the last segment came");
    assert_eq!(found(&kept(), Moment::OutOfMemory).unwrap_err(), MomentError::NoOutOfMemory);
}

#[test]
fn a_punched_beginning_is_reported() {
    let mut t = TraceBuilder::new();
    t.lose();
    let segment = t.allocation(Kind::Device, 0, A, 20 * MIB);
    let block = t.allocation(Kind::Block, 0, A + 2 * MIB, 2 * MIB);
    t.event(SECOND, Event::StateBegin { id: 1, what: Purpose::Checkpoint, cache_ooms: 0 });
    t.event(SECOND, Event::StateEvent(Listed::new(1, 5, &Event::Alloc(block))));
    t.event(SECOND, Event::StateEvent(Listed::new(1, 6, &Event::Alloc(segment))));
    t.event(SECOND, Event::StateEnd { id: 1, cut: false });
    t.free(2 * SECOND, Space::Block, A + 2 * MIB);
    for at in [Moment::Peak, Moment::At(SECOND)] {
        let frag = found(&t, at).unwrap();
        assert_eq!((frag.reserved_bytes, frag.allocated_bytes), (20 * MIB, 2 * MIB), "{at:?}");
        assert_eq!(frag.history_from_ns, SECOND);
    }
}
