//! Turns each event of the replay into records, marks and sums of the page.
//!
//! What the driver takes for itself has a record for each call that made it take memory, which ends and continues with
//! other bytes when these change. So does memory that is unmapped during a sleep, and that has another owner afterwards.

use std::collections::BTreeMap;
use std::io::Write;

use vramtrace_format::{
    DeviceId, DriverCause, Kind, Mark, Refused, RefusedBy, SiteId, Space, StackId, Stamped, Took,
};

use super::super::recorded::OwnerKind;
use super::super::records::OpenRecord;
use super::Recorder;
use crate::analysis::roles::Role;
use crate::replay::{
    AllocCause, Asleep, CacheOomAt, DeviceState, FreeCause, Key, Live, Mapping, Observer, State,
};
use crate::trace::SiteInfo;

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
        let key = Key::block(address);
        let Some(open) = self.open.get(&key).copied() else {
            let paused = self.paused_lumped.entry(key).or_default();
            *paused = paused.saturating_add_signed(change);
            let sums = self.sums.of(device);
            sums.lumped = sums.lumped.saturating_add_signed(-change);
            return;
        };
        let now = self.tick(at);
        let paused = open.paused.saturating_add_signed(change).min(open.size);
        match paused {
            0 => self.mapped.paused.remove(&address),
            _ => self.mapped.paused.insert(address),
        };
        let open = self.continue_record(key, open, now);
        self.open.insert(key, OpenRecord { paused, ..open });
    }

    fn on_took(&mut self, at: &Stamped, took: &Took) {
        let call = (took.device, took.cause, took.site, took.stack, took.name);
        let before = self.taken.get(&call).map_or(0, |open| open.share);
        self.set_taken(at, call, before.saturating_add_signed(took.delta));
    }

    fn on_contexts(&mut self, at: &Stamped, device: DeviceId, state: &State) {
        let is_here = |call: &Call| (call.0, call.1) == (device, DriverCause::Context);
        let open = self.taken.keys().filter(|call| is_here(call)).map(|call| (*call, 0));
        let mut all: BTreeMap<Call, u64> = open.collect();
        all.extend(contexts(state).filter(|(call, _)| is_here(call)));
        for (call, bytes) in all {
            self.set_taken(at, call, bytes);
        }
    }

    fn on_mark(&mut self, at: &Stamped, name: u32, mark: Mark) {
        let ordinal = self.tick(at);
        self.found.phases.mark(self.definitions, (at.thread, ordinal), name, mark);
    }

    fn on_refusal(&mut self, at: &Stamped, refused: &Refused, site: Option<&SiteInfo>) {
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

impl<W: Write> Recorder<'_, W> {
    /// Ends a record and begins its continuation at the ordinal `now`. A record that began at `now` is
    /// returned as it is.
    pub(super) fn continue_record(&mut self, key: Key, open: OpenRecord, now: u64) -> OpenRecord {
        if open.from == now {
            return open;
        }
        self.end(key, open, Some(now));
        let segment = if open.segment > 0 { now } else { 0 };
        OpenRecord { from: now, segment, continues: true, ..open }
    }

    /// Adds a range that is unmapped during a sleep, with its owner.
    pub(super) fn put_asleep(&mut self, now: u64, asleep: &Asleep, segment: bool) {
        let device = asleep.owner.device;
        let owner = self.owner((asleep.owner.stack, OwnerKind::Allocated(Kind::Vmm), device));
        let what = (asleep.size, 0);
        self.mapped.put_mapping(now, asleep.address, what, device, segment, Some(owner));
    }

    /// A range is mapped again after a sleep: the bytes of the object belong to the owner that had the
    /// range before.
    pub(super) fn restore_owner(&mut self, now: u64, mapping: &Mapping) {
        let key = Key::object(mapping.object);
        let (Some(woken), Some(open)) = (mapping.woken, self.open.get(&key).copied()) else {
            return;
        };
        let (_, kind, device) = self.found.owners[open.owner as usize];
        let owner = self.owner((woken.owner.stack, kind, device));
        let open = self.continue_record(key, open, now);
        if mapping.size >= open.share {
            self.open.insert(key, OpenRecord { owner, ..open });
            return;
        }
        let rest = open.share - mapping.size;
        self.open.insert(key, OpenRecord { share: rest, ..open });
        let part = OpenRecord { owner, share: mapping.size, size: mapping.size, ..open };
        self.mapped.parts.push((key, mapping.address, part));
    }

    /// Ends the mappings in `[start, end)`. Objects that were mapped there belong to their makers again.
    /// Returns whether one of the mappings was a framework's segment.
    pub(super) fn unmapped(&mut self, now: u64, start: u64, end: u64) -> bool {
        let gone = self.mapped.cut(&mut self.records, now, start, end);
        for object in gone.objects {
            let key = Key::object(object);
            if let Some(open) = self.open.get(&key).copied()
                && open.owner != open.maker
            {
                let open = self.continue_record(key, open, now);
                self.open.insert(key, OpenRecord { owner: open.maker, ..open });
            }
        }
        let inside = |part: &mut (Key, u64, OpenRecord)| (start..end).contains(&part.1);
        let parts: Vec<_> = self.mapped.parts.extract_if(.., inside).collect();
        for (key, address, open) in parts {
            let open = self.continue_record(key, open, now);
            self.mapped.parts.push((key, address, OpenRecord { owner: open.maker, ..open }));
        }
        gone.segment
    }
}

type Call = (DeviceId, DriverCause, SiteId, StackId, u32);

/// The open records of each device.
pub(super) type OpenDriverRecords = BTreeMap<Call, OpenRecord>;

/// A key without an address.
const KEY: Key = Key { space: Space::Vmm, number: 0 };

/// Each context, as a call that took its bytes.
fn contexts(state: &State) -> impl Iterator<Item = (Call, u64)> {
    state.contexts().map(|(id, of, bytes)| {
        ((of.device, DriverCause::Context, SiteId(id.0.into()), of.stack, 0), bytes)
    })
}

impl<W: Write> Recorder<'_, W> {
    /// What a call made the driver take, from now on.
    fn set_taken(&mut self, at: &Stamped, call: Call, bytes: u64) {
        let open = self.taken.get(&call).copied();
        if open.map_or(0, |open| open.share) == bytes {
            return;
        }
        let now = self.tick(at);
        self.taken.remove(&call);
        if let Some(open) = open.filter(|open| open.from < now) {
            self.records.write(KEY, open, Some(now));
        }
        if bytes > 0 {
            let (device, cause, _, stack, _) = call;
            let owner = (stack, OwnerKind::Driver(cause), device);
            let open = self.record(at, at.thread, owner, bytes);
            self.taken.insert(call, OpenRecord { role: Role::of_cause(cause), ..open });
        }
    }

    /// Ends all records. `end`: `None` at the end of the trace.
    pub(super) fn close_taken(&mut self, end: Option<u64>) {
        for open in std::mem::take(&mut self.taken).into_values() {
            self.records.write(KEY, open, end);
        }
    }

    /// After missing events: what a checkpoint lists.
    pub(super) fn resume_taken(&mut self, at: &Stamped, state: &State) {
        let end = Some(self.tick(at));
        self.close_taken(end);
        for (device, sums) in &state.devices {
            for (maker, bytes) in sums.driver_own.makers() {
                let call = (*device, maker.cause, maker.site, maker.stack, maker.name);
                self.set_taken(at, call, bytes);
            }
        }
        contexts(state).for_each(|(call, bytes)| self.set_taken(at, call, bytes));
    }
}
