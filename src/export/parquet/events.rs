//! The tables `events` (a row for each event that changes memory or says something of it) and `blocks` (a row for each
//! allocation), written in the second pass. Both are in the order of the file.

use std::fs::File;
use std::io;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Kind, Mark, Refused, SiteId, StackId, Stamped, ThreadId, Took};

use super::lives::Lives;
use super::table::{Columns, Table, known, text};
use super::{Clock, numbered};
use crate::analysis::roles::Role;
use crate::export::owners::{BroughtBack, Owners};
use crate::export::roles::KnownRoles;
use crate::export::sink::SliceEnd;
use crate::replay::{AllocCause, CacheOomAt, DeviceState, FreeCause, Key, Live, Observer, State};
use crate::trace::{Definitions, Site};

/// A row of `events`.
struct EventRow {
    event: &'static str,
    how: &'static str,
    time_ns: u64,
    device: Option<DeviceId>,
    kind: Option<Kind>,
    site: SiteId,
    bytes: Option<u64>,
    address: Option<u64>,
    stack: StackId,
    thread: ThreadId,
    weight: f64,
    /// After the event.
    live_bytes: Option<u64>,
    /// The id of a text; 0: none.
    name: u32,
}

impl EventRow {
    fn new(event: &'static str, thread: ThreadId) -> EventRow {
        EventRow {
            event,
            how: "",
            time_ns: 0,
            device: None,
            kind: None,
            site: SiteId(0),
            bytes: None,
            address: None,
            stack: StackId(0),
            thread,
            weight: 1.0,
            live_bytes: None,
            name: 0,
        }
    }

    fn of(event: &'static str, thread: ThreadId, key: Key, live: &Live) -> EventRow {
        EventRow {
            device: device_of(live),
            kind: Some(live.kind),
            site: live.site,
            bytes: Some(live.size),
            address: Some(key.number),
            stack: live.stack,
            weight: live.weight,
            ..EventRow::new(event, thread)
        }
    }
}

/// A row of `blocks`.
struct BlockRow {
    begin_ns: u64,
    end_ns: u64,
    end: SliceEnd,
    key: Key,
    live: Live,
    role: Option<Role>,
    woken: Option<BroughtBack>,
}

/// `None`: host memory.
fn device_of(live: &Live) -> Option<DeviceId> {
    (!live.kind.is_host()).then_some(live.device)
}

/// What the second pass looks up.
pub(super) struct Known {
    pub process: u32,
    pub definitions: Definitions,
    pub lives: Lives,
    pub roles: KnownRoles,
    pub owners: Owners,
    /// Time of the last event.
    pub end_ns: u64,
}

impl Known {
    fn stream(&self, site: SiteId) -> Option<u64> {
        self.definitions.site(site).map(|site| site.stream)
    }

    fn tid(&self, thread: ThreadId) -> Option<u32> {
        self.definitions.thread(thread).and_then(|thread| numbered(thread.tid))
    }

    fn events(&self) -> Columns<'_, EventRow> {
        let api = |site| (site != SiteId(0)).then(|| text(&self.definitions.site_api_name(site)));
        let name = |id| known(self.definitions.text(id)?);
        Columns::<EventRow>::sorted()
            .column("time_ns", |row| row.time_ns)
            .column("process", |_| self.process)
            .column("event", |row| text(row.event))
            .column("how", |row| known(row.how))
            .column("device", |row| row.device)
            .column("kind", |row| row.kind.map(|kind| text(kind.name())))
            .column("api", move |row| api(row.site))
            .column("bytes", |row| row.bytes)
            .column("address", |row| row.address)
            .column("stack", |row| numbered(row.stack.0))
            .column("tid", |row| self.tid(row.thread))
            .column("stream", |row| self.stream(row.site))
            .column("weight", |row| row.weight)
            .column("live_bytes", |row| row.live_bytes)
            .column("name", move |row| name(row.name))
    }

    fn blocks(&self) -> Columns<'_, BlockRow> {
        let is_block = |row: &BlockRow| row.live.kind == Kind::Block;
        let owner = |row: &BlockRow| row.woken.map_or(row.live.stack, |woken| woken.owner);
        Columns::<BlockRow>::sorted()
            .column("begin_ns", |row| row.begin_ns)
            .column("end_ns", |row| row.end_ns)
            .column("end", |row| text(row.end.name()))
            .column("allocated_ns", |row| row.live.time_ns.min(row.begin_ns))
            .column("process", |_| self.process)
            .column("device", |row| device_of(&row.live))
            .column("kind", |row| text(row.live.kind.name()))
            .column("bytes", |row| row.live.size)
            .column("physical_bytes", move |row| (!is_block(row)).then(|| row.live.share()))
            .column("address", |row| row.key.number)
            .column("stack", move |row| numbered(owner(row).0))
            .column("role", |row| row.role.map(|role| text(role.name())))
            .column("api", |row| text(&self.definitions.site_api_name(row.live.site)))
            .column("tid", |row| self.tid(row.live.thread))
            .column("stream", |row| self.stream(row.live.site).unwrap_or(0))
            .column("context", |row| numbered(row.live.context.0.into()))
            .column("pool", |row| numbered(row.live.pool.0.into()))
            .column("weight", |row| row.live.weight)
            .column("brought_back_by", |row| numbered(row.woken?.by.0))
    }
}

/// Writes both tables, or one of them. An [`Observer`] of the second pass.
pub(super) struct EventWriter<'k> {
    known: &'k Known,
    events: Option<Table<'k, EventRow>>,
    blocks: Option<Table<'k, BlockRow>>,
    /// Rows of the event that is not yet applied.
    pending: Vec<EventRow>,
    /// Live bytes of each device in the last row.
    live: FxHashMap<DeviceId, u64>,
    /// The sum of a device changed in this event.
    changed: Option<DeviceId>,
    /// Number of the next allocation.
    next: usize,
    clock: Clock,
}

impl<'k> EventWriter<'k> {
    pub(super) fn new(
        known: &'k Known,
        events: Option<File>,
        blocks: Option<File>,
    ) -> io::Result<EventWriter<'k>> {
        Ok(EventWriter {
            known,
            events: events.map(|file| known.events().begin(file)).transpose()?,
            blocks: blocks.map(|file| known.blocks().begin(file)).transpose()?,
            pending: Vec::new(),
            live: FxHashMap::default(),
            changed: None,
            next: 0,
            clock: Clock::default(),
        })
    }

    /// Returns the numbers of rows of `events` and `blocks`.
    pub(super) fn finish(self) -> io::Result<(u64, u64)> {
        let events = self.events.map_or(Ok(0), Table::finish)?;
        Ok((events, self.blocks.map_or(Ok(0), Table::finish)?))
    }

    fn allocated(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        let (known, begin_ns, number) = (self.known, self.clock.at(at), self.next);
        self.next += 1;
        let words = match how {
            AllocCause::Allocated => "",
            AllocCause::Checkpoint => "checkpoint",
            AllocCause::FreeFailed => "free_failed",
        };
        self.pending.push(EventRow { how: words, ..EventRow::of("alloc", at.thread, key, live) });
        let Some(blocks) = &mut self.blocks else { return };
        let (end_ns, end) = known.lives.get(number).unwrap_or((known.end_ns, SliceEnd::Live));
        let role = known.roles.get(at, key, live, how);
        let woken = known.owners.get(key, live);
        let end_ns = end_ns.max(begin_ns);
        blocks.push(BlockRow { begin_ns, end_ns, end, key, live: *live, role, woken });
    }

    fn freed(&mut self, at: &Stamped, key: Key, live: &Live, how: FreeCause) {
        let how = SliceEnd::from(how).name();
        self.pending.push(EventRow { how, ..EventRow::of("free", at.thread, key, live) });
    }

    /// A change of a device's sum without an allocation or a free: a pool or the graphs reserved memory.
    fn reserved(&mut self, at: &Stamped, state: &State) {
        let Some(device) = self.changed.take() else { return };
        let now = state.devices.get(&device).map_or(0, |device| device.live_bytes);
        let before = self.live.insert(device, now).unwrap_or(0);
        let has_row = self.pending.iter().any(|row| row.device == Some(device));
        if now != before && !has_row {
            let how = if now > before { "grew" } else { "shrank" };
            let (device, bytes) = (Some(device), Some(now.abs_diff(before)));
            let row = EventRow::new("reserved", at.thread);
            self.pending.push(EventRow { how, device, bytes, ..row });
        }
    }
}

impl Observer for EventWriter<'_> {
    fn on_alloc(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        self.allocated(at, key, live, how);
    }

    fn on_free(&mut self, at: &Stamped, key: Key, live: &Live, how: FreeCause) {
        self.freed(at, key, live, how);
    }

    fn on_block_alloc(&mut self, at: &Stamped, address: u64, live: &Live, how: AllocCause) {
        self.allocated(at, Key::block(address), live, how);
    }

    fn on_block_free(&mut self, at: &Stamped, address: u64, live: &Live, how: FreeCause) {
        self.freed(at, Key::block(address), live, how);
    }

    fn on_refusal(&mut self, at: &Stamped, refused: &Refused, site: Option<&Site>) {
        self.pending.push(EventRow {
            how: refused.by.name(),
            device: site.map(|site| site.device),
            kind: site.and_then(|site| site.kind),
            site: refused.site,
            bytes: Some(refused.size),
            stack: refused.stack,
            ..EventRow::new("refused", at.thread)
        });
    }

    fn on_cache_oom(&mut self, at: &Stamped, device: DeviceId, oom: &CacheOomAt) {
        self.pending.push(EventRow {
            device: Some(device),
            kind: Some(Kind::Block),
            bytes: Some(oom.size),
            stack: oom.stack,
            ..EventRow::new("out_of_memory", at.thread)
        });
    }

    fn on_took(&mut self, at: &Stamped, took: &Took) {
        self.pending.push(EventRow {
            how: if took.delta < 0 { "shrank" } else { "grew" },
            device: Some(took.device),
            site: took.site,
            bytes: Some(took.delta.unsigned_abs()),
            stack: took.stack,
            name: took.name,
            ..EventRow::new("driver_took", at.thread)
        });
    }

    fn on_mark(&mut self, at: &Stamped, name: u32, mark: Mark) {
        let how = match mark {
            Mark::Push => "push",
            Mark::Pop => "pop",
            Mark::Start => "start",
            Mark::End => "end",
            Mark::Moment => "",
        };
        self.pending.push(EventRow { how, name, ..EventRow::new("mark", at.thread) });
    }

    fn on_recording(&mut self, at: &Stamped, on: bool) {
        let event = if on { "recording_on" } else { "recording_off" };
        self.pending.push(EventRow::new(event, at.thread));
    }

    fn on_history_gap(&mut self, at: &Stamped) {
        self.pending.push(EventRow::new("lost", at.thread));
        self.live.clear();
    }

    fn on_device_change(&mut self, _at: &Stamped, device: DeviceId, _state: &DeviceState) {
        self.changed = Some(device);
    }

    fn on_applied(&mut self, at: &Stamped, state: &State) {
        let time_ns = self.clock.at(at);
        self.reserved(at, state);
        let Some(events) = &mut self.events else { return self.pending.clear() };
        for row in self.pending.drain(..) {
            let live = row.device.and_then(|device| state.devices.get(&device));
            let live_bytes = live.map(|device| device.live_bytes);
            events.push(EventRow { time_ns, live_bytes, ..row });
        }
    }
}
