//! When the history (`model/history`) is sampled, and when a copy of it is written. Only traces with a limit have one: the
//! events of others are all there.
//!
//! A copy takes about a 32nd of the limit at most, and the windows of the last one stay (`retention.rs`). One is written
//! before the first events are erased, then when eight times as many bytes of events came, and at the end.

use super::TraceWriter;
use super::maintenance::{ProcessView, Turn};
use super::trace::Trace;
use crate::model::history::{History, OverTime};
use vramtrace_format::Event;

/// A copy takes at most one part in so many of the limit, and at most so many bytes.
const PART: u64 = 32;
const COPY_MOST: u64 = 4 << 20;
/// The first copy is written when one part in so many of the limit is used; later ones after so much of it, and after so
/// many times the bytes of the last copy.
const FIRST: u64 = 4;
const AGAIN: u64 = 8;
const TIMES: u64 = 8;
/// Time from the begin of a copy to the next one, and as a multiple of what the last one took.
const EVERY_NS: u64 = 1_000_000_000;
const SHARE: u64 = 100;

pub(super) struct HistoryKeeper {
    history: History,
    /// Most bytes of the trace.
    limit: u64,
    copies: u32,
    /// Bytes of event windows when the last copy began, and its own.
    since_bytes: u64,
    last_bytes: u64,
    /// When the next copy may begin.
    due_ns: u64,
}

impl HistoryKeeper {
    pub(super) fn new(limit: u64) -> HistoryKeeper {
        let history = History::new(limit);
        HistoryKeeper { history, limit, copies: 0, since_bytes: 0, last_bytes: 0, due_ns: 0 }
    }

    /// The last copy is lost: another one is due.
    pub(super) fn lost(&mut self) {
        self.copies = 0;
    }

    fn is_copy_due(&self, event_bytes: u64, now_ns: u64) -> bool {
        let grown = event_bytes.saturating_sub(self.since_bytes);
        let least = match self.copies {
            0 => self.limit / FIRST,
            _ => (self.limit / AGAIN).max(TIMES * self.last_bytes),
        };
        grown >= least && now_ns >= self.due_ns
    }
}

impl<V: ProcessView> Turn<'_, V> {
    /// Takes a sample or writes a copy, if one is due. `trace`: `None` while events are not recorded; the samples go on.
    pub(super) fn keep_history(&mut self, trace: Option<&Trace>) {
        let Some(keeper) = &self.of.history else { return };
        if keeper.history.is_due(self.now_ns) {
            self.sample();
        } else if let Some(trace) = trace
            && keeper.is_copy_due(trace.event_bytes(), self.now_ns)
        {
            self.copy_history(trace);
        }
    }

    /// The last sample and copy, if events were erased.
    pub(super) fn end_history(&mut self, trace: &Trace) {
        if trace.with_retention(|retention| retention.has_erased()) {
            self.sample();
            self.copy_history(trace);
        }
    }

    fn sample(&mut self) {
        let Turn { view, now_ns, writer, .. } = *self;
        if let Some(keeper) = &mut self.of.history {
            let clock = || writer.clock.now_ns();
            keeper.history.sample(view.ledger(), view.phases(), now_ns, clock);
        }
    }

    fn copy_history(&mut self, trace: &Trace) {
        let (writer, now_ns, id) = (self.writer, self.now_ns, self.next_state() as u8);
        let Some(keeper) = &mut self.of.history else { return };
        keeper.copies = keeper.copies.saturating_add(1);
        keeper.since_bytes = trace.event_bytes();
        let from = trace.sequence();
        let most = (keeper.limit / PART).min(COPY_MOST);
        let record = &mut |event: &Event| writer.record(event);
        let (bytes, is_cut) = keeper.history.copy(id, most, self.view.ledger(), record);
        trace.with_retention(|retention| retention.set_history(from..=trace.sequence()));
        keeper.last_bytes = bytes;
        if is_cut {
            keeper.history.shrink();
        }
        let cost_ns = writer.clock.now_ns().saturating_sub(now_ns);
        keeper.due_ns = now_ns.saturating_add(EVERY_NS.max(cost_ns.saturating_mul(SHARE)));
    }
}

impl TraceWriter {
    /// How much each device held for how long, up to now, where the process ends. `None`: the trace has no limit, or
    /// another thread is at work.
    pub(super) fn held_over_time(&self, view: &impl ProcessView) -> Option<OverTime> {
        let mut maintenance = self.maintenance.try_lock()?;
        let history = &mut maintenance.history.as_mut()?.history;
        Some(history.held_over_time(view.ledger(), view.phases(), self.clock.now_ns()))
    }
}
