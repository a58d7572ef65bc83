//! Periodic work at the end of a call, outside all locks: totals at each new window, slices of
//! checkpoints, the live page, and once a second writing windows to the trace.

use super::credit::Credit;
use super::history::HistoryKeeper;
use super::live::PublishedPage;
use super::switch::Switch;
use super::{BEHIND, HELD, LEFT_TO_ASK, PAUSED, RUNNING, SILENT, TOTALS, TraceWriter};
use crate::config::Config;
use crate::model::history::Phases;
use crate::model::ledger::{Cursor, Ledger};
use crate::runtime::private_table::{self, NoTask, Table};
use crate::runtime::{log, own_stack, thread_slot};
use crate::trace_writer::trace::Trace;
use std::sync::atomic::Ordering;
use vramtrace_format::{
    Counters, Definition, DeviceId, Event, Listed, LiveDevice, Purpose, StateHolder,
};

/// The live page's figures are at most this old while calls come. Their sums read some hundred cache lines, which a program's
/// step has evicted: with samples of blocks, for programs that stay on, they are made less often.
const EVERY_NS: u64 = 1_000_000;
const EVERY_NS_SAMPLED: u64 = 20_000_000;
const FIGURES_MOST: i64 = 64;
/// Time between two copies of the live page to its file, and the number of copies that may be made at
/// once, so that the file is exact for programs with few calls.
const COPY_EVERY_NS: u64 = 1_000_000_000;
const COPIES_MOST: i64 = 8;
/// While calls come, a copy of the trace without its tail lacks at most this much.
const WRITE_EVERY_NS: u64 = 1_000_000_000;
/// Both open files in a task, whose cost depends on the file systems: there is at least this many times
/// their duration between two of them.
const SHARE: u64 = 100;
/// Records of a checkpoint that one call writes, which takes a few microseconds.
const SLICE: usize = 32;

/// The process state that maintenance reads. A trait, so that tests can run the trace writer without a
/// driver.
pub trait ProcessView {
    fn devices(&self) -> Vec<DeviceId>;
    fn counters(&self, device: DeviceId) -> Counters;
    fn live_device(&self, counters: &Counters) -> LiveDevice;
    /// The limits in force for a device, if there are any.
    fn limits(&self, device: DeviceId, emit: &mut dyn FnMut(&Event));
    /// The recorder's cost so far: time, and the number of distinct stacks.
    fn cost(&self) -> Cost;
    /// A new window or checkpoint has begun, or the process ends: figures of NVML and PyTorch are to be
    /// recorded, now or at their next call.
    fn others(&self, end: bool, emit: &mut dyn FnMut(&Event));
    /// Whether a summary at the trace's end would be right.
    fn can_sum_up(&self) -> bool;
    /// What the driver took for itself, for the summary. `None`: without host memory it is not known.
    fn driver_holders(&self) -> Option<Vec<StateHolder>>;
    /// Requests on which a framework's cache gave up.
    fn cache_ooms(&self) -> u32;
    /// What the history samples.
    fn ledger(&self) -> &Ledger;
    fn phases(&self) -> &Phases;
    /// The small parts of a checkpoint, as events with their times: contexts, mappings, pools, graphs, the driver's own
    /// memory.
    fn checkpoint_frame(&self, emit: &mut dyn FnMut(u64, &Event));
}

/// What the hooks cost, by a sample of their calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Calls of the sample, and their time without the driver's.
    pub calls: u64,
    pub ns: u64,
    /// One call in this many is timed.
    pub one_of: u64,
    pub stacks: u64,
}

pub struct Maintenance {
    /// `None` = the trace has no limit: then it needs no checkpoints.
    max: Option<u64>,
    /// The last checkpoint or history. The summary has number 0.
    last_id: u32,
    running: Option<Running>,
    /// Bytes of event windows at the start of the last checkpoint.
    since_bytes: u64,
    /// Bytes of the last checkpoint.
    last_cost: u64,
    /// The event window in which totals were last recorded.
    noted: Option<u64>,
    /// When the live page's figures are due, and how many more times they may be stored without delay.
    figures_due_ns: u64,
    figures_every_ns: u64,
    figures: Credit,
    /// How many more times the live page may be copied.
    copies_every_ns: u64,
    copies: Credit,
    /// When the next checkpoint is due in a trace that only keeps totals.
    totals_due_ns: u64,
    pub(super) history: Option<HistoryKeeper>,
    pub(super) switch: Switch,
}

struct Running {
    cursor: Cursor,
    records: u64,
}

impl Maintenance {
    pub(super) fn new(config: &Config) -> Maintenance {
        Maintenance {
            max: config.max,
            last_id: 0,
            running: None,
            since_bytes: 0,
            last_cost: 0,
            noted: None,
            figures_due_ns: 0,
            figures_every_ns: if config.samples_blocks() { EVERY_NS_SAMPLED } else { EVERY_NS },
            figures: Credit::new(FIGURES_MOST, 0),
            copies_every_ns: COPY_EVERY_NS,
            copies: Credit::new(COPIES_MOST, 0),
            totals_due_ns: 0,
            history: config.max.map(HistoryKeeper::new),
            switch: Switch::new(config.runtime_directory.as_deref()),
        }
    }

    /// Bytes of events between two checkpoints: few enough that the events before a peak are a small
    /// part of the limit, and enough that checkpoints are a small part of the trace.
    fn interval(&self, max: u64) -> u64 {
        (3 * self.last_cost).clamp(max / 16, max / 8)
    }
}

/// Bytes of a checkpoint's record in the file.
const RECORD_BYTES: u64 = 56;

impl TraceWriter {
    /// Whether work is due at the end of this call. If not, notes that a call has ended.
    #[inline]
    pub fn is_due(&self) -> bool {
        let due = thread_slot::last_ns() >= self.due_ns.load(Ordering::Relaxed);
        (due || self.noted.load(Ordering::Relaxed) != BEHIND) && self.note_call(due)
    }

    #[cold]
    fn note_call(&self, due: bool) -> bool {
        let due = due || self.noted.fetch_or(BEHIND, Ordering::Relaxed) & LEFT_TO_ASK != 0;
        if due {
            self.noted.fetch_and(!LEFT_TO_ASK, Ordering::Relaxed);
        }
        due
    }

    /// As `is_due`, at the end of a call about a block, in which the driver and NVML may not be called.
    /// Blocks do not change the live page's figures, so elapsed time alone makes nothing due. Work that
    /// calls NVML is left to the next driver call.
    #[inline]
    pub fn is_due_after_block(&self) -> bool {
        let (due_ns, now_ns) = (self.due_ns.load(Ordering::Relaxed), thread_slot::last_ns());
        now_ns >= due_ns && (due_ns == 0 || self.waits_for_time(now_ns))
    }

    /// After a block the part that calls NVML is left to a driver call.
    pub fn leave_to_ask(&self) {
        self.noted.fetch_or(LEFT_TO_ASK, Ordering::Relaxed);
    }

    #[inline(always)]
    fn waits_for_time(&self, now_ns: u64) -> bool {
        self.noted.load(Ordering::Relaxed) & BEHIND != 0
            || self.state.load(Ordering::Relaxed) == TOTALS
            || now_ns >= self.write_due_ns.load(Ordering::Relaxed)
            || now_ns >= self.switch_due_ns.load(Ordering::Relaxed)
    }

    /// Does the work that is due. `end`: the process ends, so everything is done now.
    #[cold]
    pub fn maintain(&self, view: &impl ProcessView, end: bool) {
        let Some(mut of) = self.maintenance.try_lock() else { return };
        let now_ns = self.clock.now_ns();
        let mut turn = Turn { writer: self, of: &mut of, view, now_ns, end };
        turn.follow_switch();
        self.catch_up(now_ns);
        let state = self.state.load(Ordering::Acquire);
        let trace = self.trace().filter(|_| state == RUNNING || state == TOTALS);
        let copied = turn.store_figures(trace);
        let kept = self.trace().filter(|_| matches!(state, RUNNING | TOTALS | PAUSED | HELD));
        let written = kept.filter(|_| now_ns >= self.write_due_ns.load(Ordering::Relaxed));
        if written.is_some() {
            self.write_due_ns.store(now_ns + WRITE_EVERY_NS, Ordering::Relaxed);
        }
        trace.into_iter().for_each(|trace| turn.keep_checkpoints(trace));
        match trace {
            Some(trace) if end => _ = own_stack::run(|| turn.end_history(trace)),
            _ if state == SILENT => {}
            _ => turn.keep_history(trace),
        }
        let is_busy = of.running.is_some() && trace.is_some();
        self.due_ns.store(if is_busy { 0 } else { of.figures_due_ns }, Ordering::Relaxed);
        // Other threads go on with a checkpoint meanwhile.
        drop(of);
        if copied || written.is_some() {
            self.write_files(written, self.live().filter(|_| copied), now_ns);
        }
    }

    /// Writes the last figures and the record of an orderly end. Other threads may still append after
    /// it.
    pub fn end(&self, view: &impl ProcessView) {
        self.trace().into_iter().for_each(|trace| trace.attempts.forget());
        // A truncation is found here, and followed by a checkpoint.
        self.write_now(view);
        self.maintain(view, true);
        if let Some(trace) = self.trace() {
            if self.state.load(Ordering::Acquire) == RUNNING && view.can_sum_up() {
                own_stack::run(|| self.sum_up(view));
            }
            self.record(&Event::Ended);
            trace.write_at_once();
            self.short.end();
            trace.finish();
        }
        if let Some(live) = self.live() {
            live.end();
        }
    }

    /// The summary at the trace's end.
    fn sum_up(&self, view: &impl ProcessView) {
        // Without host memory for it there is none, and a reader replays the trace.
        let Some(driver) = view.driver_holders() else { return };
        let over_time = self.held_over_time(view);
        let (id, what) = (0, Purpose::Summary);
        self.record(&Event::StateBegin { id, what, cache_ooms: view.cache_ooms() });
        for device in view.devices() {
            let counters = Event::Counters(view.counters(device));
            self.record(&Event::StateEvent(Listed::new(id, 0, &counters)));
            let held = over_time.as_ref().and_then(|sums| sums.of(device));
            held.into_iter().for_each(|held| self.record(&Event::StateHeld(held)));
            view.ledger().summary(device, &mut |event| self.record(event));
        }
        driver.into_iter().for_each(|holder| self.record(&Event::StateHolder(holder)));
        self.record(&Event::StateEnd { id, cut: false });
    }

    /// Writes the windows to the trace, and the copy of the live page, in one task.
    fn write_files(&self, trace: Option<&Trace>, live: Option<&PublishedPage>, now_ns: u64) {
        let work = |_: &Table| {
            live.into_iter().for_each(PublishedPage::copy);
            trace.map_or(Ok(()), Trace::flush)
        };
        let done = private_table::run(work);
        let pause_ns = SHARE * self.clock.now_ns().saturating_sub(now_ns);
        if live.is_some() {
            self.maintenance.lock().copies_every_ns = COPY_EVERY_NS.max(pause_ns);
        }
        let Some(trace) = trace else { return };
        self.write_due_ns.store(now_ns + WRITE_EVERY_NS.max(pause_ns), Ordering::Relaxed);
        match done {
            Ok(Ok(())) if trace.cut.swap(false, Ordering::Relaxed) => self.go_on_after_cut(trace),
            Ok(Err(failure)) => self.fail(failure, now_ns),
            // Without a task: what is in memory is written later.
            Ok(Ok(())) | Err(NoTask { .. }) => {}
        }
    }

    /// The file was truncated: what is live is recorded again by a checkpoint.
    fn go_on_after_cut(&self, trace: &Trace) {
        self.maintenance.lock().history.iter_mut().for_each(HistoryKeeper::lost);
        self.owes_checkpoint.store(true, Ordering::Relaxed);
        self.due_ns.store(0, Ordering::Relaxed);
        let text = format!(
            "{}: the file was truncated while it was written; records in the lost part are missing",
            trace.path().display()
        );
        if !self.cut_reported.swap(true, Ordering::Relaxed) {
            log::line(format_args!("{text}; the program and the recording go on"));
        }
        self.define(&Definition::Note { text });
    }

    /// Writes everything recorded so far to the file, with the current figures.
    pub fn write_now(&self, view: &impl ProcessView) {
        self.write_due_ns.store(0, Ordering::Relaxed);
        self.maintain(view, false);
    }

    /// Makes the live page show the effect of this call.
    pub fn refresh(&self) {
        self.stale.store(true, Ordering::Relaxed);
        self.due_ns.store(0, Ordering::Relaxed);
    }

    /// Whether nothing can be recorded any more.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.state.load(Ordering::Acquire) == SILENT
    }
}

/// A turn of maintenance, by the thread that has its lock.
pub(super) struct Turn<'t, V> {
    pub(super) writer: &'t TraceWriter,
    pub(super) of: &'t mut Maintenance,
    pub(super) view: &'t V,
    pub(super) now_ns: u64,
    pub(super) end: bool,
}

impl<V: ProcessView> Turn<'_, V> {
    /// Of one for each device.
    #[allow(clippy::disallowed_methods)]
    pub(super) fn counters(&self) -> Vec<Counters> {
        self.view.devices().into_iter().map(|device| self.view.counters(device)).collect()
    }

    /// Stores figures in the live page and, in each new window, in the trace, if they are due. True: the page is to be
    /// copied.
    fn store_figures(&mut self, trace: Option<&Trace>) -> bool {
        let Turn { writer, now_ns, end, .. } = *self;
        let sequence = trace.map(Trace::sequence);
        let new_window = sequence.is_some() && self.of.noted != sequence;
        let stale = writer.stale.swap(false, Ordering::Relaxed);
        if !(end || new_window || stale || now_ns >= self.of.figures_due_ns) {
            return false;
        }
        writer.noted.fetch_and(!BEHIND, Ordering::Relaxed);
        let counters = self.counters();
        if let Some(trace) = trace.filter(|_| end || new_window) {
            self.note(trace, &counters);
            self.view.others(end, &mut |event| writer.record(event));
        }
        self.of.noted = sequence;
        // At the next call while there is credit: so programs with few calls are shown exactly.
        let every_ns = self.of.figures_every_ns;
        let at_once = self.of.figures.has_any(now_ns, every_ns);
        self.of.figures.spend(at_once.into());
        self.of.figures_due_ns = if at_once { now_ns } else { now_ns + every_ns };
        let Some(live) = writer.live() else { return false };
        let figures = counters.iter().map(|counters| self.view.live_device(counters));
        #[allow(clippy::disallowed_methods)] // one for each device at most
        live.update(now_ns, &figures.collect::<Vec<LiveDevice>>());
        let copied = !end && self.of.copies.has_any(now_ns, self.of.copies_every_ns);
        self.of.copies.spend(copied.into());
        copied
    }

    /// Records the totals of all devices, and updates which windows must be kept; also records the
    /// caps, so that a punched trace has them too.
    pub(super) fn note(&self, trace: &Trace, counters: &[Counters]) {
        let (writer, sequence) = (self.writer, trace.sequence());
        for one in counters {
            writer.record(&Event::Counters(*one));
            self.view.limits(DeviceId(one.device), &mut |event| writer.record(event));
        }
        let Cost { calls, ns, one_of, stacks } = self.view.cost();
        let bytes = trace.appended_bytes();
        writer.record(&Event::RecorderCost { calls, ns, one_of, bytes, stacks });
        let lost = trace.with_retention(|retention| {
            for one in counters {
                retention.peak(DeviceId(one.device), one.peak, sequence);
            }
            retention.take_lost()
        });
        for device in lost {
            let text = format!(
                "the events that lead to the peak of device {} took too much of VRAMTRACE_MAX and \
                 were given up; its figures stay",
                device.0
            );
            writer.define(&Definition::Note { text });
        }
    }

    /// Begins a checkpoint if one is due, or writes on.
    fn keep_checkpoints(&mut self, trace: &Trace) {
        let is_running = self.of.running.is_some();
        let grown = trace.event_bytes() - self.of.since_bytes;
        let is_due = is_running
            || self.writer.owes_checkpoint.load(Ordering::Relaxed)
            || match self.writer.state.load(Ordering::Acquire) {
                TOTALS => {
                    (self.end || self.now_ns >= self.of.totals_due_ns) && self.has_room_for_totals()
                }
                _ => self.of.max.is_some_and(|max| grown >= self.of.interval(max)),
            };
        if is_due && !is_running {
            self.begin_checkpoint(trace);
        }
        if self.end || is_running {
            self.write_checkpoint(trace, if self.end { usize::MAX } else { SLICE });
        }
    }

    /// If nothing can be punched, each checkpoint takes room permanently: they are written at doubling
    /// intervals, and the last room is reserved for the one at the end.
    fn has_room_for_totals(&mut self) -> bool {
        self.of.totals_due_ns = self.now_ns.saturating_mul(2);
        // It may have grown since the last one, and takes whole windows.
        let cost = 2 * self.of.last_cost + (4 << 18);
        let left = self.of.max.map_or(u64::MAX, |max| max / 2);
        left >= if self.end { cost } else { 2 * cost }
    }

    /// The number of a state that begins.
    pub(super) fn next_state(&mut self) -> u32 {
        self.of.last_id += 1;
        self.of.last_id
    }

    fn begin_checkpoint(&mut self, trace: &Trace) {
        let Turn { writer, view, .. } = *self;
        writer.owes_checkpoint.store(false, Ordering::Relaxed);
        let id = self.next_state();
        self.of.since_bytes = trace.event_bytes();
        trace.with_retention(|retention| retention.checkpoint_begins(trace.sequence()));
        let (state, what) = (id as u8, Purpose::Checkpoint);
        let begin = Event::StateBegin { id: state, what, cache_ooms: 0 };
        view.ledger().begin_checkpoint(id, || writer.record(&begin));
        let mut records = 0;
        view.others(false, &mut |event| writer.record(event));
        view.checkpoint_frame(&mut |time_ns, event| {
            records += 1;
            writer.record(&Event::StateEvent(Listed::new(state, time_ns, event)));
        });
        self.of.running = Some(Running { cursor: Cursor::new(id), records });
    }

    /// Writes on the checkpoint that is being written, by about so many records.
    pub(super) fn write_checkpoint(&mut self, trace: &Trace, budget: usize) {
        let (writer, of) = (self.writer, &mut *self.of);
        let Some(Running { cursor, records }) = &mut of.running else { return };
        let done = self.view.ledger().checkpoint_slice(cursor, budget, &mut |event| {
            *records += 1;
            writer.record(event);
        });
        if done {
            writer.record(&Event::StateEnd { id: cursor.id as u8, cut: false });
            of.last_cost = *records * RECORD_BYTES;
            of.running = None;
            trace.with_retention(|retention| retention.checkpoint_ends(trace.sequence()));
        }
    }
}
