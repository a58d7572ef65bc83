//! Do addresses fit together at one moment? Allocations, mappings and blocks do not overlap; what
//! lies in something lies in it whole; blocks and holes fill their segment.

use vramtrace_format::{DeviceId, Kind, Space, Stamped};

use super::findings::{Rule, Verification, Violation};
use crate::replay::{Key, State};

/// Checks every address. Takes time in proportion to what is live. `at`: the last event.
pub(super) fn check(at: &Stamped, state: &State, found: &mut Verification) {
    let mut add = |rule, what: &str, device, key, expected: String, is: String| {
        found.add(Violation::new(at, rule, what, expected, is).on(device).of(Some(key)));
    };
    // An import is the memory of another process: where it lies, its own allocation may lie too.
    let own = state
        .live
        .iter()
        .filter(|(key, live)| key.space == Space::Device && live.kind != Kind::Imported)
        .map(|(key, live)| (key.number, live.size, Some(live.device)));
    let mappings = state.space.mappings().map(|it| (it.address, it.size, None));
    let blocks = state.live.blocks().map(|(at, block)| (at, block.size, Some(block.device)));
    for (what, space, ranges) in [
        ("an allocation", Space::Device, own.collect::<Vec<_>>()),
        ("a mapping", Space::Vmm, mappings.collect()),
        ("a block", Space::Block, blocks.collect()),
    ] {
        for (start, end, (address, bytes, device)) in overlaps(ranges) {
            let expected = format!("an address at or above {end:#x}");
            let is = format!("{bytes} bytes inside those at {start:#x}");
            add(Rule::Overlap, what, device, Key { space, number: address }, expected, is);
        }
    }
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
        add(Rule::Outside, "the object of a mapping", None, object, expected, is);
    }
    for (address, bytes) in state.cache.outside() {
        let key = Key::block(address);
        let device = state.live.get(key).map(|live| live.device);
        let expected = format!("driver memory for all of its {bytes} bytes");
        add(Rule::Outside, "the memory of a block", device, key, expected, "none".into());
    }
    let segments = state.segments();
    for segment in &segments {
        let holes = segment.holes().map(|(_, bytes)| bytes);
        let is = holes.fold(segment.allocated(), u64::saturating_add);
        if is != segment.bytes {
            let key = Key { space: Space::Device, number: segment.start };
            let (what, device) = ("blocks and holes of a segment", Some(segment.device));
            add(Rule::Segment, what, device, key, segment.bytes.to_string(), is.to_string());
        }
    }
    for (id, device) in &state.devices {
        let here = segments.iter().filter(|segment| segment.device == *id);
        let reserved = here.map(|segment| segment.bytes).fold(0, u64::saturating_add);
        let figure = [("bytes of segments", reserved, device.cache.reserved)];
        found.compare(at, Rule::Sum, Some(*id), figure);
    }
}

/// Address, bytes and device.
type PlacedRange = (u64, u64, Option<DeviceId>);

/// Those that begin before the one before them ends, with begin and end of that one.
fn overlaps(mut ranges: Vec<PlacedRange>) -> Vec<(u64, u64, PlacedRange)> {
    ranges.sort_unstable_by_key(|(address, ..)| *address);
    let (mut start, mut end) = (0, 0);
    let mut found = Vec::new();
    for range in ranges {
        let (address, bytes, _) = range;
        if address < end {
            found.push((start, end, range));
        }
        let last = address.saturating_add(bytes);
        if last > end {
            (start, end) = (address, last);
        }
    }
    found
}
