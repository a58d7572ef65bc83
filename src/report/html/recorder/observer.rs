//! Turns each event of the replay into records, marks and sums of the page.

use std::io::Write;

use vramtrace_format::{DeviceId, Mark, Refused, RefusedBy, Space, StackId, Stamped, Took};

use super::Recorder;
use crate::replay::{
    AllocCause, Asleep, CacheOomAt, DeviceState, FreeCause, Key, Live, Mapping, Observer, State,
};
use crate::trace::Site;

impl<W: Write> Observer for Recorder<'_, W> {
    fn on_alloc(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        self.made(at, key, live);
        self.roles.observer().on_alloc(at, key, live, how);
        self.take_roles();
    }

    fn on_free(&mut self, at: &Stamped, key: Key, live: &Live, how: FreeCause) {
        self.freed(at, key, live);
        self.roles.observer().on_free(at, key, live, how);
        self.take_roles();
    }

    fn on_block_alloc(&mut self, at: &Stamped, address: u64, live: &Live, how: AllocCause) {
        self.made(at, Key::block(address), live);
        self.roles.observer().on_block_alloc(at, address, live, how);
        self.take_roles();
    }

    fn on_block_free(&mut self, at: &Stamped, address: u64, live: &Live, how: FreeCause) {
        self.freed(at, Key::block(address), live);
        self.roles.observer().on_block_free(at, address, live, how);
        self.take_roles();
    }

    fn on_segment(&mut self, at: &Stamped, key: Key, live: &Live) {
        self.roles.observer().on_segment(at, key, live);
        let ordinal = self.tick(at);
        if let Some(open) = self.open.get_mut(&key)
            && open.segment == 0
        {
            open.segment = ordinal;
        }
        if key.space == Space::Vmm {
            self.mapped.mark_segment(key.number, ordinal);
        }
    }

    fn on_map(&mut self, at: &Stamped, start: u64, mapping: &Mapping, object: Option<&Live>) {
        let from = self.tick(at);
        let key = Key::object(mapping.object);
        let segment = self.open.get(&key).is_some_and(|open| open.segment > 0);
        let device = object.map_or(DeviceId::UNKNOWN, |live| live.device);
        self.mapped.put_mapping(from, start, (mapping.size, mapping.object), device, segment, None);
    }

    fn on_unmap(&mut self, at: &Stamped, start: u64, mapping: &Mapping) {
        let now = self.tick(at);
        let end = start.saturating_add(mapping.size);
        let segment = self.unmapped(now, start, end);
        // Blocks are still live in the unmapped range: it is shown as asleep.
        let key = Key::object(mapping.object);
        let paused = self.mapped.paused.range(start..end).next().is_some();
        if let Some(owner) = self.open.get(&key).map(|open| open.owner).filter(|_| paused) {
            let device = self.found.owners[owner as usize].2;
            self.mapped.put_mapping(now, start, (mapping.size, 0), device, segment, Some(owner));
        }
    }

    fn on_sleep(&mut self, at: &Stamped, asleep: &Asleep, _by: StackId) {
        let now = self.tick(at);
        let end = asleep.address.saturating_add(asleep.size);
        let segment = self.unmapped(now, asleep.address, end);
        self.put_asleep(now, asleep, segment);
    }

    fn on_wake(&mut self, at: &Stamped, mapping: &Mapping, object: Option<&Live>) {
        self.roles.observer().on_wake(at, mapping, object);
        let now = self.tick(at);
        let end = mapping.address.saturating_add(mapping.size);
        self.unmapped(now, mapping.address, end);
        self.on_map(at, mapping.address, mapping, object);
        self.restore_owner(now, mapping);
    }

    fn on_sleep_end(&mut self, at: &Stamped, asleep: &Asleep) {
        let now = self.tick(at);
        self.unmapped(now, asleep.address, asleep.address.saturating_add(asleep.size));
    }

    fn on_block_paused(&mut self, at: &Stamped, device: DeviceId, address: u64, change: i64) {
        self.block_paused(at, address, device, change);
    }

    fn on_took(&mut self, at: &Stamped, took: &Took) {
        self.took(at, took);
    }

    fn on_mark(&mut self, at: &Stamped, name: u32, mark: Mark) {
        let ordinal = self.tick(at);
        self.found.phases.mark(self.definitions, (at.thread, ordinal), name, mark);
    }

    fn on_refusal(&mut self, at: &Stamped, refused: &Refused, site: Option<&Site>) {
        let ordinal = self.tick(at);
        self.fatal_at(at.offset, ordinal);
        let device = site.map_or(DeviceId::UNKNOWN, |site| site.device);
        let what = if refused.by == RefusedBy::Warned { "warned" } else { "refusal" };
        self.mark(what, device.0, refused.size, Some(refused.by.name()));
    }

    fn on_cache_oom(&mut self, at: &Stamped, device: DeviceId, oom: &CacheOomAt) {
        let ordinal = self.tick(at);
        self.fatal_at(oom.offset, ordinal);
        self.mark("oom", device.0, oom.size, None);
    }

    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        let sums = self.sums.of(device);
        let values = sums.values(state);
        let is_new_peak = state.peak.offset == Some(at.offset);
        // An event without an ordinal belongs to a lumped allocation: its sums may be coarse.
        let coarse = self.below > 0 && self.offset != Some(at.offset);
        self.write_sums(at, device, values, coarse);
        if is_new_peak {
            let ordinal = self.ordinal;
            self.sums.of(device).peak = Some(ordinal);
        }
    }

    fn on_history_gap(&mut self, at: &Stamped) {
        // Frees may be among the missing events: nothing is known to be live after the gap.
        let ordinal = self.tick(at);
        self.close_all(Some(ordinal));
        self.roles.observer().on_history_gap(at);
        self.take_roles();
        self.found.phases.close(ordinal);
        self.lumped.end_all(ordinal);
        for sums in self.sums.values_mut() {
            (sums.lumped, sums.lumped_count) = (0, 0);
        }
        self.found.gaps.push((ordinal, ordinal));
    }

    fn on_resume(&mut self, at: &Stamped, state: &State) {
        let ordinal = self.tick(at);
        // A checkpoint lists sleeping ranges among the reserved ones.
        for asleep in state.space.asleep() {
            let segment = state.cache.segment_of(asleep.address).is_some();
            self.put_asleep(ordinal, asleep, segment);
        }
        self.resume_taken(at, state);
        if let Some(gap) = self.found.gaps.last_mut() {
            gap.1 = ordinal;
        }
    }
}
