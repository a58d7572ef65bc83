//! A shard: the allocations of some 2 MiB pages of addresses, their slab pages and their sums, under
//! one lock that is held briefly.

use super::entry::{Entry, EntrySlot};
use super::totals::{DEVICES, KindSum, SiteSlot};
use crate::runtime::hash_table::{NoMemory, Slot, Table, prefetch, spread};
use crate::runtime::lock::Lock;
use crate::runtime::zero_pages::ZeroPages;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};
use vramtrace_format::{DeviceId, Kind};

/// A 2 MiB page of addresses with small allocations, live or being freed. The driver holds the page
/// until the last of those frees has returned.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct PageSlot {
    /// Address / 2 MiB, plus 1 so that 0 is the empty slot.
    page: u64,
    live: u32,
    /// Allocations that were removed and whose free has not returned.
    leaving: u32,
    /// The device whose sum has the page's bytes until no allocation in it is live.
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

/// What each call reads or changes (the sums' address, the lock, the entries, the sites) is on the first cache line.
#[repr(C, align(128))]
pub(super) struct Shard {
    sums: ZeroPages<[[KindSum; STRIDE]; DEVICES]>,
    lock: Lock<Inner>,
    /// Address of the entries (it may be stale), and the number of slots less one.
    slots: AtomicPtr<EntrySlot>,
    mask: AtomicUsize,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct Inner {
    pub entries: Table<EntrySlot>,
    pub sites: SiteTable,
    pages: Table<PageSlot>,
    /// The index at which the running checkpoint continues, and its number.
    pub entry_cursor: usize,
    pub cursor_epoch: u32,
}

/// The sums by (site, stack).
#[derive(Default)]
#[repr(C)]
pub(super) struct SiteTable {
    pub slots: Table<SiteSlot>,
    /// The index at which the running checkpoint continues.
    pub cursor: usize,
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Self {
        Lock::new(T::default())
    }
}

/// Sums of a device: more than kinds, so that an index is a shift.
const STRIDE: usize = 16;
const _: () = assert!(super::KINDS <= STRIDE);

impl Default for Shard {
    fn default() -> Shard {
        let (slots, mask) = (AtomicPtr::default(), AtomicUsize::default());
        Shard { sums: ZeroPages::new(), lock: Lock::default(), slots, mask }
    }
}

impl Shard {
    #[inline]
    pub fn lock(&self) -> crate::runtime::lock::Guard<'_, Inner> {
        self.lock.lock()
    }

    /// Prefetches the slot of an entry with this hash, without the lock.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let (slots, mask) = (self.slots.load(Relaxed), self.mask.load(Relaxed));
        prefetch(slots.wrapping_add((hash >> 32) as usize & mask));
    }

    /// Stores the address of the entries for `prefetch`.
    #[inline]
    pub fn note_place(&self, inner: &Inner) {
        let (slots, capacity) = inner.entries.place_in_memory();
        if self.slots.load(Relaxed) != slots {
            self.slots.store(slots, Relaxed);
            self.mask.store(capacity.wrapping_sub(1), Relaxed);
        }
    }

    /// `device_at`: a [`super::device_index`]. `None` if the kernel gave no pages at the start: then there are no sums.
    #[inline]
    pub fn sum(&self, device_at: usize, kind: usize) -> Option<&KindSum> {
        Some(&self.sums.get()?[device_at][kind % STRIDE])
    }
}

impl SiteTable {
    /// The sums of a (site, stack). A table that cannot grow loses the figure, not the run.
    #[inline(always)]
    pub fn of(&mut self, entry: &Entry, epoch: u32) -> Option<&mut SiteSlot> {
        let maker = entry.maker();
        // The borrow of what was found would last until the end, also where nothing was.
        let found = self.slots.home_of(SiteSlot::hash(maker), maker).map(std::ptr::from_mut);
        match found {
            // SAFETY: of this table, which did not change meanwhile.
            Some(slot) => Some(unsafe { &mut *slot }),
            None => self.find_or_add(maker, entry.device, entry.kind, epoch),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_or_add(
        &mut self,
        maker: u64,
        device: DeviceId,
        kind: Kind,
        epoch: u32,
    ) -> Option<&mut SiteSlot> {
        if let Some(index) = self.slots.find(maker) {
            return self.slots.at_mut(index);
        }
        let (index, grown) = self.slots.insert(SiteSlot::new(maker, device, kind, epoch)).ok()?;
        if grown {
            self.cursor = 0;
        }
        self.slots.at_mut(index)
    }
}

impl Inner {
    /// Makes room for one more entry and its page.
    pub fn make_room(&mut self) -> Result<(), NoMemory> {
        if self.entries.make_room()? {
            self.entry_cursor = 0;
        }
        self.pages.make_room().map(|_| ())
    }

    /// As filling a vacancy, where the table may have to grow.
    pub fn put(&mut self, entry: &Entry, epoch: u32, written: u32) -> Result<(), NoMemory> {
        if self.entries.insert(EntrySlot::new(entry, epoch, written))?.1 {
            self.entry_cursor = 0;
        }
        Ok(())
    }

    /// Removes the entry in this slot.
    #[inline]
    pub fn take_at(&mut self, index: usize) {
        let cursor = &mut self.entry_cursor;
        // An entry that moved behind the cursor would be missed by the running checkpoint.
        self.entries.clear_at(index, |to| *cursor = to.min(*cursor));
    }

    /// Adds a small allocation to the page.
    pub fn open_page(&mut self, page: u64, device: DeviceId, kind: Kind) -> Opened {
        if let Some(slot) = self.pages.get_mut(page) {
            if slot.live == 0 {
                // Its bytes were subtracted when the last live one went; they are added again.
                (slot.device, slot.kind) = (device.0, kind as u8);
            }
            slot.live = slot.live.saturating_add(1);
            return Opened { counted: slot.live == 1, taken: false };
        }
        let (device, kind) = (device.0, kind as u8);
        let slot = PageSlot { page: page + 1, live: 1, leaving: 0, device, kind };
        // Without host memory for the page its bytes are not added, since they would never be
        // subtracted. The driver has taken the page in any case.
        Opened { counted: self.pages.insert(slot).is_ok(), taken: true }
    }

    /// Removes a small allocation that is being freed. Returns the page's owner if no live one is left.
    pub fn close_page(&mut self, page: u64) -> Option<(DeviceId, Kind)> {
        let slot = self.pages.get_mut(page)?;
        slot.live = slot.live.saturating_sub(1);
        slot.leaving = slot.leaving.saturating_add(1);
        let owner = (DeviceId(slot.device), Kind::from_u8(slot.kind).unwrap_or(Kind::Device));
        (slot.live == 0).then_some(owner)
    }

    /// A free has returned. True: it was the last one, and the driver has freed the page.
    #[inline(always)]
    pub fn leave_page(&mut self, page: u64) -> bool {
        let Some(slot) = self.pages.get_mut(page) else { return false };
        slot.leaving = slot.leaving.saturating_sub(1);
        let freed = slot.live == 0 && slot.leaving == 0;
        if freed {
            self.pages.remove(page);
        }
        freed
    }
}

/// The effect of a small allocation on its page.
pub(super) struct Opened {
    /// It is the first live one: the page's bytes become live.
    pub counted: bool,
    /// The driver took the page for it; false while the free of an earlier one is in progress.
    pub taken: bool,
}
