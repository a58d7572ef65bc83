//! Events of a framework's cache: its blocks, its totals, and its out-of-memory errors.

use vramtrace_format::{BlockChange, DeviceId, Space, StackId, Stamped};

use super::cache::{CacheOomAt, Change, ReportedTotals};
use super::live::{Key, Live};
use super::mapping::signed;
use super::observer::{AllocCause, FreeCause, Observer};
use super::{Certainty, Replay};

impl Replay {
    /// Adds a live block to its segment and to the sums.
    pub(super) fn count_block(
        &mut self,
        at: &Stamped,
        key: Key,
        live: &Live,
        how: AllocCause,
        observer: &mut impl Observer,
    ) {
        let state = &mut self.state;
        state.cache.begin(&state.live, &state.space);
        state.cache.pending.remove(&key.number);
        let placed = state.cache.place(key.number, live.size, live.device, &state.space);
        let absorbed = match how {
            AllocCause::Checkpoint => 0,
            _ => state.cache.refusals.block_made(at.thread, live.device),
        };
        let device = state.devices.of(live.device);
        let grown = placed.grown;
        let sums = &mut device.cache;
        sums.sampled |= state.sampling.is_some();
        sums.add_block(live.weigh(live.size), live.weigh(1), !placed.known);
        sums.paused = sums.paused.saturating_add(placed.paused);
        sums.reserve(grown.into());
        sums.pause_reserved(placed.grown_paused.into());
        sums.refusals_recovered = sums.refusals_recovered.saturating_add(absorbed);
        sums.went_on |= how != AllocCause::Checkpoint;
        if grown > 0 {
            device.move_peak(at.time_ns, at.offset);
        }
        if grown > 0 {
            self.tell_segments(at, observer);
        }
        observer.on_block_alloc(at, key.number, live, how);
        if placed.paused > 0 {
            observer.on_block_paused(at, live.device, key.number, signed(placed.paused));
        }
        self.notify_device_change(at, live.device, observer);
    }

    /// Removes a block, which left the live set, from its segment and from the sums.
    pub(super) fn uncount_block(
        &mut self,
        at: &Stamped,
        key: Key,
        live: &Live,
        how: FreeCause,
        observer: &mut impl Observer,
    ) {
        let state = &mut self.state;
        let any = state.devices.get(&live.device).is_some_and(|device| device.cache.paused > 0);
        let paused = match any {
            true => state.cache.paused_of(key.number, live.size),
            false => 0,
        };
        let outside = state.cache.displace(key.number).unwrap_or(0);
        let sums = &mut self.device(live.device).cache;
        sums.remove_block(live, outside, paused);
        sums.frees = sums.frees.saturating_add(live.weigh(1));
        observer.on_block_free(at, key.number, live, how);
        self.notify_device_change(at, live.device, observer);
    }

    /// Adds driver memory that was allocated, or that a checkpoint lists.
    pub(super) fn memory_added(
        &mut self,
        at: &Stamped,
        key: Key,
        live: &Live,
        observer: &mut impl Observer,
    ) {
        if key.space == Space::Device {
            let waiting = self.state.cache.came(key, live, &self.state.live);
            self.place_again(at, &waiting, observer);
        }
    }

    /// Removes an allocation that has ended, with the blocks in it.
    pub(super) fn allocation_removed(
        &mut self,
        at: &Stamped,
        start: u64,
        end: u64,
        how: FreeCause,
        observer: &mut impl Observer,
    ) {
        let gone = self.state.cache.allocation_removed(start);
        if gone.blocks {
            self.end_blocks(at, start, end, how, observer);
        }
        self.apply_changes(at, gone.change, observer);
    }

    /// Removes mapped memory that was freed, with the blocks in it.
    pub(super) fn mapping_went(
        &mut self,
        at: &Stamped,
        start: u64,
        end: u64,
        observer: &mut impl Observer,
    ) {
        if !self.state.cache.is_used() {
            return;
        }
        if self.state.cache.may_hold_blocks(start, end) {
            self.end_blocks(at, start, end, FreeCause::WithMemory, observer);
        }
        let changes = self.state.cache.went(start, end, &self.state.live);
        self.apply_changes(at, changes, observer);
    }

    /// Ends the blocks that begin in `[start, end)`.
    pub(super) fn end_blocks(
        &mut self,
        at: &Stamped,
        start: u64,
        end: u64,
        how: FreeCause,
        observer: &mut impl Observer,
    ) -> Vec<(Key, Live)> {
        if !self.state.cache.is_used() {
            return Vec::new();
        }
        let inside = |(address, _): &(u64, &Live)| (start..end).contains(address);
        let mut blocks: Vec<u64> = self.state.live.blocks().filter(inside).map(|b| b.0).collect();
        blocks.sort_unstable();
        if self.state.live_is_known() {
            self.state.inconsistencies.blocks_without_memory += blocks.len() as u64;
        }
        let mut ended = Vec::new();
        for key in blocks.into_iter().map(Key::block) {
            ended.extend(self.state.live.get(key).map(|live| (key, *live)));
            self.end(at, key, how, observer);
        }
        ended
    }

    pub(super) fn apply_changes(
        &mut self,
        at: &Stamped,
        changes: impl IntoIterator<Item = Change>,
        observer: &mut impl Observer,
    ) {
        for Change { device, reserved, paused } in changes {
            let sums = &mut self.device(device).cache;
            sums.reserve(reserved);
            sums.pause_reserved(paused);
            if reserved > 0 || paused < 0 {
                self.tell_segments(at, observer);
            }
            self.notify_device_change(at, device, observer);
        }
    }

    /// Places blocks that were recorded before their memory.
    pub(super) fn place_again(
        &mut self,
        at: &Stamped,
        waiting: &[(u64, u64)],
        observer: &mut impl Observer,
    ) {
        let state = &mut self.state;
        for (address, size) in waiting {
            let key = Key { space: Space::Block, number: *address };
            let device = state.live.get(key).map_or(DeviceId::UNKNOWN, |live| live.device);
            let placed = state.cache.place(*address, *size, device, &state.space);
            let sums = &mut state.devices.of(device).cache;
            sums.reserve(placed.grown.into());
            sums.pause_reserved(placed.grown_paused.into());
            sums.paused = sums.paused.saturating_add(placed.paused);
            if placed.known {
                sums.outside = sums.outside.saturating_sub(*size);
            }
            if placed.paused > 0 {
                observer.on_block_paused(at, device, *address, signed(placed.paused));
            }
        }
        if !waiting.is_empty() {
            self.tell_segments(at, observer);
        }
    }

    fn tell_segments(&mut self, at: &Stamped, observer: &mut impl Observer) {
        for start in self.state.cache.take_marked() {
            let key = match self.state.space.at(start) {
                Some(mapping) => Key::object(mapping.object),
                None => Key { space: Space::Device, number: start },
            };
            if let Some(live) = self.state.live.get(key) {
                observer.on_segment(at, key, live);
            }
        }
    }

    /// Applies a change of a block: after its free, it waits for other streams or becomes reusable.
    pub(super) fn change_block(
        &mut self,
        at: &Stamped,
        address: u64,
        change: BlockChange,
        observer: &mut impl Observer,
    ) {
        let key = Key { space: Space::Block, number: address };
        let cache = &mut self.state.cache;
        match change {
            BlockChange::Requested(_) => {}
            BlockChange::Pending => {
                if let Some(live) = self.freed.find(key) {
                    cache.pending.insert(address, live);
                }
            }
            BlockChange::Reusable => {
                cache.pending.remove(&address);
            }
        }
        observer.on_block_change(at, address, change);
    }

    pub(super) fn cache_state(
        &mut self,
        at: &Stamped,
        device: DeviceId,
        reported: ReportedTotals,
        observer: &mut impl Observer,
    ) {
        let sampled = self.state.sampling.is_some();
        let known =
            self.state.certainty == Certainty::Whole || self.state.certainty == Certainty::Resumed;
        let sums = &mut self.device(device).cache;
        sums.sampled |= sampled;
        match known {
            true => sums.take_reported(reported),
            false => sums.reported_by_torch = Some(reported),
        }
        if sampled && known {
            self.notify_device_change(at, device, observer);
        }
    }

    pub(super) fn on_cache_oom(
        &mut self,
        at: &Stamped,
        device: DeviceId,
        size: u64,
        (allocated, reserved): (u64, u64),
        stack: StackId,
        observer: &mut impl Observer,
    ) {
        self.state.cache.refusals.gave_up(at.thread);
        let (time_ns, offset, thread) = (at.time_ns, at.offset, at.thread);
        let oom = CacheOomAt { time_ns, offset, thread, size, allocated, reserved, stack };
        let sums = &mut self.device(device).cache;
        sums.ooms = sums.ooms.saturating_add(1);
        sums.last_oom = Some(oom);
        sums.went_on = false;
        observer.on_cache_oom(at, device, &oom);
        self.notify_device_change(at, device, observer);
    }
}
