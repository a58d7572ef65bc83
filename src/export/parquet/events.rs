//! The tables `events` (a row for each event that changes memory or says something of it) and `blocks` (a row for each
//! allocation), written in the second pass. Both are in the order of the file.

use std::fs::File;
use std::io;
use std::rc::Rc;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, Kind, Mark, Refused, SiteId, StackId, Stamped, ThreadId, Took};

use super::clock::Clock;
use super::columns::ordinal;
use super::lives::Lives;
use super::table::{Column, TableFile};
use crate::export::owners::Owners;
use crate::export::roles::KnownRoles;
use crate::export::sink::SliceEnd;
use crate::replay::{AllocCause, CacheOomAt, DeviceState, FreeCause, Key, Live, Observer, State};
use crate::trace::{Definitions, Site};

const EVENTS: [Column; 15] = [
    Column::int("time_ns").ascending(),
    Column::small("process"),
    Column::text("event"),
    Column::text("how").or_null(),
    Column::small("device").or_null(),
    Column::text("kind").or_null(),
    Column::text("api").or_null(),
    Column::int("bytes").or_null(),
    Column::int("address").or_null(),
    Column::small("stack").or_null(),
    Column::small("tid").or_null(),
    Column::int("stream").or_null(),
    Column::real("weight"),
    Column::int("live_bytes").or_null(),
    Column::text("name").or_null(),
];

const BLOCKS: [Column; 19] = [
    Column::int("begin_ns").ascending(),
    Column::int("end_ns"),
    Column::text("end"),
    Column::int("allocated_ns"),
    Column::small("process"),
    Column::small("device").or_null(),
    Column::text("kind"),
    Column::int("bytes"),
    Column::int("physical_bytes").or_null(),
    Column::int("address"),
    Column::small("stack").or_null(),
    Column::text("role").or_null(),
    Column::text("api"),
    Column::small("tid").or_null(),
    Column::int("stream"),
    Column::small("context").or_null(),
    Column::small("pool").or_null(),
    Column::real("weight"),
    Column::small("brought_back_by").or_null(),
];

/// A row of `events` whose event is not yet applied.
struct Pending {
    event: &'static str,
    how: &'static str,
    device: Option<DeviceId>,
    kind: Option<Kind>,
    site: SiteId,
    bytes: Option<u64>,
    address: Option<u64>,
    stack: StackId,
    thread: ThreadId,
    weight: f64,
    /// The id of a text; 0: none.
    name: u32,
}

impl Pending {
    fn new(event: &'static str, thread: ThreadId) -> Pending {
        Pending {
            event,
            how: "",
            device: None,
            kind: None,
            site: SiteId(0),
            bytes: None,
            address: None,
            stack: StackId(0),
            thread,
            weight: 1.0,
            name: 0,
        }
    }

    fn of(event: &'static str, thread: ThreadId, key: Key, live: &Live) -> Pending {
        Pending {
            device: (!live.kind.is_host()).then_some(live.device),
            kind: Some(live.kind),
            site: live.site,
            bytes: Some(live.size),
            address: Some(key.number),
            stack: live.stack,
            weight: live.weight,
            ..Pending::new(event, thread)
        }
    }
}

/// What the second pass looks up.
pub(super) struct Known {
    pub definitions: Rc<Definitions>,
    pub lives: Lives,
    pub roles: KnownRoles,
    pub owners: Owners,
    /// Time of the last event.
    pub end_ns: u64,
}

/// Writes both tables, or one of them. An [`Observer`] of the second pass.
pub(super) struct EventWriter {
    process: u32,
    known: Known,
    events: Option<TableFile>,
    blocks: Option<TableFile>,
    apis: FxHashMap<SiteId, Rc<str>>,
    pending: Vec<Pending>,
    /// Live bytes of each device in the last row.
    live: FxHashMap<DeviceId, u64>,
    /// The sum of a device changed in this event.
    changed: Option<DeviceId>,
    /// Number of the next allocation.
    next: usize,
    clock: Clock,
    /// The first failure; nothing is written after it.
    failed: Option<io::Error>,
}

/// Rows of `events` and `blocks`.
pub(super) type Written = (u64, u64);

impl EventWriter {
    pub(super) fn new(
        process: u32,
        known: Known,
        events: Option<File>,
        blocks: Option<File>,
    ) -> io::Result<EventWriter> {
        Ok(EventWriter {
            process,
            known,
            events: events.map(|file| TableFile::new(file, &EVENTS)).transpose()?,
            blocks: blocks.map(|file| TableFile::new(file, &BLOCKS)).transpose()?,
            apis: FxHashMap::default(),
            pending: Vec::new(),
            live: FxHashMap::default(),
            changed: None,
            next: 0,
            clock: Clock::default(),
            failed: None,
        })
    }

    pub(super) fn finish(self) -> io::Result<Written> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let rows = |table: Option<TableFile>| table.map_or(Ok(0), TableFile::finish);
        Ok((rows(self.events)?, rows(self.blocks)?))
    }

    fn push(&mut self, row: Pending) {
        if self.events.is_some() {
            self.pending.push(row);
        }
    }

    fn api(&mut self, site: SiteId) -> Rc<str> {
        let name = || Rc::from(self.known.definitions.site_api_name(site));
        Rc::clone(self.apis.entry(site).or_insert_with(name))
    }

    fn allocated(&mut self, at: &Stamped, key: Key, live: &Live, how: AllocCause) {
        let now_ns = self.clock.at(at);
        let number = self.next;
        self.next += 1;
        let words = match how {
            AllocCause::Allocated => "",
            AllocCause::Checkpoint => "checkpoint",
            AllocCause::FreeFailed => "free_failed",
        };
        self.push(Pending { how: words, ..Pending::of("alloc", at.thread, key, live) });
        if self.blocks.is_some() && self.failed.is_none() {
            self.failed = self.block(at, (now_ns, number), key, live, how).err();
        }
    }

    fn block(
        &mut self,
        at: &Stamped,
        (now_ns, number): (u64, usize),
        key: Key,
        live: &Live,
        how: AllocCause,
    ) -> io::Result<()> {
        let api = self.api(live.site);
        let Some(table) = &mut self.blocks else { return Ok(()) };
        let known = &self.known;
        let end = known.lives.get(number);
        let (end_ns, end) = end.unwrap_or((known.end_ns.max(now_ns), SliceEnd::Live));
        let device = (!live.kind.is_host()).then(|| ordinal(live.device)).flatten();
        let role = known.roles.get(at, key, live, how);
        let woken = known.owners.get(key, live);
        let owner = woken.map_or(live.stack, |woken| woken.owner);
        table.row(|row| {
            row.int(now_ns);
            row.int(end_ns.max(now_ns));
            row.text(end.name());
            row.int(live.time_ns.min(now_ns));
            row.small(self.process);
            row.small(device);
            row.text(live.kind.name());
            row.int(live.size);
            row.int((live.kind != Kind::Block).then(|| live.share()));
            row.int(key.number);
            row.small(numbered(owner.0));
            row.text(role.map_or("", |role| role.name()));
            row.text(&api);
            row.small(tid(&known.definitions, live.thread));
            row.int(known.definitions.site(live.site).map_or(0, |site| site.stream));
            row.small(numbered(live.context.0.into()));
            row.small(numbered(live.pool.0.into()));
            row.real(live.weight);
            row.small(woken.and_then(|woken| numbered(woken.by.0)));
        })
    }

    fn freed(&mut self, at: &Stamped, key: Key, live: &Live, how: FreeCause) {
        let how = SliceEnd::from(how).name();
        self.push(Pending { how, ..Pending::of("free", at.thread, key, live) });
    }

    /// Writes a row with the sums after its event.
    fn event(&mut self, now_ns: u64, pending: &Pending, state: &State) -> io::Result<()> {
        let live = pending.device.and_then(|device| state.devices.get(&device));
        let live = live.map(|device| device.live_bytes);
        let api = (pending.site != SiteId(0)).then(|| self.api(pending.site));
        let definitions = &self.known.definitions;
        let Some(table) = &mut self.events else { return Ok(()) };
        table.row(|row| {
            row.int(now_ns);
            row.small(self.process);
            row.text(pending.event);
            row.text(pending.how);
            row.small(pending.device.and_then(ordinal));
            row.text(pending.kind.map_or("", Kind::name));
            row.text(api.as_deref().unwrap_or(""));
            row.int(pending.bytes);
            row.int(pending.address);
            row.small(numbered(pending.stack.0));
            row.small(tid(definitions, pending.thread));
            row.int(definitions.site(pending.site).map(|site| site.stream));
            row.real(pending.weight);
            row.int(live);
            row.text(definitions.text(pending.name).unwrap_or(""));
        })
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
            self.push(Pending { how, device, bytes, ..Pending::new("reserved", at.thread) });
        }
    }
}

fn numbered(number: u32) -> Option<u32> {
    (number != 0).then_some(number)
}

fn tid(definitions: &Definitions, thread: ThreadId) -> Option<u32> {
    definitions.thread(thread).and_then(|thread| numbered(thread.tid))
}

impl Observer for EventWriter {
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
        self.push(Pending {
            how: refused.by.name(),
            device: site.map(|site| site.device),
            kind: site.and_then(|site| site.kind),
            site: refused.site,
            bytes: Some(refused.size),
            stack: refused.stack,
            ..Pending::new("refused", at.thread)
        });
    }

    fn on_cache_oom(&mut self, at: &Stamped, device: DeviceId, oom: &CacheOomAt) {
        self.push(Pending {
            device: Some(device),
            kind: Some(Kind::Block),
            bytes: Some(oom.size),
            stack: oom.stack,
            ..Pending::new("out_of_memory", at.thread)
        });
    }

    fn on_took(&mut self, at: &Stamped, took: &Took) {
        self.push(Pending {
            how: if took.delta < 0 { "shrank" } else { "grew" },
            device: Some(took.device),
            site: took.site,
            bytes: Some(took.delta.unsigned_abs()),
            stack: took.stack,
            name: took.name,
            ..Pending::new("driver_took", at.thread)
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
        self.push(Pending { how, name, ..Pending::new("mark", at.thread) });
    }

    fn on_recording(&mut self, at: &Stamped, on: bool) {
        let event = if on { "recording_on" } else { "recording_off" };
        self.push(Pending::new(event, at.thread));
    }

    fn on_history_gap(&mut self, at: &Stamped) {
        self.push(Pending::new("lost", at.thread));
        self.live.clear();
    }

    fn on_device_change(&mut self, _at: &Stamped, device: DeviceId, _state: &DeviceState) {
        self.changed = Some(device);
    }

    fn on_applied(&mut self, at: &Stamped, state: &State) {
        let now_ns = self.clock.at(at);
        self.reserved(at, state);
        if self.failed.is_some() {
            return self.pending.clear();
        }
        let mut pending = std::mem::take(&mut self.pending);
        for row in pending.drain(..) {
            if self.failed.is_none() {
                self.failed = self.event(now_ns, &row, state).err();
            }
        }
        self.pending = pending;
    }
}
