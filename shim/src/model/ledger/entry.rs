//! One live allocation, as the ledger keeps it: 64 bytes, one cache line.

use crate::runtime::hash_table::{Slot, spread};
use std::mem::{MaybeUninit, offset_of};
use vramtrace_format::physical::{self, Physical};
use vramtrace_format::{Alloc, ContextId, DeviceId, Kind, SiteId, Space, StackId, sampling};

/// In the order in which its shard's table has it, so that it is copied there and back as it is.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Entry {
    /// Address, or the number that stands for it in `space`.
    pub key: u64,
    /// Requested bytes (real pitch x height; for arrays, what their blocks take).
    pub size: u64,
    /// Raw stream handle of the allocating call (2 = per-thread default), 0 where there is none. Of an array: the bytes of an
    /// element.
    pub stream: u64,
    pub time_ns: u64,
    pub site: SiteId,
    pub stack: StackId,
    /// Opens of an import that share this address; 1 for everything else.
    pub refs: u32,
    /// Its number among the pools ([`crate::model::pools`]); 0: none.
    pub pool: u32,
    pub context: ContextId,
    pub kind: Kind,
    pub space: Space,
    pub device: DeviceId,
    /// The base-2 logarithm of the rate of samples of which this is one; 0: it stands for itself only.
    pub sampled: u8,
}

impl Entry {
    /// An entry with everything unknown but the essentials.
    #[inline(always)]
    pub fn new(kind: Kind, key: u64, size: u64, device: DeviceId) -> Entry {
        Entry {
            key,
            space: kind.space(),
            kind,
            device,
            context: ContextId(0),
            pool: 0,
            size,
            stream: 0,
            site: SiteId(0),
            stack: StackId(0),
            time_ns: 0,
            refs: 1,
            sampled: 0,
        }
    }

    #[inline]
    pub fn physical(&self) -> Physical {
        physical::physical(self.kind, self.size)
    }

    /// The rate of samples in bytes; 0: it is none.
    pub fn rate(&self) -> u64 {
        if self.sampled == 0 { 0 } else { 1 << self.sampled }
    }

    /// What it adds to sums by stack: bytes and number, those of the allocations that it stands for.
    #[inline]
    pub fn weighed(&self) -> [u64; 2] {
        match self.sampled {
            0 => [self.size, 1],
            sampled => weighed_sample(self.size, sampled),
        }
    }

    /// Its site and stack in one word, as they lie in memory; never 0, since stacks are fewer than 2^31.
    #[inline]
    pub(super) fn maker(&self) -> u64 {
        u64::from(self.site.0) | u64::from(self.stack.0) << 32 | 1 << 63
    }

    #[inline]
    pub(super) fn is(&self, space: Space, key: u64) -> bool {
        self.key == key && self.space == space
    }

    #[inline]
    pub fn alloc(&self) -> Alloc {
        Alloc {
            key: self.key,
            space: self.space,
            size: self.size,
            site: self.site,
            stack: self.stack,
            requested: None,
        }
    }
}

/// An entry in its shard's table, with the fields that a running checkpoint needs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct EntrySlot {
    /// All zero in an empty slot; no kind is 0.
    entry: MaybeUninit<Entry>,
    /// The latest checkpoint when the entry was created. The entry belongs to every later one.
    pub epoch: u32,
    /// Last checkpoint that has this entry.
    pub written: u32,
}

// SAFETY: zero bytes are a valid slot, whose kind is 0: empty.
unsafe impl Slot for EntrySlot {
    type Key = (Space, u64);

    #[inline]
    fn is_empty(&self) -> bool {
        // SAFETY: a byte of the slot, which is a number whatever it is: slots are made of zeros, or of an entry.
        unsafe { *self.entry.as_ptr().cast::<u8>().wrapping_add(offset_of!(Entry, kind)) == 0 }
    }

    #[inline]
    fn key(&self) -> (Space, u64) {
        (self.entry().space, self.entry().key)
    }

    #[inline]
    fn hash((_, key): (Space, u64)) -> u64 {
        hash(key)
    }
}

/// Of the key alone: few keys are in two spaces. Its highest bits choose the shard, lower ones the place there.
#[inline]
pub(super) fn hash(key: u64) -> u64 {
    spread(key)
}

impl EntrySlot {
    #[inline]
    pub fn new(entry: &Entry, epoch: u32, written: u32) -> Self {
        EntrySlot { entry: MaybeUninit::new(*entry), epoch, written }
    }

    /// A table hands out no empty slot.
    #[inline]
    pub fn entry(&self) -> &Entry {
        debug_assert!(!self.is_empty());
        // SAFETY: the slot is not empty, so an entry was stored in it.
        unsafe { self.entry.assume_init_ref() }
    }

    /// Whether checkpoint `id` has to have this entry, and does not yet.
    #[inline]
    pub fn is_owed(&self, id: u32) -> bool {
        self.epoch < id && self.written != id
    }

    pub fn set_refs(&mut self, refs: u32) {
        self.entry.write(Entry { refs, ..*self.entry() });
    }
}

#[cold]
fn weighed_sample(size: u64, sampled: u8) -> [u64; 2] {
    let weight = sampling::weight(size, 1 << sampled);
    [sampling::weigh(size, weight), sampling::weigh(1, weight)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_one_cache_line_and_keeps_everything() {
        assert_eq!(size_of::<EntrySlot>(), 64);
        let entry = Entry {
            context: ContextId(7),
            pool: 9,
            stream: 0x77,
            site: SiteId(3),
            stack: StackId(4),
            time_ns: 5,
            refs: 6,
            sampled: 20,
            ..Entry::new(Kind::Array, 0xabc, 99, DeviceId::UNKNOWN)
        };
        let mut slot = EntrySlot::new(&entry, 1, 0);
        assert_eq!(*slot.entry(), entry);
        slot.set_refs(7);
        assert_eq!(*slot.entry(), Entry { refs: 7, ..entry });
    }
}
