//! When the history (`model/history`) is sampled, and when a copy of it is written. Only traces with a limit have one: the
//! events of others are all there.
//!
//! A copy takes about a 32nd of the limit at most, and the windows of the last one stay (`retention.rs`), with those of
//! the one that is being written. One is written before the first events are erased, then when eight times as many bytes
//! of events came, and at the end.

use super::TraceWriter;
use super::history_state::{COPY_MOST, EVERY_NS, HistoryKeeper, PART, SHARE};
use super::maintenance::{Maintenance, ProcessView};
use super::trace::Trace;
use crate::model::history::Copy;
use vramtrace_format::{DeviceId, HeldBytes};

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
        let keeper = &mut maintenance.history;
        let Some(history) = &mut keeper.history else { return false };
        if trace.is_none() {
            keeper.copy = None;
        }
        if let (Some(_), Some(trace)) = (&keeper.copy, trace) {
            self.copy_slice(keeper, trace, now_ns);
            return true;
        }
        if history.is_due(now_ns) {
            history.slice(view.ledger(), view.phases(), now_ns, || self.clock.now_ns());
            return !history.is_idle();
        }
        let Some(trace) = trace.filter(|trace| keeper.is_copy_due(trace.event_bytes(), now_ns))
        else {
            return false;
        };
        self.begin_copy(keeper, trace, now_ns);
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
        let keeper = &mut maintenance.history;
        if !trace.with_retention(|retention| retention.has_erased()) {
            return;
        }
        while keeper.copy.is_some() {
            self.copy_slice(keeper, trace, now_ns);
        }
        let Some(history) = &mut keeper.history else { return };
        history.sample_now(view.ledger(), view.phases(), now_ns);
        self.begin_copy(keeper, trace, now_ns);
        while keeper.copy.is_some() {
            self.copy_slice(keeper, trace, now_ns);
        }
    }

    /// The time of the history ends here.
    pub(super) fn end_held_over_time(&self, view: &impl ProcessView) {
        let Some(mut maintenance) = self.maintenance.try_lock() else { return };
        if let Some(history) = &mut maintenance.history.history {
            history.end(view.ledger(), view.phases(), self.clock.now_ns());
        }
    }

    /// How much a device held for how long. `None`: the trace has no limit, or another thread is at work.
    pub(super) fn held_over_time(&self, device: DeviceId) -> Option<HeldBytes> {
        self.maintenance.try_lock()?.history.history.as_ref()?.held_over_time(device)
    }

    fn begin_copy(&self, keeper: &mut HistoryKeeper, trace: &Trace, now_ns: u64) {
        keeper.copies = keeper.copies.saturating_add(1);
        keeper.since_bytes = trace.event_bytes();
        (keeper.due_ns, keeper.cost_ns) = (now_ns, 0);
        trace.with_retention(|retention| retention.history_begins(trace.sequence()));
        let most = (keeper.limit / PART).min(COPY_MOST);
        let copy = Copy::begin(keeper.copies, most, &mut |event| self.record(event));
        keeper.copy = Some(copy);
    }

    fn copy_slice(&self, keeper: &mut HistoryKeeper, trace: &Trace, now_ns: u64) {
        let (Some(history), Some(copy)) = (&mut keeper.history, &mut keeper.copy) else { return };
        let done = copy.slice(history, &mut |event| self.record(event));
        keeper.cost_ns += self.clock.now_ns().saturating_sub(now_ns);
        if !done {
            return;
        }
        keeper.last_bytes = copy.bytes();
        if copy.is_cut() {
            history.shrink();
        }
        keeper.copy = None;
        let pause_ns = EVERY_NS.max(keeper.cost_ns.saturating_mul(SHARE));
        keeper.due_ns = keeper.due_ns.saturating_add(pause_ns);
        trace.with_retention(|retention| retention.history_ends(trace.sequence()));
    }
}
