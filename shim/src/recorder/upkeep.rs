//! What is done now and then at the end of a call, outside all locks: totals at each new window,
//! checkpoints in slices, the live page.

use super::{RUNNING, Recorder, SILENT, TOTALS, slot};
use crate::ledger::Cursor;
use crate::process::Process;
use std::sync::atomic::Ordering;
use vramtrace_format::{Counters, Definition, DeviceId, Event, Kind, LiveDevice};

/// The live page's figures are at most this old while calls come.
const EVERY_NS: u64 = 1_000_000;
const CREDIT_MOST: u64 = 64;
/// Records of a checkpoint that one call writes: a few microseconds.
const SLICE: usize = 32;

/// What a trace's upkeep needs to know of the process. A trait, so that tests can drive the
/// recorder without a driver.
pub trait Books {
    fn devices(&self) -> Vec<DeviceId>;
    fn counters(&self, device: DeviceId) -> Counters;
    fn live_device(&self, counters: &Counters) -> LiveDevice;
    /// The limits in force for a device, if there are any.
    fn limits(&self, device: DeviceId, emit: &mut dyn FnMut(&Event));
    /// A new window or checkpoint has begun, or the process ends: what others say of memory is
    /// due, now or at their next call.
    fn others(&self, end: bool, emit: &mut dyn FnMut(&Event));
    fn begin_checkpoint(&self, id: u32, append: &mut dyn FnMut());
    /// What is few: contexts, mappings, pools, graphs, what the driver holds of its own.
    fn checkpoint_frame(&self, id: u32, emit: &mut dyn FnMut(&Event));
    fn checkpoint_slice(
        &self,
        cursor: &mut Cursor,
        budget: usize,
        emit: &mut dyn FnMut(&Event),
    ) -> bool;
}

pub struct Upkeep {
    /// `None` = the trace may grow without end: then it needs no checkpoints.
    max: Option<u64>,
    last_id: u32,
    running: Option<Running>,
    /// Bytes of event windows at the start of the last checkpoint.
    since_bytes: u64,
    /// What the last checkpoint took.
    last_cost: u64,
    /// Event window in which the totals were noted last.
    noted: Option<u64>,
    /// When the live page's figures are due.
    figures_due_ns: u64,
    /// When they were stored last, and how often they may be stored at once.
    figures_ns: u64,
    credit: u64,
    /// When the next checkpoint is due in a trace that only keeps totals.
    totals_due_ns: u64,
}

struct Running {
    cursor: Cursor,
    records: u64,
}

impl Upkeep {
    pub fn new(max: Option<u64>) -> Upkeep {
        Upkeep {
            max,
            last_id: 0,
            running: None,
            since_bytes: 0,
            last_cost: 0,
            noted: None,
            figures_due_ns: 0,
            figures_ns: 0,
            credit: CREDIT_MOST,
            totals_due_ns: 0,
        }
    }

    /// When the figures are due again: at the next call while there is credit, which comes back
    /// with time. Who calls seldom is shown exactly, who calls a lot about once a millisecond.
    fn next_figures(&mut self, now_ns: u64) -> u64 {
        let earned = now_ns.saturating_sub(self.figures_ns) / EVERY_NS;
        self.figures_ns = now_ns;
        self.credit = self.credit.saturating_add(earned).min(CREDIT_MOST);
        if self.credit == 0 {
            return now_ns + EVERY_NS;
        }
        self.credit -= 1;
        now_ns
    }

    /// Bytes of events between two checkpoints: little enough that what leads to a peak is a
    /// small part of the limit, and enough that checkpoints are a small part of the trace.
    fn interval(&self, max: u64) -> u64 {
        (3 * self.last_cost).clamp(max / 16, max / 8)
    }
}

/// Bytes of a checkpoint's record in the file.
const RECORD_BYTES: u64 = 56;

impl Recorder {
    /// Called at the end of each hook, outside all locks.
    #[inline]
    pub fn after_call(&self, process: &'static Process) {
        if process.cap.has_news() {
            crate::hooks::control::tell_news(process);
        }
        let due = slot::last_ns() >= self.due_ns.load(Ordering::Relaxed);
        if due || self.left_to_ask.load(Ordering::Relaxed) {
            self.left_to_ask.store(false, Ordering::Relaxed);
            self.keep_up(process, false);
            process.observe.now_and_then(process);
        } else if !self.behind.load(Ordering::Relaxed) {
            self.behind.store(true, Ordering::Relaxed);
        }
    }

    /// As `after_call`, where nobody else may be asked: with a lock of the program's held. Blocks
    /// change none of the live page's figures, so that time alone makes nothing due.
    #[inline]
    pub fn after_block(&self, process: &'static Process) {
        let due_ns = self.due_ns.load(Ordering::Relaxed);
        if due_ns == 0 || slot::last_ns() >= due_ns && self.waits_for_time() {
            self.keep_up(process, false);
            self.left_to_ask.store(true, Ordering::Relaxed);
        }
    }

    fn waits_for_time(&self) -> bool {
        self.behind.load(Ordering::Relaxed) || self.state.load(Ordering::Relaxed) == TOTALS
    }

    /// `end`: the process ends; what is due later is done now.
    #[cold]
    pub fn keep_up(&self, books: &impl Books, end: bool) {
        let Some(mut upkeep) = self.upkeep.try_lock() else { return };
        let now_ns = self.now_ns();
        let state = self.state.load(Ordering::Acquire);
        let trace = self.trace().filter(|_| state == RUNNING || state == TOTALS);
        let sequence = trace.map(|trace| trace.sequence());
        let new_window = sequence.is_some() && upkeep.noted != sequence;
        let stale = self.stale.swap(false, Ordering::Relaxed);
        if end || new_window || stale || now_ns >= upkeep.figures_due_ns {
            self.behind.store(false, Ordering::Relaxed);
            let devices = books.devices().into_iter();
            let counters: Vec<Counters> = devices.map(|device| books.counters(device)).collect();
            if let Some(sequence) = sequence.filter(|_| end || new_window) {
                self.note(books, &counters, sequence);
                books.others(end, &mut |event| self.record(event));
            }
            if let Some(live) = self.live() {
                let figures: Vec<LiveDevice> =
                    counters.iter().map(|counters| books.live_device(counters)).collect();
                live.update(now_ns, &figures);
            }
            (upkeep.noted, upkeep.figures_due_ns) = (sequence, upkeep.next_figures(now_ns));
        }
        if upkeep.running.is_some() && trace.is_some() {
            self.slice(&mut upkeep, books, if end { usize::MAX } else { SLICE });
        } else if let (Some(max), Some(trace)) = (upkeep.max, trace) {
            let due = match state {
                TOTALS => {
                    (end || now_ns >= upkeep.totals_due_ns)
                        && self.room_for_totals(&mut upkeep, now_ns, end)
                }
                _ => trace.event_bytes() - upkeep.since_bytes >= upkeep.interval(max),
            };
            if due {
                self.begin(&mut upkeep, books);
                if end {
                    self.slice(&mut upkeep, books, usize::MAX);
                }
            }
        }
        let busy = upkeep.running.is_some() && trace.is_some();
        self.due_ns.store(if busy { 0 } else { upkeep.figures_due_ns }, Ordering::Relaxed);
    }

    /// The live page is to show what this call does.
    pub fn refresh(&self) {
        self.stale.store(true, Ordering::Relaxed);
        self.due_ns.store(0, Ordering::Relaxed);
    }

    /// The totals of all devices, and what they say about what must be kept; the caps, so that
    /// they are in what is left of a punched trace too.
    fn note(&self, books: &impl Books, counters: &[Counters], sequence: u64) {
        for one in counters {
            self.record(&Event::Counters(*one));
            books.limits(DeviceId(one.device), &mut |event| self.record(event));
        }
        let Some(trace) = self.trace() else { return };
        let lost = trace.with_bound(|bound| {
            for one in counters {
                bound.peak(DeviceId(one.device), one.peak, sequence);
            }
            bound.take_lost()
        });
        for device in lost {
            let text = format!(
                "the events that lead to the peak of device {} took too much of VRAMTRACE_MAX and \
                 were given up; its figures stay",
                device.0
            );
            self.define(&Definition::Note { text });
        }
    }

    fn begin(&self, upkeep: &mut Upkeep, books: &impl Books) {
        let Some(trace) = self.trace() else { return };
        let id = upkeep.last_id + 1;
        upkeep.last_id = id;
        upkeep.since_bytes = trace.event_bytes();
        trace.with_bound(|bound| bound.checkpoint_begins(trace.sequence()));
        books.begin_checkpoint(id, &mut || self.record(&Event::CheckpointBegin { id }));
        let mut records = 0;
        books.others(false, &mut |event| self.record(event));
        books.checkpoint_frame(id, &mut |event| {
            records += 1;
            self.record(event);
        });
        upkeep.running = Some(Running { cursor: Cursor::new(id), records });
    }

    fn slice(&self, upkeep: &mut Upkeep, books: &impl Books, budget: usize) {
        let id = upkeep.last_id;
        let Some(running) = &mut upkeep.running else { return };
        let Running { cursor, records } = running;
        let done = books.checkpoint_slice(cursor, budget, &mut |event| {
            *records += 1;
            self.record(event);
        });
        if !done {
            return;
        }
        self.record(&Event::CheckpointEnd { id });
        upkeep.last_cost = *records * RECORD_BYTES;
        upkeep.running = None;
        if let Some(trace) = self.trace() {
            trace.with_bound(|bound| bound.checkpoint_ends(trace.sequence()));
        }
    }

    /// Where nothing can be punched, each checkpoint takes room for good: they come at doubling
    /// intervals, and the last room is for the one at the end.
    fn room_for_totals(&self, upkeep: &mut Upkeep, now_ns: u64, end: bool) -> bool {
        let Some(trace) = self.trace() else { return false };
        upkeep.totals_due_ns = now_ns.saturating_mul(2);
        // It may have grown since the last one, and takes whole windows.
        let cost = 2 * upkeep.last_cost + (4 << 18);
        let left = trace.with_bound(|bound| bound.left()).unwrap_or(u64::MAX);
        left >= if end { cost } else { 2 * cost }
    }

    /// Whether anything can still be recorded.
    pub fn is_silent(&self) -> bool {
        self.state.load(Ordering::Acquire) == SILENT
    }
}

impl Books for Process {
    fn limits(&self, device: DeviceId, emit: &mut dyn FnMut(&Event)) {
        if self.cap.is_set() {
            crate::hooks::control::limits(self, device, emit);
        }
    }

    fn devices(&self) -> Vec<DeviceId> {
        let with_context = |device: &DeviceId| self.contexts.any_on(*device);
        let met = self.devices.all().map(|device| device.id).filter(with_context);
        let mut devices: Vec<DeviceId> = self.ledger.devices().chain(met).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    fn counters(&self, device: DeviceId) -> Counters {
        let counters = self.ledger.counters(device);
        Counters { counted: self.cap.counted(device, counters.live), ..counters }
    }

    fn live_device(&self, counters: &Counters) -> LiveDevice {
        let device = DeviceId(counters.device);
        let of = |kind| self.ledger.live_of(device, kind);
        let known = self.devices.known(device);
        LiveDevice {
            ordinal: counters.device,
            live: counters.live,
            peak: counters.peak,
            reserved: of(Kind::Pool) + of(Kind::Graph),
            counted: counters.counted,
            cap: self.cap.limit(device),
            live_allocations: counters.live_allocations,
            allocations: counters.allocations,
            frees: counters.frees,
            refused_by_cap: counters.refused_by_cap,
            refused_by_driver: counters.refused_by_driver,
            events: counters.allocations
                + counters.frees
                + counters.refused_by_cap
                + counters.refused_by_driver,
            warned: counters.warned,
            total_bytes: known.map_or(0, |known| known.total_bytes),
            uuid: known.map_or([0; 16], |known| known.uuid),
            only_warns: self.cap.only_warns(),
        }
    }

    fn others(&self, end: bool, emit: &mut dyn FnMut(&Event)) {
        if end {
            self.caches.events().for_each(|event| emit(&event));
        } else {
            self.caches.ask();
        }
    }

    fn begin_checkpoint(&self, id: u32, append: &mut dyn FnMut()) {
        self.ledger.begin_checkpoint(id, append);
    }

    fn checkpoint_frame(&self, id: u32, emit: &mut dyn FnMut(&Event)) {
        self.contexts.for_each(|context| {
            let (context, device, time_ns, stack) =
                (context.id, context.device, context.time_ns, context.stack);
            emit(&Event::CheckpointContext { id, context, device, time_ns, stack });
        });
        for mapping in self.vmm.lock().mappings() {
            let (address, size, offset, object) =
                (mapping.address, mapping.size, mapping.offset, mapping.object);
            emit(&Event::CheckpointMap { id, address, size, offset, object });
        }
        for pool in self.pools.all() {
            let (reserved, used) = pool.growth.known();
            if reserved != 0 || used != 0 {
                emit(&Event::CheckpointPool { id, pool: pool.id(), reserved, used });
            }
        }
        for device in self.ledger.devices() {
            let memory = self.graphs.memory(device);
            let (reserved, used) = (self.ledger.live_of(device, Kind::Graph), memory.used());
            if reserved != 0 || used != 0 {
                emit(&Event::CheckpointGraph { id, device, reserved, used });
            }
        }
        self.observe.each_took(|took| emit(&Event::CheckpointTook { id, took }));
    }

    fn checkpoint_slice(
        &self,
        cursor: &mut Cursor,
        budget: usize,
        emit: &mut dyn FnMut(&Event),
    ) -> bool {
        self.ledger.checkpoint_slice(cursor, budget, emit)
    }
}
