//! The switch: the recording goes off and on while the program runs, by an order in the live page
//! (`vramtrace record`) or by a file of the host or of the user ([`vramtrace_format::host_switch`]).
//!
//! Off: events are not appended and no stacks are captured. Definitions of sites are still written, since
//! the ledger goes on, and its entries name them. On again: a record says that events are missing, and a
//! checkpoint writes the live set. A reader treats the time between as any other missing events.
//!
//! All changes are made in [`TraceWriter::maintain`], by one thread at a time. At the end of a process
//! the recording goes on, so that the trace has what was live then.

use super::maintenance::{Maintenance, ProcessView};
use super::switch_state::Switch;
use super::{PAUSED, RUNNING, TOTALS, TraceWriter, UNOPENED};
use crate::runtime::fallible::TryPush;
use crate::runtime::reserve;
use std::sync::atomic::Ordering;
use vramtrace_format::{Event, SwitchedBy};

/// Time between two readings of the files: with the time of a call they are followed within a second.
const READ_EVERY_NS: u64 = 500_000_000;

impl TraceWriter {
    /// At the start, when the live page is there: a file may have switched the recording off already.
    pub(super) fn begin_switched(&self) {
        if self.is_silent() {
            self.switch_due_ns.store(u64::MAX, Ordering::Relaxed);
            return;
        }
        let mut maintenance = self.maintenance.lock();
        let now_ns = self.clock.now_ns();
        self.read_switch(&mut maintenance.switch, now_ns);
        if let Some(by) = maintenance.switch.off_by() {
            self.pause_unopened(&mut maintenance.switch, now_ns, by);
        }
        self.show(&maintenance.switch);
    }

    /// Reads orders and, if that is due, the files.
    fn read_switch(&self, switch: &mut Switch, now_ns: u64) {
        if now_ns >= self.switch_due_ns.load(Ordering::Relaxed) {
            self.switch_due_ns.store(now_ns + READ_EVERY_NS, Ordering::Relaxed);
            switch.read_files();
        }
        if let Some((_, on)) = self.live().and_then(|live| live.page().switch_order()) {
            switch.by_order = !on;
        }
    }

    /// Switches the recording off or on, if that is asked for.
    pub(super) fn follow_switch(
        &self,
        maintenance: &mut Maintenance,
        view: &impl ProcessView,
        now_ns: u64,
        end: bool,
    ) {
        if maintenance.switch.ended || self.is_silent() {
            self.switch_due_ns.store(u64::MAX, Ordering::Relaxed);
            return;
        }
        let order = self.live().and_then(|live| live.page().switch_order());
        let before = maintenance.switch.off_by();
        self.read_switch(&mut maintenance.switch, now_ns);
        let off_by = maintenance.switch.off_by();
        let state = self.state.load(Ordering::Acquire);
        match (state, off_by, end) {
            (UNOPENED, Some(by), _) => self.pause_unopened(&mut maintenance.switch, now_ns, by),
            (RUNNING | TOTALS, Some(by), false) => self.pause(maintenance, view, now_ns, by),
            (PAUSED, Some(_), true) if self.trace().is_some() => {
                self.resume(maintenance, view, now_ns, SwitchedBy::End);
            }
            (PAUSED, None, _) => {
                let by = before.unwrap_or(SwitchedBy::Order);
                self.resume(maintenance, view, now_ns, by);
            }
            _ => {}
        }
        maintenance.switch.ended = end;
        self.show(&maintenance.switch);
        if let (Some(live), Some((number, _))) = (self.live(), order) {
            live.page().set_switch_applied(number);
        }
    }

    /// Shows in the live page whether the recording is switched off.
    fn show(&self, switch: &Switch) {
        let Some(live) = self.live() else { return };
        match self.state.load(Ordering::Acquire) == PAUSED {
            false => live.page().set_off_by(&[]),
            true => {
                let by =
                    [(switch.by_order, SwitchedBy::Order), (switch.by_file, SwitchedBy::HostFile)];
                let mut both = [SwitchedBy::Order; 2];
                let mut count = 0;
                for (_, by) in by.into_iter().filter(|(is_off, _)| *is_off) {
                    both[count] = by;
                    count += 1;
                }
                live.page().set_off_by(&both[..count]);
            }
        }
    }

    /// Switches the recording off before the file is open.
    fn pause_unopened(&self, switch: &mut Switch, now_ns: u64, by: SwitchedBy) {
        let mut pending = self.pending.lock();
        if self.state.load(Ordering::Acquire) != UNOPENED {
            return;
        }
        let thread = Default::default();
        let off = (now_ns, thread, Event::Recording { on: false, by });
        if pending.events.try_push(off).is_err() {
            reserve::ran_out();
        }
        switch.before = UNOPENED;
        self.state.store(PAUSED, Ordering::Release);
        drop(pending);
        if let Some(live) = self.live() {
            live.recording(false);
        }
    }

    fn pause(
        &self,
        maintenance: &mut Maintenance,
        view: &impl ProcessView,
        now_ns: u64,
        by: SwitchedBy,
    ) {
        let Some(trace) = self.trace() else { return };
        // A checkpoint that is under way has no end otherwise.
        self.finish_checkpoint(maintenance, view);
        #[allow(clippy::disallowed_methods)] // one for each device at most
        let counters: Vec<_> =
            view.devices().into_iter().map(|device| view.counters(device)).collect();
        self.note(view, &counters, trace.sequence());
        // Events that other threads append behind it are read and then replaced by the checkpoint.
        self.append(now_ns, &Event::Recording { on: false, by });
        let before = self.state.load(Ordering::Acquire);
        if matches!(before, RUNNING | TOTALS)
            && self
                .state
                .compare_exchange(before, PAUSED, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        {
            self.short.end();
            maintenance.switch.before = before;
            if let Some(live) = self.live() {
                live.recording(false);
            }
        }
    }

    /// From here on events are appended; the next checkpoint is due at once.
    fn resume(
        &self,
        maintenance: &mut Maintenance,
        view: &impl ProcessView,
        now_ns: u64,
        by: SwitchedBy,
    ) {
        let on = Event::Recording { on: true, by };
        maintenance.cut = true;
        if self.trace().is_none() {
            let mut pending = self.pending.lock();
            if pending.events.try_push((now_ns, Default::default(), on)).is_err() {
                reserve::ran_out();
            }
            self.state.store(UNOPENED, Ordering::Release);
            drop(pending);
            if let Some(live) = self.live() {
                live.loaded();
            }
            if !view.devices().is_empty() {
                self.open_now(now_ns);
            }
            return;
        }
        let before = maintenance.switch.before;
        let changed =
            self.state.compare_exchange(PAUSED, before, Ordering::AcqRel, Ordering::Acquire);
        if changed.is_ok() {
            self.append(now_ns, &on);
            if let Some(live) = self.live() {
                live.recording(true);
            }
        }
    }
}
