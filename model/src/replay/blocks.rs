//! Events of a framework's cache: its blocks, its totals, and its out-of-memory errors.

use vramtrace_format::{BlockChange, DeviceId, Kind, Space};

use super::Apply;
use super::cache::{ReportedTotals, SegmentChange};
use super::live::{Key, Live};
use super::mapping::signed;
use super::observer::{AllocCause, FreeCause, Observer};

impl<O: Observer> Apply<'_, O> {
    /// Adds a live block to its segment and to the sums.
    pub(super) fn count_block(&mut self, key: Key, live: &Live, how: AllocCause) {
        let state = &mut self.state;
        state.cache.begin(&state.live, &state.space);
        state.cache.pending.remove(&key.number);
        let placed = state.cache.place(key.number, live.size, live.device, &state.space);
        let grown = placed.grown;
        let sums = &mut state.devices.of(live.device).cache;
        sums.sampled |= state.sampling.is_some();
        sums.add_block(live.weigh(live.size), live.weigh(1), !placed.known);
        sums.paused = sums.paused.saturating_add(placed.paused);
        sums.pause_reserved(placed.grown_paused.into());
        sums.went_on |= how != AllocCause::Checkpoint;
        if grown > 0 {
            self.segments_grew(live.device, grown);
        }
        if !placed.known {
            self.count_outside(live.device, 0, live.size);
        }
        self.observer.on_block_alloc(self.at, key.number, live, how);
        if placed.paused > 0 {
            self.observer.on_block_paused(self.at, live.device, key.number, signed(placed.paused));
        }
        self.notify_device_change(live.device);
    }

    /// Blocks of an import whose memory is not in it are memory themselves.
    fn count_outside(&mut self, device: DeviceId, before: u64, after: u64) {
        if self.definitions.imported_from().is_some() {
            self.device(device).reserve(Kind::Block, before, after);
        }
    }

    fn segments_grew(&mut self, device: DeviceId, bytes: u64) {
        let sums = self.state.devices.of(device);
        sums.cache.reserve(bytes.into());
        sums.move_peak(self.at.time_ns, self.at.offset);
        self.tell_segments();
    }

    /// Removes a block, which left the live set, from its segment and from the sums.
    pub(super) fn uncount_block(&mut self, key: Key, live: &Live, how: FreeCause) {
        let state = &mut self.state;
        let any = state.devices.get(&live.device).is_some_and(|device| device.cache.paused > 0);
        let paused = if any { state.cache.paused_of(key.number, live.size) } else { 0 };
        let outside = state.cache.displace(key.number).unwrap_or(0);
        if outside > 0 {
            self.count_outside(live.device, outside, 0);
        }
        let sums = &mut self.device(live.device).cache;
        sums.remove_block(live, outside, paused);
        sums.frees = sums.frees.saturating_add(live.weigh(1));
        self.observer.on_block_free(self.at, key.number, live, how);
        self.notify_device_change(live.device);
    }

    /// Ends the blocks that begin in `[start, end)`.
    pub(super) fn end_blocks(&mut self, start: u64, end: u64, how: FreeCause) {
        let inside = |(address, _): &(u64, &Live)| (start..end).contains(address);
        let mut blocks: Vec<u64> = self.state.live.blocks().filter(inside).map(|b| b.0).collect();
        blocks.sort_unstable();
        if self.state.live_is_known() {
            self.state.inconsistencies.blocks_without_memory += blocks.len() as u64;
        }
        for address in blocks {
            self.end(Key::block(address), how);
        }
    }

    pub(super) fn apply_changes(&mut self, changes: impl IntoIterator<Item = SegmentChange>) {
        for SegmentChange { device, reserved, paused } in changes {
            let sums = &mut self.device(device).cache;
            sums.reserve(reserved);
            sums.pause_reserved(paused);
            if reserved > 0 || paused < 0 {
                self.tell_segments();
            }
            self.notify_device_change(device);
        }
    }

    /// Places blocks that were recorded before their memory.
    pub(super) fn place_again(&mut self, waiting: &[(u64, u64)]) {
        for (address, size) in waiting {
            let state = &mut self.state;
            let key = Key::block(*address);
            let device = state.live.get(key).map_or(DeviceId::UNKNOWN, |live| live.device);
            let placed = state.cache.place(*address, *size, device, &state.space);
            let sums = &mut state.devices.of(device).cache;
            sums.reserve(placed.grown.into());
            sums.pause_reserved(placed.grown_paused.into());
            sums.paused = sums.paused.saturating_add(placed.paused);
            if placed.known {
                sums.outside = sums.outside.saturating_sub(*size);
                self.count_outside(device, *size, 0);
            }
            if placed.paused > 0 {
                self.observer.on_block_paused(self.at, device, *address, signed(placed.paused));
            }
        }
        if !waiting.is_empty() {
            self.tell_segments();
        }
    }

    fn tell_segments(&mut self) {
        for start in std::mem::take(&mut self.state.cache.ranges.marked) {
            let key = match self.state.space.at(start) {
                Some(mapping) => Key::object(mapping.object),
                None => Key { space: Space::Device, number: start },
            };
            if let Some(live) = self.state.live.get(key) {
                self.observer.on_segment(self.at, key, live);
            }
        }
    }

    /// Applies a change of a block: after its free, it waits for other streams or becomes reusable.
    pub(super) fn change_block(&mut self, address: u64, change: BlockChange) {
        let key = Key::block(address);
        let cache = &mut self.state.cache;
        match change {
            BlockChange::Requested(_) => {}
            BlockChange::Pending => {
                if let Some(live) = self.aside.freed.find(key) {
                    cache.pending.insert(address, live);
                }
            }
            BlockChange::Reusable => {
                cache.pending.remove(&address);
                cache.begin(&self.state.live, &self.state.space);
                if let Some((device, bytes)) = cache.ranges.take(address) {
                    self.segments_grew(device, bytes);
                    self.notify_device_change(device);
                }
            }
        }
        self.observer.on_block_change(self.at, address, change);
    }

    pub(super) fn cache_state(&mut self, device: DeviceId, reported: ReportedTotals) {
        let sampled = self.state.sampling.is_some();
        let known = self.state.live_is_known();
        let (time_ns, offset) = (self.at.time_ns, self.at.offset);
        let is_import = self.definitions.imported_from().is_some();
        let device_state = self.device(device);
        // The totals end the state with which an import begins.
        if is_import && device_state.peak.time_ns == time_ns {
            device_state.move_peak(time_ns, offset);
        }
        let sums = &mut device_state.cache;
        sums.sampled |= sampled;
        if known {
            sums.take_reported(reported)
        } else {
            sums.reported_by_torch = Some(reported)
        }
        if sampled && known {
            self.notify_device_change(device);
        }
    }
}
