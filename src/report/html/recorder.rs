//! Follows a replay and writes what happened as columns.

use std::collections::BTreeMap;
use std::io::Write;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Kind, Mark, Refused, RefusedBy, Space, StackId, Stamped};

use super::columns::{FrameKind, zigzag};
use super::packer::Packer;
use super::recorded::{MOST_MARKS, Owner, PageMark, Recorded};
use super::records::{Open, OpenMapping, Records, block};
use super::sums::{Field, Sums, Values};
use crate::analysis::roles::{Allocation, Role, RoleFinder, RoleObserver};
use crate::replay::{
    AllocCause, Asleep, CacheOomAt, DeviceState, FreeCause, Key, Live, Mapping, Observer, State,
};
use crate::trace::{Definitions, Site};

/// A group of frees that is drawn as one flush: this many segments at least.
const FLUSH: u64 = 2;

/// What has ended and waits for its role, by key and time of birth: [`RoleFinder`] tells a role when
/// the next allocation is made. Two records where the driver refused the free.
type Ended = FxHashMap<(Key, u64), Vec<(Open, Option<u64>)>>;

/// Segments that the cache gave back one after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Flush {
    device: u8,
    segments: u64,
    bytes: u64,
    ordinal: u64,
    time_ns: u64,
}

pub struct Recorder<'d, W: Write> {
    definitions: &'d Definitions,
    records: Records<W>,
    found: Recorded,
    /// Blocks of fewer bytes are lumped.
    below: u64,
    known: FxHashMap<Owner, u32>,
    blocks: FxHashMap<u64, Open>,
    memory: FxHashMap<Key, Open>,
    mappings: BTreeMap<u64, OpenMapping>,
    /// Of blocks that are lumped, bytes without memory below them.
    lumped_paused: FxHashMap<u64, u64>,
    roles: RoleObserver<'d>,
    ended: Ended,
    sums: BTreeMap<DeviceId, Sums>,
    lanes: (BTreeMap<DeviceId, Packer>, BTreeMap<DeviceId, Packer>),
    flush: Flush,
    offset: Option<u64>,
    ordinal: u64,
    time: u64,
    last_sum: u64,
}

impl<'d, W: Write> Recorder<'d, W> {
    pub fn new(
        definitions: &'d Definitions,
        roles: &'d RoleFinder,
        below: u64,
        out: W,
    ) -> Recorder<'d, W> {
        Recorder {
            definitions,
            records: Records::new(out),
            found: Recorded::default(),
            below,
            known: FxHashMap::default(),
            blocks: FxHashMap::default(),
            memory: FxHashMap::default(),
            mappings: BTreeMap::new(),
            lumped_paused: FxHashMap::default(),
            roles: roles.observer(),
            ended: Ended::default(),
            sums: BTreeMap::new(),
            lanes: Default::default(),
            flush: Flush::default(),
            offset: None,
            ordinal: 0,
            time: 0,
            last_sum: 0,
        }
    }

    pub fn finish(mut self) -> std::io::Result<(Recorded, W)> {
        self.end_flush();
        self.roles.end();
        self.take_roles();
        self.close_all(None);
        self.write_ended();
        self.found.phases.close(self.ordinal);
        self.found.last = self.ordinal;
        let highest =
            |lanes: &BTreeMap<DeviceId, Packer>| lanes.values().map(Packer::highest).max();
        self.found.highest_lane = highest(&self.lanes.0).unwrap_or(0);
        self.found.highest_memory_lane = highest(&self.lanes.1).unwrap_or(0);
        for (device, sums) in &self.sums {
            self.found.peaks.extend(sums.peak.map(|ordinal| (*device, ordinal)));
        }
        (self.found.blocks, self.found.memory) = (self.records.blocks, self.records.memory);
        Ok((self.found, self.records.columns.finish()?))
    }

    /// The ordinal of this event.
    fn tick(&mut self, at: &Stamped) -> u64 {
        if self.offset != Some(at.offset) {
            self.offset = Some(at.offset);
            self.ordinal += 1;
            // Stamps may run back a little.
            let time = (at.time_ns >> 6).max(self.time);
            self.records.columns.push(FrameKind::Ticks, &[time - self.time]);
            self.time = time;
            if self.flush.segments > 0 && at.time_ns.saturating_sub(self.flush.time_ns) > NEAR {
                self.end_flush();
            }
        }
        self.ordinal
    }

    fn owner(&mut self, live: &Live) -> u32 {
        self.owner_of((live.stack, live.kind, live.device))
    }

    fn owner_of(&mut self, owner: Owner) -> u32 {
        let next = self.found.owners.len() as u32;
        let index = *self.known.entry(owner).or_insert(next);
        if index == next {
            self.found.owners.push(owner);
        }
        index
    }

    fn open(&mut self, at: &Stamped, live: &Live, lane: u64) -> Open {
        Open {
            from: self.tick(at),
            time_ns: live.time_ns,
            size: live.size,
            share: live.share(),
            owner: self.owner(live),
            lane,
            role: Role::Unknown,
            phase: self.found.phases.of(live.thread),
            segment: 0,
            paused: 0,
        }
    }

    /// Writes it, now or when its role is known. What is all paused is not on the card.
    fn end(&mut self, key: Key, open: Open, end: Option<u64>) {
        if open.is_paused() {
            return;
        }
        // What a segment is for, its blocks say.
        if open.segment > 0 {
            return self.records.write(key, open, end);
        }
        self.ended.entry((key, open.time_ns)).or_default().push((open, end));
    }

    /// Takes the roles that became known.
    fn take_roles(&mut self) {
        for Allocation { key, live, role, freed, .. } in self.roles.take() {
            let ended = self.ended.remove(&(key, live.time_ns));
            for (open, end) in ended.into_iter().flatten() {
                self.records.write(key, Open { role, ..open }, end);
            }
            if freed.is_some() {
                continue;
            }
            let open = match key.space {
                Space::Block => self.blocks.get_mut(&key.number),
                _ => self.memory.get_mut(&key),
            };
            if let Some(open) = open.filter(|open| open.time_ns == live.time_ns) {
                open.role = role;
            }
        }
    }

    /// What never got a role.
    fn write_ended(&mut self) {
        let mut rest: Vec<_> = self.ended.drain().collect();
        rest.sort_unstable_by_key(|(key, _)| *key);
        for ((key, _), all) in rest {
            for (open, end) in all {
                self.records.write(key, open, end);
            }
        }
    }

    fn close_all(&mut self, end: Option<u64>) {
        let mut blocks: Vec<(u64, Open)> = self.blocks.drain().collect();
        blocks.sort_unstable_by_key(|(number, open)| (open.from, *number));
        for (number, open) in blocks {
            self.close(block(number), open, end);
        }
        let mut memory: Vec<(Key, Open)> = self.memory.drain().collect();
        memory.sort_unstable_by_key(|(key, open)| (open.from, *key));
        for (key, open) in memory {
            self.close(key, open, end);
        }
        for (start, open) in std::mem::take(&mut self.mappings) {
            self.records.write_mapping(start, open, end);
        }
        self.lanes.0.values_mut().chain(self.lanes.1.values_mut()).for_each(Packer::clear);
    }

    /// At the trace's end all that is known of a role is known.
    fn close(&mut self, key: Key, open: Open, end: Option<u64>) {
        match end {
            None if open.is_paused() => {}
            None => self.records.write(key, open, end),
            Some(_) => self.end(key, open, end),
        }
    }

    fn is_lumped(&self, live: &Live) -> bool {
        live.size < self.below
    }

    fn lump(&mut self, live: &Live, comes: bool) {
        self.found.lumped += u64::from(comes);
        let sums = self.sums.entry(live.device).or_default();
        let change = |sum: u64, by: u64| match comes {
            true => sum.saturating_add(by),
            false => sum.saturating_sub(by),
        };
        sums.lumped = change(sums.lumped, live.share());
        sums.lumped_count = change(sums.lumped_count, 1);
    }

    fn mark(&mut self, what: &'static str, device: u8, bytes: u64, by: Option<&'static str>) {
        match self.found.marks.len() < MOST_MARKS {
            true => {
                let ordinal = self.ordinal;
                self.found.marks.push(PageMark { ordinal, what, device, bytes, by });
            }
            false => self.found.more_marks = true,
        }
    }

    fn end_flush(&mut self) {
        let flush = std::mem::take(&mut self.flush);
        if flush.segments >= FLUSH && self.found.marks.len() < MOST_MARKS {
            let left = self.sums.get(&DeviceId(flush.device));
            let left = left.map_or(0, |sums| sums.written[Field::Reserved as usize]);
            self.found.marks.push(PageMark {
                ordinal: flush.ordinal,
                // All of the cache, or a part of it.
                what: if left < flush.bytes / 10 { "sleep" } else { "flush" },
                device: flush.device,
                bytes: flush.bytes,
                by: None,
            });
        }
    }

    fn write_sums(&mut self, at: &Stamped, device: DeviceId, values: Values, coarse: bool) {
        let sums = self.sums.entry(device).or_default();
        let is_large = |field: Field| matches!(field, Field::Live | Field::Lumped);
        let large = values.iter().filter(|(field, _)| is_large(*field)).map(|(_, value)| *value);
        sums.highest = large.fold(sums.highest, u64::max);
        // With lumped blocks a change of every event would be a value of every event.
        let least = if coarse { sums.highest / 4096 } else { 0 };
        let written = sums.written;
        let differs = |(field, value): &(Field, u64)| {
            let before = written[*field as usize];
            before != *value && before.abs_diff(*value) >= least
        };
        for (field, value) in values.into_iter().filter(differs) {
            let ordinal = self.tick(at);
            let since = ordinal - self.last_sum;
            self.last_sum = ordinal;
            let which = u64::from(device.0) * 16 + field as u64;
            let before = written[field as usize];
            self.records.columns.push(FrameKind::Sums, &[since, which, zigzag(before, value)]);
            self.sums.entry(device).or_default().written[field as usize] = value;
        }
    }
}

/// Segments that are given back within this time are one flush.
const NEAR: u64 = 20_000_000;

fn counts(live: &Live) -> bool {
    !live.kind.is_host() && live.kind != Kind::Imported
}

impl<W: Write> Recorder<'_, W> {
    fn memory_made(&mut self, at: &Stamped, key: Key, live: &Live) {
        if !counts(live) {
            return;
        }
        if self.is_lumped(live) {
            self.lump(live, true);
            return;
        }
        let lane = self.lanes.1.entry(live.device).or_default().take(live.share());
        let open = self.open(at, live, lane);
        self.memory.insert(key, open);
    }

    fn memory_freed(&mut self, at: &Stamped, key: Key, live: &Live) {
        if !counts(live) {
            return;
        }
        let Some(open) = self.memory.remove(&key) else {
            self.lump(live, false);
            return;
        };
        let end = self.tick(at);
        if open.segment > 0 {
            let of_other = self.flush.segments > 0 && self.flush.device != live.device.0;
            if of_other {
                self.end_flush();
            }
            self.flush.device = live.device.0;
            self.flush.segments += 1;
            self.flush.bytes = self.flush.bytes.saturating_add(live.share());
            (self.flush.ordinal, self.flush.time_ns) = (end, at.time_ns);
        }
        self.lanes.1.entry(live.device).or_default().give(open.lane, open.share);
        self.end(key, open, Some(end));
    }

    fn block_made(&mut self, at: &Stamped, address: u64, live: &Live) {
        if self.is_lumped(live) {
            self.lump(live, true);
            return;
        }
        let lane = self.lanes.0.entry(live.device).or_default().take(live.size);
        let open = self.open(at, live, lane);
        self.blocks.insert(address, open);
    }

    fn block_freed(&mut self, at: &Stamped, address: u64, live: &Live) {
        let Some(open) = self.blocks.remove(&address) else {
            self.pause_lumped(live.device, address, None);
            self.lump(live, false);
            return;
        };
        let end = self.tick(at);
        self.lanes.0.entry(live.device).or_default().give(open.lane, open.size);
        self.end(block(address), open, Some(end));
    }
}

/// Memory that is unmapped and may come back. The page shows what is on the card: a block is there
/// with the bytes that have memory, and not at all while it has none.
impl<W: Write> Recorder<'_, W> {
    fn pause(&mut self, at: &Stamped, address: u64, bytes: i64) {
        let Some(before) = self.blocks.get(&address).copied() else { return };
        let now = self.tick(at);
        if before.from < now {
            self.end(block(address), before, Some(now));
        }
        let paused = before.paused.saturating_add_signed(bytes).min(before.size);
        let from = before.from.max(now);
        self.blocks.insert(address, Open { from, paused, ..before });
    }

    /// Of a lumped block. `None`: it is freed, and all of it is to count again.
    fn pause_lumped(&mut self, device: DeviceId, address: u64, bytes: Option<i64>) {
        let paused = self.lumped_paused.remove(&address).unwrap_or(0);
        let now = bytes.map_or(0, |bytes| paused.saturating_add_signed(bytes));
        if now > 0 {
            self.lumped_paused.insert(address, now);
        }
        let sums = self.sums.entry(device).or_default();
        sums.lumped = sums.lumped.saturating_add(paused).saturating_sub(now);
    }

    /// Mappings, or parts of them, end.
    fn unmap(&mut self, at: &Stamped, start: u64, end: u64) {
        let now = self.tick(at);
        let before = self.mappings.range(..start).next_back();
        let touching = before.into_iter().chain(self.mappings.range(start..end.max(start)));
        let over = |(from, open): &(&u64, &OpenMapping)| from.saturating_add(open.size) > start;
        let all: Vec<(u64, OpenMapping)> =
            touching.filter(over).map(|(from, open)| (*from, *open)).collect();
        for (from, open) in all {
            self.mappings.remove(&from);
            self.records.write_mapping(from, open, Some(now));
            let to = from.saturating_add(open.size);
            for (from, to) in [(from, start.min(to)), (end.max(from), to)] {
                if from < to {
                    let rest = OpenMapping { from: now, size: to - from, ..open };
                    let segment = if open.segment > 0 { now } else { 0 };
                    self.mappings.insert(from, OpenMapping { segment, ..rest });
                }
            }
        }
    }

    fn map(&mut self, at: &Stamped, start: u64, mapping: &Mapping, object: Option<&Live>) {
        let from = self.tick(at);
        let key = Key { space: Space::Vmm, number: mapping.object };
        let segment = self.memory.get(&key).filter(|open| open.segment > 0).map_or(0, |_| from);
        let device = object.map_or(DeviceId::UNKNOWN, |live| live.device);
        let (size, object) = (mapping.size, mapping.object);
        self.mappings.insert(start, OpenMapping { from, size, object, device, segment });
    }
}

impl<W: Write> Observer for Recorder<'_, W> {
    fn on_alloc(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        self.memory_made(at, key, live);
        self.roles.on_alloc(at, key, live, how);
        self.take_roles();
    }

    fn on_free(&mut self, at: &Stamped, key: Key, live: &Live, how: FreeCause) {
        self.memory_freed(at, key, live);
        self.roles.on_free(at, key, live, how);
        self.take_roles();
    }

    fn on_block_alloc(&mut self, at: &Stamped, address: u64, live: &Live, how: AllocCause) {
        self.block_made(at, address, live);
        self.roles.on_block_alloc(at, address, live, how);
        self.take_roles();
    }

    fn on_block_free(&mut self, at: &Stamped, address: u64, live: &Live, how: FreeCause) {
        self.block_freed(at, address, live);
        self.roles.on_block_free(at, address, live, how);
        self.take_roles();
    }

    fn on_segment(&mut self, at: &Stamped, key: Key, live: &Live) {
        self.roles.on_segment(at, key, live);
        let ordinal = self.tick(at);
        if let Some(open) = self.memory.get_mut(&key)
            && open.segment == 0
        {
            open.segment = ordinal;
        }
        if key.space == Space::Vmm {
            let of_object =
                |open: &&mut OpenMapping| open.object == key.number && open.segment == 0;
            self.mappings.values_mut().filter(of_object).for_each(|open| open.segment = ordinal);
        }
    }

    fn on_map(&mut self, at: &Stamped, start: u64, mapping: &Mapping, object: Option<&Live>) {
        self.map(at, start, mapping, object);
    }

    fn on_unmap(&mut self, at: &Stamped, start: u64, mapping: &Mapping) {
        self.unmap(at, start, start.saturating_add(mapping.size));
    }

    fn on_sleep(&mut self, at: &Stamped, asleep: &Asleep, _by: StackId) {
        self.unmap(at, asleep.address, asleep.end());
    }

    /// Of the one who had it before.
    fn on_wake(&mut self, at: &Stamped, mapping: &Mapping, object: Option<&Live>) {
        self.map(at, mapping.address, mapping, object);
        self.roles.on_wake(at, mapping, object);
        let key = Key { space: Space::Vmm, number: mapping.object };
        if let (Some(woken), Some(object)) = (mapping.woken, object) {
            let owner = self.owner_of((woken.owner.stack, object.kind, object.device));
            if let Some(open) = self.memory.get_mut(&key) {
                open.owner = owner;
            }
        }
    }

    fn on_block_paused(&mut self, at: &Stamped, device: DeviceId, address: u64, bytes: i64) {
        match self.blocks.contains_key(&address) {
            true => self.pause(at, address, bytes),
            false => self.pause_lumped(device, address, Some(bytes)),
        }
    }

    fn on_mark(&mut self, at: &Stamped, name: u32, mark: Mark) {
        let ordinal = self.tick(at);
        self.found.phases.mark(self.definitions, (at.thread, ordinal), name, mark);
    }

    fn on_refusal(&mut self, at: &Stamped, refused: &Refused, site: Option<&Site>) {
        self.tick(at);
        let device = site.map_or(DeviceId::UNKNOWN, |site| site.device);
        let what = if refused.by == RefusedBy::Warned { "warned" } else { "refusal" };
        self.mark(what, device.0, refused.size, Some(refused.by.name()));
    }

    fn on_cache_oom(&mut self, at: &Stamped, device: DeviceId, oom: &CacheOomAt) {
        let ordinal = self.tick(at);
        self.found.ooms.insert(device, ordinal);
        self.mark("oom", device.0, oom.size, None);
    }

    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        let sums = self.sums.entry(device).or_default();
        let values = sums.values(state);
        let is_new_peak = state.peak.offset == Some(at.offset);
        // What this event is, is listed one by one or lumped.
        let coarse = self.below > 0 && self.offset != Some(at.offset);
        self.write_sums(at, device, values, coarse);
        if is_new_peak {
            let ordinal = self.ordinal;
            self.sums.entry(device).or_default().peak = Some(ordinal);
        }
    }

    fn on_history_gap(&mut self, at: &Stamped) {
        let ordinal = self.tick(at);
        self.end_flush();
        self.close_all(Some(ordinal));
        self.roles.on_history_gap(at);
        self.take_roles();
        self.found.phases.close(ordinal);
        for sums in self.sums.values_mut() {
            (sums.lumped, sums.lumped_count) = (0, 0);
        }
        self.lumped_paused.clear();
        self.found.gaps.push((ordinal, ordinal));
    }

    fn on_resume(&mut self, at: &Stamped, _state: &State) {
        let ordinal = self.tick(at);
        if let Some(gap) = self.found.gaps.last_mut() {
            gap.1 = ordinal;
        }
    }
}
