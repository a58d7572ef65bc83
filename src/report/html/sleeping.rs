//! The mappings of virtual memory: what is mapped, what is unmapped during a sleep, and who owns
//! memory that was mapped again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use vramtrace_format::DeviceId;

use super::records::{OpenMapping, OpenRecord, Records};
use crate::replay::Key;

/// The mappings at one moment of the replay.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// By start address.
    mappings: BTreeMap<u64, OpenMapping>,
    /// Parts of physical objects with another owner than the object: key of the object, address at
    /// which the part is mapped, record.
    pub parts: Vec<(Key, u64, OpenRecord)>,
    /// Addresses of the blocks that have bytes without physical memory.
    pub paused: BTreeSet<u64>,
}

/// The mappings that [`Mapped::cut`] ended.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// The physical objects that were mapped there.
    pub objects: Vec<u64>,
    /// At least one of the mappings was a framework's segment.
    pub segment: bool,
}

impl Mapped {
    /// Adds a mapping. `from`: the ordinal of its beginning. `asleep`: the owner, if the range is
    /// unmapped during a sleep.
    pub(super) fn put_mapping(
        &mut self,
        from: u64,
        start: u64,
        (size, object): (u64, u64),
        device: DeviceId,
        segment: bool,
        asleep: Option<u32>,
    ) {
        let segment = if segment { from } else { 0 };
        self.mappings.insert(start, OpenMapping { from, size, object, device, segment, asleep });
    }

    /// Ends the mappings and sleeping ranges in `[start, end)`. Their parts outside of it continue as
    /// new records.
    pub(super) fn cut<W: Write>(
        &mut self,
        records: &mut Records<W>,
        now: u64,
        start: u64,
        end: u64,
    ) -> Gone {
        let reaches = |(at, open): &(&u64, &OpenMapping)| at.saturating_add(open.size) > start;
        let inside = self.mappings.range(..end).rev().take_while(reaches);
        let inside: Vec<u64> = inside.map(|(at, _)| *at).collect();
        let mut gone = Gone::default();
        for at in inside {
            let Some(open) = self.mappings.remove(&at) else { continue };
            records.write_mapping(at, open, Some(now));
            let of_segment = open.segment > 0;
            gone.segment |= of_segment;
            if open.asleep.is_none() {
                gone.objects.push(open.object);
            }
            let last = at.saturating_add(open.size);
            for (from, to) in [(at, start), (end, last)] {
                if from < to {
                    let what = (to - from, open.object);
                    self.put_mapping(now, from, what, open.device, of_segment, open.asleep);
                }
            }
        }
        gone
    }

    /// Marks the mappings of an object as a framework's segment from the ordinal `now` on.
    pub(super) fn mark_segment(&mut self, object: u64, now: u64) {
        let of_object = |open: &&mut OpenMapping| {
            open.object == object && open.segment == 0 && open.asleep.is_none()
        };
        self.mappings.values_mut().filter(of_object).for_each(|open| open.segment = now);
        let is_it = |(key, _, open): &&mut (Key, u64, OpenRecord)| {
            key.number == object && open.segment == 0
        };
        self.parts.iter_mut().filter(is_it).for_each(|(_, _, open)| open.segment = now);
    }

    /// Takes all mappings, and forgets the paused blocks.
    pub(super) fn take_all(&mut self) -> BTreeMap<u64, OpenMapping> {
        self.paused.clear();
        std::mem::take(&mut self.mappings)
    }
}
