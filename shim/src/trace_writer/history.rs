//! When the history (`model/history`) is sampled, and when a copy of it is written. Only traces with a limit have one: the
//! events of others are all there.
//!
//! A copy takes about a 32nd of the limit at most, and the windows of the last one stay (`retention.rs`), with those of
//! the one that is being written. One is written before the first events are erased, then when eight times as many bytes
//! of events came, and at the end.

use super::TraceWriter;
use super::maintenance::{Maintenance, ProcessView};
use super::trace::Trace;
use crate::model::history::{Copy, History, OverTime};

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
    copy: Option<Copy>,
    copies: u32,
    /// Bytes of event windows when the last copy began, and its own.
    since_bytes: u64,
    last_bytes: u64,
    due_ns: u64,
    cost_ns: u64,
}

impl HistoryKeeper {
    pub(super) fn new(limit: u64) -> HistoryKeeper {
        HistoryKeeper {
            history: History::new(limit),
            limit,
            copy: None,
            copies: 0,
            since_bytes: 0,
            last_bytes: 0,
            due_ns: 0,
            cost_ns: 0,
        }
    }

    /// The last copy is lost: another one is due.
    pub(super) fn lost(&mut self) {
        (self.copies, self.copy) = (0, None);
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

impl TraceWriter {
    /// Does a slice of the history's work. True: there is more to do at the next call. `trace`: `None` while events are
    /// not recorded; the samples go on.
    pub(super) fn keep_history(
        &self,
        maintenance: &mut Maintenance,
        view: &impl ProcessView,
        trace: Option<&Trace>,
        now_ns: u64,
    ) -> bool {
        let Some(keeper) = &mut maintenance.history else { return false };
        if trace.is_none() {
            keeper.copy = None;
        }
        match trace {
            Some(trace) if keeper.copy.is_some() => self.copy_slice(keeper, trace, now_ns),
            _ if keeper.history.is_due(now_ns) => {
                let clock = || self.clock.now_ns();
                keeper.history.slice(view.ledger(), view.phases(), now_ns, clock);
                return !keeper.history.is_idle();
            }
            Some(trace) if keeper.is_copy_due(trace.event_bytes(), now_ns) => {
                self.begin_copy(keeper, view, trace, now_ns);
            }
            _ => return false,
        }
        true
    }

    /// The last sample and copy, if events were erased.
    pub(super) fn end_history(
        &self,
        maintenance: &mut Maintenance,
        view: &impl ProcessView,
        trace: &Trace,
        now_ns: u64,
    ) {
        let Some(keeper) = &mut maintenance.history else { return };
        if !trace.with_retention(|retention| retention.has_erased()) {
            return;
        }
        while keeper.copy.is_some() {
            self.copy_slice(keeper, trace, now_ns);
        }
        keeper.history.sample_now(view.ledger(), view.phases(), now_ns);
        self.begin_copy(keeper, view, trace, now_ns);
        while keeper.copy.is_some() {
            self.copy_slice(keeper, trace, now_ns);
        }
    }

    /// How much each device held for how long, up to now, where the process ends. `None`: the trace has no limit, or
    /// another thread is at work.
    pub(super) fn held_over_time(&self, view: &impl ProcessView) -> Option<OverTime> {
        let mut maintenance = self.maintenance.try_lock()?;
        let history = &mut maintenance.history.as_mut()?.history;
        Some(history.held_over_time(view.ledger(), view.phases(), self.clock.now_ns()))
    }

    fn begin_copy(
        &self,
        keeper: &mut HistoryKeeper,
        view: &impl ProcessView,
        trace: &Trace,
        now_ns: u64,
    ) {
        keeper.copies = keeper.copies.saturating_add(1);
        keeper.since_bytes = trace.event_bytes();
        (keeper.due_ns, keeper.cost_ns) = (now_ns, 0);
        trace.with_retention(|retention| retention.history_begins(trace.sequence()));
        let most = (keeper.limit / PART).min(COPY_MOST);
        let copy = Copy::begin(keeper.copies, most, view.ledger(), &mut |event| self.record(event));
        keeper.copy = Some(copy);
    }

    fn copy_slice(&self, keeper: &mut HistoryKeeper, trace: &Trace, now_ns: u64) {
        let Some(copy) = &mut keeper.copy else { return };
        let done = copy.slice(&keeper.history, &mut |event| self.record(event));
        keeper.cost_ns += self.clock.now_ns().saturating_sub(now_ns);
        if !done {
            return;
        }
        keeper.last_bytes = copy.bytes();
        if copy.is_cut() {
            keeper.history.shrink();
        }
        keeper.copy = None;
        let pause_ns = EVERY_NS.max(keeper.cost_ns.saturating_mul(SHARE));
        keeper.due_ns = keeper.due_ns.saturating_add(pause_ns);
        trace.with_retention(|retention| retention.history_ends(trace.sequence()));
    }
}
