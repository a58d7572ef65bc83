//! Do addresses fit together at one moment? Allocations, mappings and blocks do not overlap; what
//! lies in something lies in it whole; blocks and holes fill their segment.

use vramtrace_format::{DeviceId, Kind, Space, Stamped};

use super::findings::{Rule, Verification, Violation};
use crate::replay::{Key, State};

/// Checks every address. Takes time in proportion to what is live. `at`: the last event.
pub(super) fn check(at: &Stamped, state: &State, found: &mut Verification) {
    let mut add = |device, key, violation: Violation| {
        found.add(Violation { device, key: Some(key), ..violation.at(at) });
    };
    // An import is the memory of another process: where it lies, its own allocation may lie too.
    let own = state
        .live
        .iter()
        .filter(|(key, live)| key.space == Space::Device && live.kind != Kind::Imported)
        .map(|(key, live)| (key.number, live.size, Some(live.device)));
    overlaps("an allocation", Space::Device, own.collect(), &mut add);
    let mappings = state.space.mappings().map(|it| (it.address, it.size, None));
    overlaps("a mapping", Space::Vmm, mappings.collect(), &mut add);
    for mapping in state.space.mappings() {
        let object = Key::object(mapping.object);
        let end = mapping.offset.saturating_add(mapping.size);
        let is = match state.live.get(object) {
            Some(live) if end <= live.size => continue,
            Some(live) => format!("bytes {} to {end} of {}", mapping.offset, live.size),
            None => "none".to_string(),
        };
        let expected =
            format!("a live object for {} bytes at {:#x}", mapping.size, mapping.address);
        let what = "the object of a mapping";
        add(None, object, Violation::new(Rule::Outside, what, expected, is));
    }
    let blocks = state.live.blocks().map(|(at, block)| (at, block.size, Some(block.device)));
    overlaps("a block", Space::Block, blocks.collect(), &mut add);
    for (address, bytes) in state.cache.outside() {
        let expected = format!("driver memory for all of its {bytes} bytes");
        let key = Key::block(address);
        let device = state.live.get(key).map(|live| live.device);
        let what = "the memory of a block";
        add(device, key, Violation::new(Rule::Outside, what, expected, "none"));
    }
    check_segments(at, state, found);
}

/// Finds those that begin before the one before them ends. `ranges`: address, bytes and device of each.
fn overlaps(
    what: &str,
    space: Space,
    mut ranges: Vec<(u64, u64, Option<DeviceId>)>,
    add: &mut impl FnMut(Option<DeviceId>, Key, Violation),
) {
    ranges.sort_unstable_by_key(|(address, ..)| *address);
    let (mut start, mut end) = (0, 0);
    for (address, bytes, device) in ranges {
        if address < end {
            let expected = format!("an address at or above {end:#x}");
            let is = format!("{bytes} bytes inside those at {start:#x}");
            let violation = Violation::new(Rule::Overlap, what, expected, is);
            add(device, Key { space, number: address }, violation);
        }
        let last = address.saturating_add(bytes);
        if last > end {
            (start, end) = (address, last);
        }
    }
}

fn check_segments(at: &Stamped, state: &State, found: &mut Verification) {
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
    let segments = state.segments();
    for segment in &segments {
        let whole = sum(&mut segment.blocks.iter().map(|block| block.live.size));
        let holes = sum(&mut segment.holes().map(|(_, bytes)| bytes));
        for (what, expected, is) in [
            ("bytes of the blocks that lie in a segment", whole, segment.allocated()),
            (
                "blocks and holes of a segment",
                segment.bytes,
                segment.allocated().saturating_add(holes),
            ),
        ] {
            if expected != is {
                let key = Key { space: Space::Device, number: segment.start };
                let violation = Violation::new(Rule::Segment, what, expected, is).at(at);
                found.add(violation.on(segment.device).of(key));
            }
        }
    }
    for (id, device) in &state.devices {
        let here = segments.iter().filter(|segment| segment.device == *id);
        let reserved = sum(&mut here.map(|segment| segment.bytes));
        let figure = [("bytes of segments", reserved, device.cache.reserved)];
        found.compare(at, Rule::Sum, Some(*id), figure);
    }
}
