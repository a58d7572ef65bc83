//! A sorted map from numbers to values; its growth may fail. It consists of rows of a fixed capacity,
//! each with the values of one range of keys. An insertion moves the rest of a row, and splits a full
//! row.

use crate::runtime::fallible::{MakeRoom, vec_of};
use crate::runtime::hash_table::NoMemory;
use crate::runtime::reserve;

/// Values of a row. A split leaves two rows that are half full.
const ROW: usize = 128;

type Row<V> = Vec<(u64, V)>;

#[derive(Debug)]
pub struct SortedMap<V> {
    /// No row is empty.
    rows: Vec<Row<V>>,
    /// An empty row in reserve, so that an insertion after `make_room` cannot fail.
    spare: Option<Row<V>>,
}

impl<V> Default for SortedMap<V> {
    fn default() -> SortedMap<V> {
        SortedMap { rows: Vec::new(), spare: None }
    }
}

impl<V: Copy> SortedMap<V> {
    /// The row that a key belongs to: the last that does not begin above it, or the first.
    fn row_of(&self, key: u64) -> usize {
        self.rows.partition_point(|row| row[0].0 <= key).saturating_sub(1)
    }

    /// Returns the previous value. Without host memory the map is unchanged.
    pub fn insert(&mut self, key: u64, value: V) -> Result<Option<V>, NoMemory> {
        if self.rows.is_empty() {
            self.add_row(0)?;
            in_room(&mut self.rows[0], 0, (key, value));
            return Ok(None);
        }
        let mut number = self.row_of(key);
        let at = match self.rows[number].binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => return Ok(Some(std::mem::replace(&mut self.rows[number][at].1, value))),
            Err(at) if self.rows[number].len() < ROW => at,
            Err(at) => {
                self.add_row(number + 1)?;
                let (full, fresh) = self.rows.split_at_mut(number + 1);
                move_tail(&mut full[number], ROW / 2, &mut fresh[0]);
                match at.checked_sub(ROW / 2) {
                    Some(at) => {
                        number += 1;
                        at
                    }
                    None => at,
                }
            }
        };
        in_room(&mut self.rows[number], at, (key, value));
        Ok(None)
    }

    pub fn remove(&mut self, key: u64) -> Option<V> {
        let number = self.row_of(key);
        let row = self.rows.get_mut(number)?;
        let at = row.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        let (_, value) = row.remove(at);
        if row.is_empty() {
            self.spare = Some(self.rows.remove(number));
        }
        Some(value)
    }

    /// Iterates in order, from this key on.
    pub fn from(&self, key: u64) -> impl Iterator<Item = (u64, &V)> {
        let number = self.row_of(key);
        let rows = self.rows.get(number..).unwrap_or_default();
        let all = rows.iter().flatten().map(|(key, value)| (*key, value));
        all.skip_while(move |(known, _)| *known < key)
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.rows.iter().flatten().map(|(_, value)| value)
    }

    /// Makes room for one more value with any key.
    pub fn make_room(&mut self) -> Result<(), NoMemory> {
        self.rows.make_room().inspect_err(|_| reserve::ran_out())?;
        if self.spare.is_none() {
            self.spare = Some(vec_of(ROW).inspect_err(|_| reserve::ran_out())?);
        }
        Ok(())
    }

    /// Inserts an empty row, which the caller fills at once.
    fn add_row(&mut self, at: usize) -> Result<(), NoMemory> {
        self.make_room()?;
        if let Some(fresh) = self.spare.take() {
            in_room(&mut self.rows, at, fresh);
        }
        Ok(())
    }
}

/// `Vec::insert` into a list that has room, so that it does not allocate.
#[allow(clippy::disallowed_methods)]
fn in_room<T>(list: &mut Vec<T>, at: usize, value: T) {
    debug_assert!(list.len() < list.capacity());
    list.insert(at, value);
}

/// Moves the elements from `at` on to the end of `to`, which has room.
#[allow(clippy::disallowed_methods)]
fn move_tail<T: Copy>(from: &mut Vec<T>, at: usize, to: &mut Vec<T>) {
    debug_assert!(to.capacity() - to.len() >= from.len() - at);
    to.extend_from_slice(&from[at..]);
    from.truncate(at);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::faults::tests::NO_PAGES;
    use std::collections::BTreeMap;

    fn pairs(map: &SortedMap<u64>, from: u64) -> Vec<(u64, u64)> {
        map.from(from).map(|(key, value)| (key, *value)).collect()
    }

    #[test]
    fn it_is_a_map_in_order() {
        let (mut map, mut model) = (SortedMap::default(), BTreeMap::new());
        let mut random = 1u64;
        for step in 0..60_000u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Grows for a while, then shrinks to nothing.
            let key = (random >> 40) % 3000;
            match random >> 62 < if step < 30_000 { 3 } else { 1 } {
                true => assert_eq!(map.insert(key, step), Ok(model.insert(key, step))),
                false => assert_eq!(map.remove(key), model.remove(&key)),
            }
            assert!(map.from(key).next().eq(&model.range(key..).next().map(|(k, v)| (*k, v))));
            if step % 1000 == 0 {
                let wanted: Vec<_> = model.range(key..).map(|(k, v)| (*k, *v)).collect();
                assert_eq!(pairs(&map, key), wanted);
                assert!(map.values().eq(model.values()));
                assert!(map.rows.iter().all(|row| !row.is_empty() && row.len() <= ROW));
            }
        }
        for key in 0..3000 {
            assert_eq!(map.remove(key), model.remove(&key));
        }
        assert!(map.rows.is_empty());
        assert!(map.from(7).next().is_none() && map.remove(7).is_none());
    }

    #[test]
    #[cfg_attr(any(miri, sanitized), ignore = "the heap is not the allocator")]
    fn without_memory_it_stays_as_it_is() {
        let mut map: SortedMap<[u64; 16]> = SortedMap::default();
        let mut key = 0;
        NO_PAGES.set(false);
        while map.rows.len() < 500 {
            map.insert(key, [key; 16]).unwrap();
            key += 1;
        }
        NO_PAGES.set(true);
        let before = map.rows.last().map_or(0, Vec::len);
        let more = (key..).take_while(|key| map.insert(*key, [0; 16]).is_ok()).count();
        NO_PAGES.set(false);
        assert!(more >= ROW - before, "the row had room: {more}");
        let end = key + more as u64;
        assert!(map.from(0).map(|(key, _)| key).eq(0..end), "no value came or went");
        map.insert(end, [0; 16]).unwrap();
    }
}
