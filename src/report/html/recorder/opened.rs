//! The open records, by key. The table has numbers alone, and a record is mostly stored where one ended just before: in a
//! table of records each event would miss the cache.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use super::super::records::OpenRecord;
use crate::replay::Key;

#[derive(Debug, Default)]
pub(super) struct Opened {
    places: FxHashMap<Key, u32>,
    /// Those of `free` have ended.
    records: Vec<OpenRecord>,
    free: Vec<u32>,
}

impl Opened {
    pub(super) fn get(&self, key: &Key) -> Option<&OpenRecord> {
        self.records.get(*self.places.get(key)? as usize)
    }

    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut OpenRecord> {
        self.records.get_mut(*self.places.get(key)? as usize)
    }

    /// Adds a record, in place of an earlier one of this key.
    pub(super) fn insert(&mut self, key: Key, open: OpenRecord) {
        match self.places.entry(key) {
            Entry::Occupied(entry) => self.records[*entry.get() as usize] = open,
            Entry::Vacant(entry) => match self.free.pop() {
                Some(place) => self.records[*entry.insert(place) as usize] = open,
                None => {
                    entry.insert(self.records.len() as u32);
                    self.records.push(open);
                }
            },
        }
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<OpenRecord> {
        let place = self.places.remove(key)?;
        self.free.push(place);
        self.records.get(place as usize).copied()
    }

    /// Takes all, in no order.
    pub(super) fn take_all(&mut self) -> Vec<(Key, OpenRecord)> {
        let Opened { places, records, .. } = std::mem::take(self);
        places.into_iter().map(|(key, place)| (key, records[place as usize])).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::analysis::roles::Role;

    fn open(size: u64) -> OpenRecord {
        OpenRecord {
            from: 1,
            time_ns: 0,
            size,
            share: size,
            owner: 0,
            role: Role::Unknown,
            phase: 0,
            segment: 0,
            paused: 0,
            continues: false,
            maker: 0,
        }
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((0..8u64, 0..3u8), 0..60)) {
            let (mut opened, mut expected) = (Opened::default(), BTreeMap::new());
            for (n, (key, what)) in (0..).zip(steps) {
                let key = Key::block(key);
                match what {
                    0 => {
                        let removed = opened.remove(&key).map(|open| open.size);
                        prop_assert_eq!(removed, expected.remove(&key));
                    }
                    1 => {
                        if let Some(open) = opened.get_mut(&key) {
                            open.size += 100;
                        }
                        expected.entry(key).and_modify(|size| *size += 100);
                    }
                    _ => {
                        opened.insert(key, open(n));
                        expected.insert(key, n);
                    }
                }
                let found = opened.get(&key).map(|open| open.size);
                prop_assert_eq!(found, expected.get(&key).copied());
                prop_assert!(opened.records.len() <= 8, "places are taken again");
            }
            let mut all: Vec<(Key, u64)> =
                opened.take_all().into_iter().map(|(key, open)| (key, open.size)).collect();
            all.sort_unstable();
            prop_assert_eq!(all, expected.into_iter().collect::<Vec<_>>());
            prop_assert!(opened.take_all().is_empty());
        }
    }
}
