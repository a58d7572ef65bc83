//! A shard: the allocations of some 2 MiB pages of addresses, their slab pages, their sums, all
//! under one short lock.

use super::entry::{Entry, EntrySlot};
use super::totals::{DEVICES, KINDS, KindSum, Maker, SiteSlot, Step, device_index};
use crate::runtime::hash_table::{NoMemory, Slot, Table, pages, prefetch, spread};
use crate::runtime::lock::Lock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};
use vramtrace_format::{DeviceId, Kind};

/// A 2 MiB page of addresses that holds small allocations, live ones or such that a call is about
/// to free: the driver has the page until the last of those calls has returned, whichever thread
/// took the last live one out.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct PageSlot {
    /// Address / 2 MiB, plus 1 so that 0 is the empty slot.
    page: u64,
    live: u32,
    /// Allocations taken out whose free has not returned.
    leaving: u32,
    /// Who opened the page: its bytes are booked there until no live one is left.
    device: u8,
    kind: u8,
}

// SAFETY: plain numbers; page 0 is the empty slot.
unsafe impl Slot for PageSlot {
    type Key = u64;

    fn is_empty(&self) -> bool {
        self.page == 0
    }

    fn key(&self) -> u64 {
        self.page - 1
    }

    fn hash(page: u64) -> u64 {
        spread(page)
    }
}

/// What each call changes (the lock, the lengths of the first tables) is on the first cache line.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct Shard {
    lock: Lock<Inner>,
    sums: SumTable,
    /// Where the entries are, or were; and how many slots there are, less one.
    slots: AtomicPtr<EntrySlot>,
    mask: AtomicUsize,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct Inner {
    pub entries: Table<EntrySlot>,
    pages: Table<PageSlot>,
    pub sites: Table<SiteSlot>,
    /// Where the running checkpoint goes on, and which one that is.
    pub entry_cursor: usize,
    pub site_cursor: usize,
    pub cursor_epoch: u32,
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Self {
        Lock::new(T::default())
    }
}

/// `DEVICES x KINDS` sums on pages that the kernel makes real when touched.
struct SumTable(*mut KindSum);

// SAFETY: atomics on pages that live as long as the table.
unsafe impl Send for SumTable {}
// SAFETY: as above.
unsafe impl Sync for SumTable {}

impl Default for SumTable {
    fn default() -> Self {
        SumTable(
            pages(DEVICES * KINDS * size_of::<KindSum>())
                .map_or(std::ptr::null_mut(), |p| p.cast()),
        )
    }
}

impl Shard {
    #[inline]
    pub fn lock(&self) -> crate::runtime::lock::Guard<'_, Inner> {
        self.lock.lock()
    }

    /// Begins to fetch the slot where an entry with this hash belongs, without the lock.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let (slots, mask) = (self.slots.load(Relaxed), self.mask.load(Relaxed));
        prefetch(slots.wrapping_add((hash >> 32) as usize & mask));
    }

    /// Has `prefetch` know where the entries are now.
    #[inline]
    pub fn note_place(&self, inner: &Inner) {
        let (slots, capacity) = inner.entries.place_in_memory();
        if self.slots.load(Relaxed) != slots {
            self.slots.store(slots, Relaxed);
            self.mask.store(capacity.wrapping_sub(1), Relaxed);
        }
    }

    /// `None` when the kernel gave no pages at the start: nothing is summed then.
    #[inline]
    pub fn sum(&self, device: DeviceId, kind: usize) -> Option<&KindSum> {
        let index = device_index(device) * KINDS + kind;
        // SAFETY: the index is in range; zero bytes are a valid KindSum.
        (!self.sums.0.is_null()).then(|| unsafe { &*self.sums.0.add(index) })
    }
}

impl Inner {
    /// Adds to the sums of a (site, stack); a table that cannot grow loses the figure, not the run.
    #[inline]
    pub fn site_add(&mut self, maker: Maker, step: Step, size: u64, epoch: u32, peak: (u32, bool)) {
        let index = match self.sites.find((maker.site, maker.stack)) {
            Some(index) => index,
            None => match self.sites.insert(SiteSlot::new(maker, epoch)) {
                Ok((index, grown)) => {
                    if grown {
                        self.site_cursor = 0;
                    }
                    index
                }
                Err(_) => return,
            },
        };
        if let Some(slot) = self.sites.at_mut(index) {
            slot.add(step, size, epoch, peak);
        }
    }

    /// For one more entry and its page.
    pub fn make_room(&mut self) -> Result<(), NoMemory> {
        if self.entries.make_room()? {
            self.entry_cursor = 0;
        }
        self.pages.make_room().map(|_| ())
    }

    /// False: the kernel gave no pages, the entry is not kept.
    #[inline]
    pub fn put(&mut self, entry: &Entry, epoch: u32, written: u32) -> bool {
        let make = || EntrySlot::new(entry, epoch, written);
        match self.entries.insert_with((entry.space, entry.key), make) {
            Ok((_, grown)) => {
                if grown {
                    self.entry_cursor = 0;
                }
                true
            }
            Err(_) => false,
        }
    }

    #[inline]
    pub fn take_at(&mut self, index: usize) -> Option<EntrySlot> {
        let mut lowest = usize::MAX;
        let slot = self.entries.remove_at(index, |to| lowest = lowest.min(to));
        // An entry that moved behind the cursor would be missed by the running checkpoint.
        self.entry_cursor = self.entry_cursor.min(lowest);
        slot
    }

    /// As `take_at`, for an entry that nobody wants to see.
    #[inline]
    pub fn drop_at(&mut self, index: usize) {
        let mut lowest = usize::MAX;
        self.entries.clear_at(index, |to| lowest = lowest.min(to));
        self.entry_cursor = self.entry_cursor.min(lowest);
    }

    /// One more small allocation in the page.
    pub fn open_page(&mut self, page: u64, device: DeviceId, kind: Kind) -> Opened {
        if let Some(slot) = self.pages.get_mut(page) {
            if slot.live == 0 {
                // Its bytes were taken off the one who opened it; they are booked anew.
                (slot.device, slot.kind) = (device.0, kind as u8);
            }
            slot.live = slot.live.saturating_add(1);
            return Opened { booked: slot.live == 1, taken: false };
        }
        let (device, kind) = (device.0, kind as u8);
        let slot = PageSlot { page: page + 1, live: 1, leaving: 0, device, kind };
        // Where it is not kept it cannot be booked, for nobody would take it off again; the driver
        // has taken it all the same.
        Opened { booked: self.pages.insert(slot).is_ok(), taken: true }
    }

    /// One less, whose free is under way. The page's owner when no live one is left.
    pub fn close_page(&mut self, page: u64) -> Option<(DeviceId, Kind)> {
        let slot = self.pages.get_mut(page)?;
        slot.live = slot.live.saturating_sub(1);
        slot.leaving = slot.leaving.saturating_add(1);
        let owner = (DeviceId(slot.device), Kind::from_u8(slot.kind).unwrap_or(Kind::Device));
        (slot.live == 0).then_some(owner)
    }

    /// A free has returned. True: it was the last, the driver has the page no more.
    pub fn leave_page(&mut self, page: u64) -> bool {
        let Some(slot) = self.pages.get_mut(page) else { return false };
        slot.leaving = slot.leaving.saturating_sub(1);
        let gone = slot.live == 0 && slot.leaving == 0;
        if gone {
            self.pages.remove(page);
        }
        gone
    }
}

/// What a small allocation did to its page.
pub(super) struct Opened {
    /// It is the first live one: the page counts among the live bytes from now on.
    pub booked: bool,
    /// The driver took the page for it; false while a free of an earlier one is still under way.
    pub taken: bool,
}
