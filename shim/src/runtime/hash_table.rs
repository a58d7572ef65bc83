//! A hash table on pages from the kernel: open addressing, linear probing, removal by moving back
//! (no tombstones). It never calls the program's malloc. Not synchronised: a lock guards it.

use crate::runtime::faults::pages_granted;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a table holds.
///
/// # Safety
/// All bytes zero must be a valid value for which `is_empty` is true.
pub unsafe trait Slot: Copy {
    type Key: Copy + PartialEq;
    fn is_empty(&self) -> bool;
    fn key(&self) -> Self::Key;
    fn hash(key: Self::Key) -> u64;
}

/// A slot with a number as its key: a handle, an address, a fingerprint.
#[derive(Clone, Copy)]
pub struct KeyedSlot {
    pub key: u64,
    /// 0: it is empty.
    pub value: u32,
}

// SAFETY: numbers, of which zero bytes are an empty slot.
unsafe impl Slot for KeyedSlot {
    type Key = u64;

    #[inline]
    fn is_empty(&self) -> bool {
        self.value == 0
    }

    #[inline]
    fn key(&self) -> u64 {
        self.key
    }

    #[inline]
    fn hash(key: u64) -> u64 {
        spread(key)
    }
}

/// Hashes a number to 64 bits, of which the high ones are well distributed.
#[inline]
pub fn spread(value: u64) -> u64 {
    (value ^ (value >> 29)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

pub struct Table<T: Slot> {
    /// Before the first insert one empty slot of [`NO_SLOTS`], so that a search needs no test for it.
    slots: *mut T,
    /// Slots less one; their number is a power of two.
    mask: usize,
    len: u32,
    /// Most values before the table grows; 0 before the first insert.
    most: u32,
    owns: PhantomData<T>,
}

#[repr(C, align(128))]
struct NoSlots([u64; 32]);

static NO_SLOTS: NoSlots = NoSlots([0; 32]);

// SAFETY: the pages belong to the table alone.
unsafe impl<T: Slot + Send> Send for Table<T> {}

/// The kernel gave no pages; the table is unchanged.
#[derive(Debug, PartialEq, Eq)]
pub struct NoMemory;

/// Set while some table may lack room for a value that must be stored: at the start, and after a table
/// could not grow. The thread that makes room clears it.
pub static CROWDED: AtomicBool = AtomicBool::new(true);

const FIRST_CAPACITY: usize = 64;
/// Tables of at least this many slots grow at a load of 3/4, smaller ones at 1/2.
const ROOMY: usize = 1 << 14;

/// Prefetches a cache line that will be written. Any address is permitted.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    let _ = at;
    // SAFETY: a prefetch accesses no memory that the program can observe, and permits any address.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast())
    };
    // SAFETY: a prefetch accesses no memory that the program can observe, and permits any address.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) at,
            options(nostack, readonly, preserves_flags))
    };
}

impl<T: Slot> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Slot> Table<T> {
    pub const fn new() -> Self {
        const { assert!(size_of::<T>() <= size_of::<NoSlots>() && align_of::<T>() <= 128) };
        let slots = (&raw const NO_SLOTS).cast_mut().cast();
        Table { slots, mask: 0, len: 0, most: 0, owns: PhantomData }
    }

    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of slots, to be walked with [`Table::at`].
    #[inline]
    pub fn capacity(&self) -> usize {
        if self.most == 0 { 0 } else { self.mask + 1 }
    }

    #[inline]
    fn slot(&self, index: usize) -> &T {
        debug_assert!(index <= self.mask);
        // SAFETY: index is at most the mask; zero pages are valid empty slots.
        unsafe { &*self.slots.wrapping_add(index) }
    }

    #[inline]
    fn slot_mut(&mut self, index: usize) -> &mut T {
        debug_assert!(index < self.capacity());
        // SAFETY: index is below the capacity; zero pages are valid empty slots.
        unsafe { &mut *self.slots.wrapping_add(index) }
    }

    /// The value in slot `index`, if there is one.
    #[inline]
    pub fn at(&self, index: usize) -> Option<&T> {
        let slot = self.slot(index);
        (!slot.is_empty()).then_some(slot)
    }

    #[inline]
    pub fn at_mut(&mut self, index: usize) -> Option<&mut T> {
        let slot = self.slot_mut(index);
        (!slot.is_empty()).then_some(slot)
    }

    #[inline]
    fn home(&self, key: T::Key) -> usize {
        (T::hash(key) >> 32) as usize & self.mask
    }

    #[inline]
    pub fn find(&self, key: T::Key) -> Option<usize> {
        self.find_by(T::hash(key), |slot| slot.key() == key)
    }

    /// As `find`, by hash and comparison.
    #[inline]
    pub fn find_by(&self, hash: u64, same: impl Fn(&T) -> bool) -> Option<usize> {
        let index = (hash >> 32) as usize & self.mask;
        match self.at(index) {
            Some(slot) if same(slot) => Some(index),
            None => None,
            Some(_) => self.find_behind(index, same),
        }
    }

    /// Out of line, as where a vacancy is looked for: a call touches less code where the first slot is the one.
    #[cold]
    #[inline(never)]
    fn find_behind(&self, mut index: usize, same: impl Fn(&T) -> bool) -> Option<usize> {
        // Terminates: at most 7/8 of the slots are used.
        loop {
            index = (index + 1) & self.mask;
            match self.at(index) {
                None => return None,
                Some(slot) if same(slot) => return Some(index),
                Some(_) => {}
            }
        }
    }

    /// The value of this key, if it is in the first slot for it. The key is not that of an empty slot.
    #[inline]
    pub fn home_of(&mut self, hash: u64, key: T::Key) -> Option<&mut T> {
        let index = (hash >> 32) as usize & self.mask;
        // A reference that may be written is made of a used slot only.
        if self.slot(index).key() == key { Some(self.slot_mut(index)) } else { None }
    }

    /// Address and number of the slots.
    pub fn place_in_memory(&self) -> (*mut T, usize) {
        (self.slots, self.mask + 1)
    }

    pub fn get(&self, key: T::Key) -> Option<&T> {
        self.find(key).and_then(|index| self.at(index))
    }

    pub fn get_mut(&mut self, key: T::Key) -> Option<&mut T> {
        self.find(key).and_then(|index| self.at_mut(index))
    }

    /// Adds a value whose key is not there yet. `Ok((index, grown))`: when it grew, every index
    /// from before is void.
    pub fn insert(&mut self, value: T) -> Result<(usize, bool), NoMemory> {
        let mut grown = false;
        if self.len >= self.most {
            grown = self.grow_or_crowd()?;
        }
        Ok((self.place(value), grown))
    }

    /// The empty slot for a value with this hash, for [`Table::fill`]. `None`: the value is there (`same` is true for it), or
    /// the table must grow first.
    #[inline]
    pub fn vacancy(&self, hash: u64, same: impl Fn(&T) -> bool) -> Option<usize> {
        if self.len >= self.most {
            return None;
        }
        let index = (hash >> 32) as usize & self.mask;
        if self.at(index).is_none() { Some(index) } else { self.vacancy_from(index, same) }
    }

    #[cold]
    #[inline(never)]
    fn vacancy_from(&self, mut index: usize, same: impl Fn(&T) -> bool) -> Option<usize> {
        while let Some(slot) = self.at(index) {
            if same(slot) {
                return None;
            }
            index = (index + 1) & self.mask;
        }
        Some(index)
    }

    /// Stores a value in the slot that [`Table::vacancy`] returned for it.
    #[inline]
    pub fn fill(&mut self, index: usize, value: T) {
        debug_assert!(self.at(index).is_none());
        *self.slot_mut(index) = value;
        self.len += 1;
    }

    /// Makes room for one more value, besides the room that is kept for calls in progress. True: the
    /// table grew, and all earlier indices are invalid.
    pub fn make_room(&mut self) -> Result<bool, NoMemory> {
        if self.len < self.most { Ok(false) } else { self.grow().map(|()| true) }
    }

    /// For a value that must be stored: if the table cannot grow, it is filled up to 7/8. True: the
    /// table grew.
    #[cold]
    fn grow_or_crowd(&mut self) -> Result<bool, NoMemory> {
        match self.grow() {
            Ok(()) => Ok(true),
            Err(NoMemory) => {
                CROWDED.store(true, Relaxed);
                let fits = self.len() < self.capacity() - self.capacity() / 8;
                if fits { Ok(false) } else { Err(NoMemory) }
            }
        }
    }

    fn place(&mut self, value: T) -> usize {
        let mut index = self.home(value.key());
        while self.at(index).is_some() {
            index = (index + 1) & self.mask;
        }
        self.fill(index, value);
        index
    }

    /// Removes the value from slot `index`, which holds one. Values behind it may move to lower slots: `moved` is called with
    /// each slot that changed.
    #[inline]
    pub fn clear_at(&mut self, index: usize, moved: impl FnMut(usize)) {
        let hole = match self.at((index + 1) & self.mask) {
            None => index,
            Some(_) => self.move_back(index, moved),
        };
        // SAFETY: zero bytes are a valid empty slot.
        *self.slot_mut(hole) = unsafe { MaybeUninit::zeroed().assume_init() };
        self.len -= 1;
    }

    /// Moves values behind a slot into it, and into the slots that they leave. Returns the last slot that is left.
    #[inline(never)]
    fn move_back(&mut self, index: usize, mut moved: impl FnMut(usize)) -> usize {
        let mask = self.mask;
        let mut hole = index;
        let mut next = index;
        loop {
            next = (next + 1) & mask;
            let Some(slot) = self.at(next) else { return hole };
            let home = self.home(slot.key());
            // The slot may move into the hole if its home is not after the hole on its way here.
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                *self.slot_mut(hole) = *slot;
                moved(hole);
                hole = next;
            }
        }
    }

    pub fn remove(&mut self, key: T::Key) -> Option<T> {
        let index = self.find(key)?;
        let taken = *self.slot(index);
        self.clear_at(index, |_| ());
        Some(taken)
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.capacity()).filter_map(|index| self.at(index))
    }

    #[cold]
    fn grow(&mut self) -> Result<(), NoMemory> {
        let capacity = (2 * self.capacity()).max(FIRST_CAPACITY);
        // Small tables have a low load, so that most values are in their first slot.
        let most = if capacity < ROOMY { capacity / 2 } else { capacity / 4 * 3 };
        // A place is chosen by 32 bits of the hash.
        let most = u32::try_from(most).map_err(|_| NoMemory)?;
        let slots = pages(capacity * size_of::<T>())?.cast();
        let larger = Table { slots, mask: capacity - 1, len: 0, most, owns: PhantomData };
        let smaller = std::mem::replace(self, larger);
        for value in smaller.iter() {
            self.place(*value);
        }
        Ok(())
    }
}

impl<T: Slot> Drop for Table<T> {
    fn drop(&mut self) {
        if self.most > 0 {
            unmap(self.slots.cast(), self.capacity() * size_of::<T>());
        }
    }
}

/// Fresh zero pages from the kernel, private to this process.
pub fn pages(bytes: usize) -> Result<*mut u8, NoMemory> {
    if !pages_granted("pages") {
        return Err(NoMemory);
    }
    // Miri knows no other flags.
    let flags = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };
    // SAFETY: a new anonymous mapping touches nothing that exists.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED { Err(NoMemory) } else { Ok(at.cast()) }
}

pub fn unmap(at: *mut u8, bytes: usize) {
    // SAFETY: the range came from `pages` and nothing points into it any more.
    unsafe { libc::munmap(at.cast(), bytes) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::runtime::faults::tests::NO_PAGES;
    use std::collections::HashMap;

    #[derive(Clone, Copy)]
    struct Pair {
        key: u64,
        value: u64,
    }
    // SAFETY: zero is empty.
    unsafe impl Slot for Pair {
        type Key = u64;
        fn is_empty(&self) -> bool {
            self.key == 0
        }
        fn key(&self) -> u64 {
            self.key
        }
        fn hash(key: u64) -> u64 {
            // Bad on purpose: long runs, so that removal has something to move.
            (key / 4) << 32
        }
    }

    #[test]
    fn it_is_a_map() {
        let mut table = Table::<Pair>::new();
        let mut model = HashMap::new();
        let mut random = 1u64;
        let (steps, keys) = if cfg!(miri) { (300, 80) } else { (50_000, 500) };
        for _ in 0..steps {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = (random >> 40) % keys + 1;
            if random >> 63 == 0 {
                let vacancy = table.vacancy(Pair::hash(key), |pair| pair.key == key);
                match (table.get_mut(key), vacancy) {
                    (Some(pair), None) => pair.value = random,
                    (None, Some(at)) => table.fill(at, Pair { key, value: random }),
                    (None, None) => assert!(table.insert(Pair { key, value: random }).unwrap().1),
                    (Some(_), Some(_)) => panic!("a place for a value that is there"),
                }
                model.insert(key, random);
            } else {
                assert_eq!(table.remove(key).map(|p| p.value), model.remove(&key));
            }
            assert_eq!(table.len(), model.len());
        }
        for key in 1..=keys {
            assert_eq!(table.get(key).map(|p| p.value), model.get(&key).copied());
        }
        assert_eq!(table.iter().count(), model.len());
    }

    #[test]
    fn without_pages_it_takes_a_few_more_values_and_says_so() {
        let mut table = Table::<Pair>::new();
        let first = |key| Pair { key, value: key };
        for key in 1..=32 {
            table.insert(first(key)).unwrap();
        }
        NO_PAGES.set(true);
        assert_eq!(table.make_room(), Err(NoMemory));
        let more = (33..).take_while(|key| table.insert(first(*key)).is_ok()).count();
        NO_PAGES.set(false);
        assert_eq!((more, table.capacity()), (24, 64));
        assert!(CROWDED.load(Relaxed));
        assert!((1..=56).all(|key| table.get(key).is_some()) && table.get(57).is_none());
        assert_eq!((table.make_room(), table.capacity()), (Ok(true), 128));
    }

    #[test]
    fn moves_are_reported() {
        let mut table = Table::<Pair>::new();
        for key in [4, 5, 6] {
            table.insert(Pair { key, value: key }).unwrap();
        }
        let mut lowest = usize::MAX;
        let at = table.find(4).unwrap();
        table.clear_at(at, |to| lowest = lowest.min(to));
        assert_eq!(lowest, at);
        assert!(table.get(5).is_some() && table.get(6).is_some() && table.get(4).is_none());
    }
}
