//! The observer that writes the events of a replay as columns.

mod observer;
mod opened;

use std::collections::hash_map::Entry;
use std::io::Write;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Kind, Space, Stamped, ThreadId};

use self::observer::OpenDriverRecords;
use self::opened::Opened;
use super::columns::{FrameKind, zigzag};
use super::recorded::{MAX_MARKS, OwnerKind, PageMark, RecordOwner, Recorded};
use super::records::{OpenRecord, Records};
use super::sleeping::Mapped;
use crate::analysis::roles::{Allocation, Role, RoleFinder, RoleObserver};
use crate::replay::{ByDevice, DeviceState, Key, Live};
use crate::trace::Definitions;

/// Ended records whose role is not yet known, by key and time of allocation, with the ordinals of their
/// ends. [`RoleFinder`] knows a role only after the end. An allocation has several records if it slept,
/// changed its owner, or its free was refused.
type EndedRecords = FxHashMap<(Key, u64), Parts>;

/// The ended records of one allocation, in order, each with the ordinal of its end. Nearly all have one.
type Parts = ((OpenRecord, Option<u64>), Vec<(OpenRecord, Option<u64>)>);

/// The number of sums of a device that the columns have.
const FIELDS: usize = 10;

/// The sums of one device while it is recorded.
#[derive(Clone, Debug, Default)]
struct Sums {
    /// The values that were written last.
    written: [u64; FIELDS],
    /// Bytes of live blocks that are not listed one by one.
    lumped: u64,
    /// The number of these blocks.
    lumped_count: u64,
    /// The ordinal of the highest peak.
    peak: Option<u64>,
    /// The highest value so far of all allocations, or of lumped ones.
    highest: u64,
}

impl Sums {
    /// The current values, in the order of `Field` in `web/`.
    fn values(&self, state: &DeviceState) -> [u64; FIELDS] {
        let cap_and_1 = state.cap_bytes.map_or(0, |cap| cap.saturating_add(1));
        [
            state.live_bytes,
            state.in_use().in_nvidia_smi().unwrap_or(0),
            state.context_bytes,
            state.kind(Kind::Managed).live_bytes,
            cap_and_1,
            // The page shows only memory that is mapped on the card.
            state.cache.reserved_resident(),
            state.cache.outside,
            self.lumped,
            self.lumped_count,
            state.cache.reserved_paused,
        ]
    }
}

/// Writes one process.
pub(super) struct Recorder<'d, W: Write> {
    definitions: &'d Definitions,
    records: Records<W>,
    found: Recorded,
    /// Allocations of fewer bytes are lumped.
    below: u64,
    open: Opened,
    mapped: Mapped,
    taken: OpenDriverRecords,
    /// The bytes without physical memory of each lumped block.
    paused_lumped: FxHashMap<Key, u64>,
    roles: RoleObserver<'d>,
    /// Empty: its room is used again.
    known_roles: Vec<Allocation>,
    ended: EndedRecords,
    sums: ByDevice<Sums>,
    /// Offsets in the trace of the failures with which the run ended.
    fatal: Vec<u64>,
    /// The offset in the trace of the last event that got an ordinal.
    offset: Option<u64>,
    /// The last ordinal.
    ordinal: u64,
    /// Its time, in units of 64 ns.
    time: u64,
    /// The ordinal of the last sum that was written.
    last_sum: u64,
}

impl<'d, W: Write> Recorder<'d, W> {
    pub(super) fn new(
        definitions: &'d Definitions,
        roles: &'d RoleFinder,
        below: u64,
        fatal: Vec<u64>,
        out: W,
    ) -> Recorder<'d, W> {
        Recorder {
            definitions,
            records: Records::new(out),
            found: Recorded { lumped_below: below, ..Recorded::default() },
            below,
            open: Opened::default(),
            mapped: Mapped::default(),
            taken: OpenDriverRecords::default(),
            paused_lumped: FxHashMap::default(),
            roles: roles.observer(),
            known_roles: Vec::new(),
            ended: EndedRecords::default(),
            sums: ByDevice::default(),
            fatal,
            offset: None,
            ordinal: 0,
            time: 0,
            last_sum: 0,
        }
    }

    /// Writes what is still open at the end of the trace.
    pub(super) fn finish(mut self) -> std::io::Result<(Recorded, W)> {
        self.roles.end();
        self.take_roles();
        self.close_all(None);
        // Those that never got a role.
        let mut rest: Vec<_> = self.ended.drain().collect();
        rest.sort_unstable_by_key(|(key, _)| *key);
        for ((key, _), all) in rest {
            for (open, end) in in_order(all) {
                self.records.write(key, open, end);
            }
        }
        self.found.phases.close(self.ordinal);
        self.found.last = self.ordinal;
        for (device, sums) in &self.sums {
            self.found.peaks.extend(sums.peak.map(|ordinal| (device.0, ordinal)));
        }
        [self.found.blocks, self.found.memory] = self.records.written;
        Ok((self.found, self.records.columns.finish()?))
    }

    /// The ordinal of this event. The first call for an event assigns it.
    fn tick(&mut self, at: &Stamped) -> u64 {
        if self.offset != Some(at.offset) {
            self.offset = Some(at.offset);
            self.ordinal += 1;
            // Time stamps of different threads may go back slightly.
            let time = (at.time_ns >> 6).max(self.time);
            self.records.columns.push(FrameKind::Ticks, &[time - self.time]);
            self.time = time;
        }
        self.ordinal
    }

    /// The index of an owner, which is added if it is new.
    fn owner(&mut self, owner: RecordOwner) -> u32 {
        self.found.owners.insert_full(owner).0 as u32
    }

    /// A new record, from this event on.
    fn record(
        &mut self,
        at: &Stamped,
        thread: ThreadId,
        owner: RecordOwner,
        bytes: u64,
    ) -> OpenRecord {
        let owner = self.owner(owner);
        OpenRecord {
            from: self.tick(at),
            time_ns: at.time_ns,
            size: bytes,
            share: bytes,
            owner,
            role: Role::Unknown,
            phase: self.found.phases.of(thread),
            segment: 0,
            paused: 0,
            continues: false,
            maker: owner,
        }
    }

    /// Ends a record: writes it when its role is known, or at once if it needs none.
    fn end(&mut self, key: Key, open: OpenRecord, end: Option<u64>) {
        // A segment has no role: its blocks have roles.
        if open.segment > 0 {
            return self.records.write(key, open, end);
        }
        match self.ended.entry((key, open.time_ns)) {
            Entry::Vacant(entry) => {
                entry.insert(((open, end), Vec::new()));
            }
            Entry::Occupied(mut entry) => entry.get_mut().1.push((open, end)),
        }
    }

    /// Notes the ordinal of a failure with which the run ended.
    fn fatal_at(&mut self, offset: u64, ordinal: u64) {
        if self.fatal.contains(&offset) {
            self.found.fatal.insert(offset, ordinal);
        }
    }

    /// Applies the roles that became known, and writes the ended records that waited for them.
    fn take_roles(&mut self) {
        let mut known = std::mem::take(&mut self.known_roles);
        self.roles.take(&mut known);
        for Allocation { key, live, role, freed, .. } in known.drain(..) {
            if live.size < self.below {
                continue;
            }
            let ended = self.ended.remove(&(key, live.time_ns));
            for (open, end) in ended.into_iter().flat_map(in_order) {
                self.records.write(key, OpenRecord { role, ..open }, end);
            }
            if freed.is_some() {
                continue;
            }
            for (_, _, part) in self.mapped.parts.iter_mut().filter(|part| part.0 == key) {
                part.role = role;
            }
            if let Some(open) = self.open.get_mut(&key).filter(|open| open.time_ns == live.time_ns)
            {
                open.role = role;
            }
        }
        self.known_roles = known;
    }

    /// Ends all open records and mappings. `end`: `None` at the end of the trace.
    fn close_all(&mut self, end: Option<u64>) {
        let mut all = self.open.take_all();
        all.sort_unstable_by_key(|(key, open)| (key.space != Space::Block, open.from, *key));
        for (key, open) in all {
            self.close(key, open, end);
        }
        for (key, _, open) in std::mem::take(&mut self.mapped.parts) {
            self.close(key, open, end);
        }
        self.close_taken(end);
        for (start, open) in self.mapped.take_all() {
            self.records.write_mapping(start, open, end);
        }
        self.paused_lumped.clear();
    }

    /// Ends a record. At the end of the trace it is written at once: no role becomes known later.
    fn close(&mut self, key: Key, open: OpenRecord, end: Option<u64>) {
        match end {
            None => self.records.write(key, open, end),
            Some(_) => self.end(key, open, end),
        }
    }

    /// Adds a small allocation to the sums, or removes it.
    fn lump(&mut self, live: &Live, bytes: u64, comes: bool) {
        // These events get no ordinals, because they are too many. They belong to the last ordinal.
        self.found.lumped += u64::from(comes);
        let sums = self.sums.of(live.device);
        let change = |sum: u64, by: u64| match comes {
            true => sum.saturating_add(by),
            false => sum.saturating_sub(by),
        };
        sums.lumped = change(sums.lumped, bytes);
        sums.lumped_count = change(sums.lumped_count, 1);
    }

    /// Adds a mark at the last ordinal.
    fn mark(&mut self, what: &'static str, device: u8, bytes: u64, by: Option<&'static str>) {
        self.found.marks.push(PageMark { ordinal: self.ordinal, what, device, bytes, by });
        self.found.more_marks |= self.found.marks.len() > MAX_MARKS;
        self.found.marks.truncate(MAX_MARKS);
    }

    /// Writes the sums that changed. `coarse`: small changes are left out.
    fn write_sums(&mut self, at: &Stamped, device: DeviceId, values: [u64; FIELDS], coarse: bool) {
        let sums = self.sums.of(device);
        sums.highest = sums.highest.max(sums.lumped).max(values[0]);
        // Frees and allocations of lumped blocks change sums too. Writing each of these changes would
        // make the stream as long as without lumping.
        let least = if coarse { sums.highest / 4096 } else { 0 };
        for (field, value) in values.into_iter().enumerate() {
            let before = self.sums.of(device).written[field];
            if before == value || before.abs_diff(value) < least {
                continue;
            }
            let ordinal = self.tick(at);
            let since = ordinal - self.last_sum;
            self.last_sum = ordinal;
            let which = u64::from(device.0) * 16 + field as u64;
            self.records.columns.push(FrameKind::Sums, &[since, which, zigzag(before, value)]);
            self.sums.of(device).written[field] = value;
        }
    }
}

fn in_order((first, more): Parts) -> impl Iterator<Item = (OpenRecord, Option<u64>)> {
    std::iter::once(first).chain(more)
}

/// Whether the page shows an allocation: host memory and imported memory are left out.
fn is_shown(live: &Live) -> bool {
    !live.kind.is_host() && live.kind != Kind::Imported
}

impl<W: Write> Recorder<'_, W> {
    fn made(&mut self, at: &Stamped, key: Key, live: &Live) {
        if !is_shown(live) {
            return;
        }
        if live.size < self.below {
            self.lump(live, live.share(), true);
            return;
        }
        let owner = (live.stack, OwnerKind::Allocated(live.kind), live.device);
        let open = self.record(at, live.thread, owner, live.size);
        self.open.insert(key, OpenRecord { time_ns: live.time_ns, share: live.share(), ..open });
    }

    fn freed(&mut self, at: &Stamped, key: Key, live: &Live) {
        if !is_shown(live) {
            return;
        }
        let Some(open) = self.open.remove(&key) else {
            let paused = self.paused_lumped.remove(&key).unwrap_or(0);
            self.lump(live, live.share().saturating_sub(paused), false);
            return;
        };
        let end = self.tick(at);
        self.end(key, open, Some(end));
        if key.space == Space::Block {
            self.mapped.paused.remove(&key.number);
            return;
        }
        let parts: Vec<_> = self.mapped.parts.extract_if(.., |part| part.0 == key).collect();
        for (_, _, open) in parts {
            self.end(key, open, Some(end));
        }
    }
}
