//! A hash map whose growth may fail, for what grows with the program's objects.
//!
//! It makes no other system call. The default hasher of `std` takes its keys from `getrandom` and
//! panics where that is denied (a seccomp filter, a container without /dev/urandom). The keys are
//! handles and names of the program itself, so a hash that resists attacks is not needed.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use crate::runtime::fallible::{MakeRoom, attempt};
use crate::runtime::hash_table::NoMemory;
use crate::runtime::reserve;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};
use std::ops::{Deref, DerefMut};

type Inner<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

#[derive(Debug)]
pub struct Map<K, V>(Inner<K, V>);

impl<K, V> Default for Map<K, V> {
    fn default() -> Map<K, V> {
        Map(Inner::default())
    }
}

impl<K: Eq + Hash, V> MakeRoom for Map<K, V> {
    #[inline]
    fn make_room(&mut self) -> Result<(), NoMemory> {
        match self.0.len() < self.0.capacity() {
            true => Ok(()),
            false => attempt(|| self.0.try_reserve(1)).inspect_err(|_| reserve::ran_out()),
        }
    }
}

impl<K: Eq + Hash, V> Map<K, V> {
    /// Returns the previous value. Without host memory the map is unchanged.
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>, NoMemory> {
        match self.0.get_mut(&key) {
            Some(there) => Ok(Some(std::mem::replace(there, value))),
            None => {
                self.make_room()?;
                Ok(self.0.insert(key, value))
            }
        }
    }

    /// The value at the key; inserts `value` if there is none.
    pub fn get_or_insert(&mut self, key: K, value: V) -> Result<&mut V, NoMemory> {
        if !self.0.contains_key(&key) {
            self.make_room()?;
        }
        Ok(self.0.entry(key).or_insert(value))
    }
}

/// What does not make it grow.
impl<K, V> Deref for Map<K, V> {
    type Target = Inner<K, V>;

    fn deref(&self) -> &Inner<K, V> {
        &self.0
    }
}

/// Its methods that grow it are not called: see shim/clippy.toml.
impl<K, V> DerefMut for Map<K, V> {
    fn deref_mut(&mut self) -> &mut Inner<K, V> {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::faults::tests::NO_PAGES;

    #[test]
    #[cfg_attr(any(miri, sanitized), ignore = "the heap is not the allocator")]
    fn without_memory_it_stays_as_it_is_and_what_is_there_can_still_change() {
        let mut map: Map<u64, [u64; 8]> = Map::default();
        let mut next = 0;
        while map.0.capacity() < 1 << 12 || map.0.len() < map.0.capacity() {
            map.insert(next, [0; 8]).unwrap();
            next += 1;
        }
        NO_PAGES.set(true);
        let refused = map.insert(next, [1; 8]).is_err() && map.get_or_insert(next, [1; 8]).is_err();
        let known = map.insert(0, [2; 8]);
        NO_PAGES.set(false);
        assert!(refused && map.get(&next).is_none());
        assert_eq!((known, map.get(&0)), (Ok(Some([0; 8])), Some(&[2; 8])));
        map.insert(next, [3; 8]).unwrap();
    }
}
