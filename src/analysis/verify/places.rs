//! Do addresses fit together at one moment? Allocations, mappings and blocks do not overlap; what
//! lies in something lies in it whole; blocks and holes fill their segment.

use vramtrace_format::{DeviceId, Kind, Space};

use super::findings::Rule;
use crate::replay::{Key, Live, State};

/// Something that does not fit: the rule, the device, its key, what it is, expected and found.
pub(super) struct Misfit {
    pub rule: Rule,
    pub device: Option<DeviceId>,
    pub key: Option<Key>,
    pub what: &'static str,
    pub expected: String,
    pub found: String,
}

/// Checks every address. Takes time in proportion to what is live.
pub(super) fn check(state: &State) -> Vec<Misfit> {
    let mut misfits = Vec::new();
    allocations(state, &mut misfits);
    mappings(state, &mut misfits);
    blocks(state, &mut misfits);
    segments(state, &mut misfits);
    misfits
}

/// Something that begins before the one before it ends. `ranges`: in order of address.
fn overlaps<'s>(
    space: Space,
    what: &'static str,
    ranges: impl Iterator<Item = (u64, u64, Option<DeviceId>)> + 's,
) -> impl Iterator<Item = Misfit> + 's {
    let mut before: (u64, u64) = (0, 0);
    ranges.filter_map(move |(address, bytes, device)| {
        let (start, end) = before;
        let overlaps = address < end;
        let last = address.saturating_add(bytes);
        if last > end {
            before = (address, last);
        }
        overlaps.then(|| Misfit {
            rule: Rule::Overlap,
            device,
            key: Some(Key { space, number: address }),
            what,
            expected: format!("an address at or above {end:#x}"),
            found: format!("{bytes} bytes inside those at {start:#x}"),
        })
    })
}

fn allocations(state: &State, misfits: &mut Vec<Misfit>) {
    // An import is the memory of another process: where it lies, its own allocation may lie too.
    let memory = |(key, live): &(Key, &Live)| {
        key.space == Space::Device && !matches!(live.kind, Kind::Imported)
    };
    let mut live: Vec<(Key, &Live)> = state.live.iter().filter(memory).collect();
    live.sort_unstable_by_key(|(key, _)| key.number);
    let ranges = live.iter().map(|(key, live)| (key.number, live.size, Some(live.device)));
    misfits.extend(overlaps(Space::Device, "an allocation", ranges));
}

fn mappings(state: &State, misfits: &mut Vec<Misfit>) {
    let ranges = state.space.mappings().map(|mapping| (mapping.address, mapping.size, None));
    misfits.extend(overlaps(Space::Vmm, "a mapping", ranges));
    for mapping in state.space.mappings() {
        let object = Key { space: Space::Vmm, number: mapping.object };
        let end = mapping.offset.saturating_add(mapping.size);
        let found = match state.live.get(object) {
            Some(live) if end <= live.size => continue,
            Some(live) => format!("bytes {} to {end} of {}", mapping.offset, live.size),
            None => "none".to_string(),
        };
        misfits.push(Misfit {
            rule: Rule::Outside,
            device: None,
            key: Some(object),
            what: "the object of a mapping",
            expected: format!("a live object for {} bytes at {:#x}", mapping.size, mapping.address),
            found,
        });
    }
}

fn blocks(state: &State, misfits: &mut Vec<Misfit>) {
    let mut blocks: Vec<(u64, &Live)> = state.live.blocks().collect();
    blocks.sort_unstable_by_key(|(address, _)| *address);
    let ranges = blocks.iter().map(|(address, live)| (*address, live.size, Some(live.device)));
    misfits.extend(overlaps(Space::Block, "a block", ranges));
    for (address, bytes) in state.cache.outside() {
        let key = Key { space: Space::Block, number: address };
        misfits.push(Misfit {
            rule: Rule::Outside,
            device: state.live.get(key).map(|live| live.device),
            key: Some(key),
            what: "the memory of a block",
            expected: format!("driver memory for all of its {bytes} bytes"),
            found: "none".to_string(),
        });
    }
}

fn segments(state: &State, misfits: &mut Vec<Misfit>) {
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
    let segments = state.segments();
    for segment in &segments {
        let mut misfit = |what, expected: u64, found: u64| {
            if expected != found {
                misfits.push(Misfit {
                    rule: Rule::Segment,
                    device: Some(segment.device),
                    key: Some(Key { space: Space::Device, number: segment.start }),
                    what,
                    expected: expected.to_string(),
                    found: found.to_string(),
                });
            }
        };
        let whole = sum(&mut segment.blocks.iter().map(|block| block.live.size));
        misfit("bytes of the blocks that lie in a segment", whole, segment.allocated());
        let holes = sum(&mut segment.holes().map(|(_, bytes)| bytes));
        let filled = segment.allocated().saturating_add(holes);
        misfit("blocks and holes of a segment", segment.bytes, filled);
    }
    for (id, device) in &state.devices {
        let here = segments.iter().filter(|segment| segment.device == *id);
        let reserved = sum(&mut here.map(|segment| segment.bytes));
        if reserved != device.cache.reserved {
            misfits.push(Misfit {
                rule: Rule::Sum,
                device: Some(*id),
                key: None,
                what: "bytes of segments",
                expected: reserved.to_string(),
                found: device.cache.reserved.to_string(),
            });
        }
    }
}
