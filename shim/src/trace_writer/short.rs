//! Allocations and frees in their short form: nearly all events of a program. What the fast path cannot write goes to
//! [`TraceWriter::record_at`].

use super::trace::Trace;
use super::window::Window;
use super::{RUNNING, TraceWriter};
use crate::model::ledger::Entry;
use crate::runtime::thread_slot;
use std::sync::atomic::Ordering;
use vramtrace_format::{Alloc, Appended, Event, SiteId, Space, ThreadId};

impl TraceWriter {
    /// `record_at` for an allocation without a request of its own, in a fast path.
    #[inline(always)]
    pub fn record_alloc(&self, time_ns: u64, alloc: &Alloc) {
        if let Some((thread, trace, window)) = self.short(time_ns)
            && let Some(put) = window.writer.append_alloc(thread, time_ns, alloc)
            && self.is_put(trace, window, put, time_ns)
        {
            return;
        }
        self.record_wide(time_ns, &Event::Alloc(*alloc));
    }

    /// As `record_alloc`, for a framework's block with or without its request.
    #[inline(always)]
    pub fn record_block(&self, time_ns: u64, block: &Alloc) {
        let Some(requested) = block.requested else { return self.record_alloc(time_ns, block) };
        if let Some((thread, trace, window)) = self.short(time_ns)
            && let Some(put) = window.writer.append_requested(thread, time_ns, block, requested)
            && self.is_put(trace, window, put, time_ns)
        {
            return;
        }
        self.record_wide(time_ns, &Event::Alloc(*block));
    }

    /// `record_at` for a free, in a fast path.
    #[inline(always)]
    pub fn record_free(&self, time_ns: u64, key: u64, space: Space, site: SiteId) {
        if let Some((thread, trace, window)) = self.short(time_ns)
            && let Some(put) = window.writer.append_free(thread, time_ns, key, space, site)
            && self.is_put(trace, window, put, time_ns)
        {
            return;
        }
        self.record_wide(time_ns, &Event::Free { key, space, site });
    }

    /// `record_at` where the fast path ends.
    #[cold]
    #[inline(never)]
    fn record_wide(&self, time_ns: u64, event: &Event) {
        self.record_at(time_ns, event);
    }

    /// Records an entry of the ledger, out of line: for the hooks of the driver's functions, which are many.
    #[inline(never)]
    pub fn record_entry(&self, entry: &Entry) {
        self.record_alloc(entry.time_ns, &entry.alloc());
    }

    /// As `record_free`, out of line.
    #[inline(never)]
    pub fn record_driver_free(&self, time_ns: u64, key: u64, space: Space, site: SiteId) {
        self.record_free(time_ns, key, space, site);
    }

    /// Where an event in its short form may go, in the common case.
    #[inline(always)]
    fn short(&self, time_ns: u64) -> Option<(ThreadId, &'static Trace, &'static Window)> {
        if self.state.load(Ordering::Acquire) != RUNNING {
            return None;
        }
        let thread = thread_slot::number(self.owner())?;
        let trace = self.trace()?;
        Some((thread, trace, trace.short(time_ns)?))
    }

    /// False: there was no room, and nothing was written.
    #[inline(always)]
    fn is_put(&self, trace: &Trace, window: &'static Window, put: Appended, time_ns: u64) -> bool {
        match put {
            Appended::At { middle: false, .. } => true,
            Appended::At { middle: true, .. } => {
                self.middle_reached(trace, window, time_ns);
                true
            }
            Appended::Full => false,
        }
    }

    #[cold]
    fn middle_reached(&self, trace: &Trace, window: &'static Window, time_ns: u64) {
        if let Err(failure) = trace.middle_reached(window, time_ns) {
            self.fail(failure, time_ns);
        }
    }
}
