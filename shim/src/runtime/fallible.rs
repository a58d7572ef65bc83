//! Fallible growth, for containers that can become large: they do not use the reserve
//! ([`super::reserve`]), which is kept for allocations that must succeed.

use crate::runtime::hash_table::NoMemory;
use crate::runtime::tls::thread_cells;
use core::cell::Cell;

thread_cells!(fn refusing() -> &Cell<u32>, 4 bytes of the block at 44);

/// Whether the current allocation on this thread may fail.
#[inline]
pub fn may_fail() -> bool {
    refusing().get() != 0
}

/// Runs `work`, which reserves room; this may fail.
pub(super) fn attempt<R, E>(work: impl FnOnce() -> Result<R, E>) -> Result<R, NoMemory> {
    refusing().update(|depth| depth + 1);
    let result = work();
    refusing().update(|depth| depth - 1);
    result.map_err(|_| NoMemory)
}

/// A container that can reserve room, or report that it cannot.
pub trait MakeRoom {
    /// Reserves room for one more element.
    fn make_room(&mut self) -> Result<(), NoMemory>;
}

impl<T> MakeRoom for Vec<T> {
    #[inline]
    fn make_room(&mut self) -> Result<(), NoMemory> {
        if self.len() < self.capacity() { Ok(()) } else { attempt(|| self.try_reserve(1)) }
    }
}

/// `push`, which may fail.
pub trait TryPush<T> {
    fn try_push(&mut self, value: T) -> Result<(), NoMemory>;
}

impl<T> TryPush<T> for Vec<T> {
    #[inline]
    fn try_push(&mut self, value: T) -> Result<(), NoMemory> {
        self.make_room()?;
        #[allow(clippy::disallowed_methods)]
        self.push(value);
        Ok(())
    }
}

/// What an iterator gives, in a new list. No more values are taken from it than `most`.
pub fn list_of<T>(most: usize, values: impl Iterator<Item = T>) -> Result<Vec<T>, NoMemory> {
    let mut list = vec_of(most)?;
    for value in values.take(most) {
        list.try_push(value)?;
    }
    Ok(list)
}

/// `Vec::with_capacity`, which may fail.
pub fn vec_of<T>(capacity: usize) -> Result<Vec<T>, NoMemory> {
    let mut vec = Vec::new();
    attempt(|| vec.try_reserve_exact(capacity))?;
    Ok(vec)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::runtime::faults::tests::NO_PAGES;

    #[test]
    #[cfg_attr(any(miri, sanitized), ignore = "the heap is not the allocator")]
    fn what_cannot_grow_stays_as_it_is() {
        let mut list: Vec<u64> = Vec::new();
        while list.capacity() * size_of::<u64>() < 1 << 17 || list.len() < list.capacity() {
            list.try_push(list.len() as u64).unwrap();
        }
        let before = list.len();
        NO_PAGES.set(true);
        let refused = (list.try_push(1), vec_of::<u64>(1 << 20).is_err());
        NO_PAGES.set(false);
        assert_eq!(refused, (Err(NoMemory), true));
        assert_eq!((list.len(), may_fail()), (before, false));
        list.try_push(1).unwrap();
    }
}
