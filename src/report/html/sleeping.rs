//! What is mapped where, what is asleep, and whose the bytes are that came back.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use vramtrace_format::DeviceId;

use super::records::{Open, OpenMapping, Records};
use crate::replay::Key;

#[derive(Debug, Default)]
pub struct Mapped {
    mappings: BTreeMap<u64, OpenMapping>,
    /// Parts of objects that are another's than the object: the object, and where they are mapped.
    parts: Vec<(Key, u64, Open)>,
    /// Blocks with bytes that have no memory, by address.
    pub paused: BTreeSet<u64>,
}

/// What was mapped where nothing is now.
#[derive(Debug, Default)]
pub struct Gone {
    pub objects: Vec<u64>,
    /// A part of it was a framework's segment.
    pub segment: bool,
}

impl Mapped {
    pub fn put(
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

    /// Ends what is mapped or asleep in `[start, end)`; what lies beside it goes on.
    pub fn cut<W: Write>(
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
                    self.put(now, from, what, open.device, of_segment, open.asleep);
                }
            }
        }
        gone
    }

    /// An object is a framework's segment from here on.
    pub fn is_segment(&mut self, object: u64, now: u64) {
        let of_object = |open: &&mut OpenMapping| {
            open.object == object && open.segment == 0 && open.asleep.is_none()
        };
        self.mappings.values_mut().filter(of_object).for_each(|open| open.segment = now);
        let parts = self.parts.iter_mut().map(|(key, _, open)| (key, open));
        for (_, open) in parts.filter(|(key, _)| key.number == object) {
            if open.segment == 0 {
                open.segment = now;
            }
        }
    }

    pub fn take_all(&mut self) -> BTreeMap<u64, OpenMapping> {
        self.paused.clear();
        std::mem::take(&mut self.mappings)
    }

    pub fn put_part(&mut self, key: Key, address: u64, open: Open) {
        self.parts.push((key, address, open));
    }

    pub fn parts_of(&mut self, key: Key) -> impl Iterator<Item = &mut Open> {
        self.parts.iter_mut().filter(move |part| part.0 == key).map(|(_, _, open)| open)
    }

    /// Takes those of an object that is gone.
    pub fn end_parts(&mut self, key: Key) -> Vec<Open> {
        self.parts.extract_if(.., |part| part.0 == key).map(|(_, _, open)| open).collect()
    }

    /// Takes those that are mapped in `[start, end)`.
    pub fn parts_in(&mut self, start: u64, end: u64) -> Vec<(Key, Open)> {
        let inside = |part: &mut (Key, u64, Open)| (start..end).contains(&part.1);
        self.parts.extract_if(.., inside).map(|(key, _, open)| (key, open)).collect()
    }

    pub fn take_parts(&mut self) -> Vec<(Key, Open)> {
        std::mem::take(&mut self.parts).into_iter().map(|(key, _, open)| (key, open)).collect()
    }
}
