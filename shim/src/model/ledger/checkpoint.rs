//! Writes the live set and the totals as they were when a checkpoint began, in slices, while the
//! program goes on allocating.
//!
//! A checkpoint starts a new epoch. An entry that was inserted in an older epoch belongs to it, and
//! is written by the slice that reaches it or by its free, whichever comes first. A total is copied
//! at its first change in the new epoch. An allocation that was inserted in the old epoch and whose
//! event reaches the file behind the begin is in the file twice: the reader recognises it by
//! address and time.

use super::figures::counts;
use super::totals::{DEVICES, Maker, SiteTotals, Sums, device_index};
use super::{Ledger, SHARDS, checkpoint_alloc};
use vramtrace_format::{Event, Kind, Listed};

/// The progress of a checkpoint. One thread at a time works with it.
pub struct Cursor {
    pub id: u32,
    shard: usize,
    sums: [Sums; DEVICES],
}

impl Cursor {
    pub fn new(id: u32) -> Cursor {
        Cursor { id, shard: 0, sums: [Sums::default(); DEVICES] }
    }
}

impl Ledger {
    /// Writes up to about `budget` records of the checkpoint that `begin_checkpoint` started.
    /// True: this was the last one, its end may follow.
    ///
    /// Several `StateTotals` may carry the same (site, stack): they add up.
    pub fn checkpoint_slice(
        &self,
        cursor: &mut Cursor,
        budget: usize,
        emit: &mut dyn FnMut(&Event),
    ) -> bool {
        let mut left = budget.max(1);
        while cursor.shard < SHARDS {
            if !self.shard_slice(cursor, &mut left, emit) {
                return false;
            }
            cursor.shard += 1;
        }
        for device in self.devices() {
            let counters = self.with_totals(device, cursor.sums[device_index(device)]);
            let counters = Event::Counters(counters);
            emit(&Event::StateEvent(Listed::new(cursor.id as u8, 0, &counters)));
        }
        self.devices.iter().for_each(|totals| totals.checkpoints.end());
        true
    }

    /// True: the shard is done.
    fn shard_slice(
        &self,
        cursor: &mut Cursor,
        left: &mut usize,
        emit: &mut dyn FnMut(&Event),
    ) -> bool {
        let id = cursor.id;
        let shard = &self.shards[cursor.shard];
        let mut inner = shard.lock();
        if inner.cursor_epoch != id {
            inner.cursor_epoch = id;
            inner.entry_cursor = 0;
            inner.sites.cursor = 0;
        }
        while inner.entry_cursor < inner.entries.capacity() {
            if *left == 0 {
                return false;
            }
            let index = inner.entry_cursor;
            inner.entry_cursor += 1;
            let Some(slot) = inner.entries.at_mut(index) else { continue };
            if slot.is_owed(id) {
                slot.written = id;
                emit(&checkpoint_alloc(id, slot.entry()));
                *left -= 1;
            }
        }
        while inner.sites.cursor < inner.sites.slots.capacity() {
            if *left == 0 {
                return false;
            }
            let index = inner.sites.cursor;
            inner.sites.cursor += 1;
            let Some(slot) = inner.sites.slots.at_mut(index) else { continue };
            let totals = slot.at(id);
            if slot.written != id && totals != Default::default() {
                slot.written = id;
                let Maker { site, stack, .. } = slot.maker();
                let SiteTotals { allocations, frees } = totals;
                let id = id as u8;
                emit(&Event::StateTotals { id, site, stack, allocations, frees });
                *left -= 1;
            }
        }
        for device in self.devices().map(device_index) {
            for kind in Kind::ALL.into_iter().filter(|kind| counts(*kind)) {
                if let Some(sum) = shard.sum(device, kind as usize) {
                    cursor.sums[device].add(sum.at(id));
                }
            }
        }
        true
    }
}
