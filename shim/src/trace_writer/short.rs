//! Allocations and frees in their short form: nearly all events of a program. What the fast path cannot write goes to
//! [`TraceWriter::record_at`].
//!
//! The fast path ends in calls that take its arguments as they are. So it keeps nothing across a call, and saves no register.

use super::window::Window;
use super::{RUNNING, TraceWriter};
use crate::model::ledger::Entry;
use crate::runtime::thread_slot;
use std::sync::atomic::Ordering;
use vramtrace_format::{Alloc, Appended, Event, Reserved, Short, SiteId, Space, ThreadId};

impl TraceWriter {
    /// `record_at` for an allocation without a request of its own, in a fast path.
    #[inline(always)]
    pub fn record_alloc(&self, time_ns: u64, alloc: &Alloc) {
        if let Some((thread, window)) = self.short(time_ns) {
            match window.writer.append_alloc(thread, time_ns, alloc) {
                Short::At { .. } => return,
                Short::Reserved(at) => {
                    return self.record_reserved(window, at, time_ns, &Event::Alloc(*alloc));
                }
                Short::Unfit => {}
            }
        }
        self.record_wide(time_ns, &Event::Alloc(*alloc));
    }

    /// As `record_alloc`, for a framework's block with or without its request.
    #[inline(always)]
    pub fn record_block(&self, time_ns: u64, block: &Alloc) {
        let Some(requested) = block.requested else { return self.record_alloc(time_ns, block) };
        if let Some((thread, window)) = self.short(time_ns) {
            match window.writer.append_requested(thread, time_ns, block, requested) {
                Short::At { .. } => return,
                Short::Reserved(at) => {
                    return self.record_reserved(window, at, time_ns, &Event::Alloc(*block));
                }
                Short::Unfit => {}
            }
        }
        self.record_wide(time_ns, &Event::Alloc(*block));
    }

    /// `record_at` for a free, in a fast path.
    #[inline(always)]
    pub fn record_free(&self, time_ns: u64, key: u64, space: Space, site: SiteId) {
        if let Some((thread, window)) = self.short(time_ns) {
            match window.writer.append_free(thread, time_ns, key, space, site) {
                Short::At { .. } => return,
                Short::Reserved(at) => {
                    return self.free_reserved(window, at, time_ns, key, space);
                }
                Short::Unfit => {}
            }
        }
        self.free_wide(time_ns, key, space, site);
    }

    /// Records an entry of the ledger, out of line: for the hooks of the driver's functions, which are many.
    #[inline(never)]
    pub fn record_entry(&self, entry: &Entry) {
        let time_ns = entry.time_ns;
        if let Some((thread, window)) = self.short(time_ns) {
            match window.writer.append_alloc(thread, time_ns, &entry.alloc()) {
                Short::At { .. } => return,
                Short::Reserved(at) => return self.entry_reserved(window, at, entry),
                Short::Unfit => {}
            }
        }
        self.entry_wide(entry);
    }

    /// As `record_free`, out of line.
    #[inline(never)]
    pub fn record_driver_free(&self, time_ns: u64, key: u64, space: Space, site: SiteId) {
        self.record_free(time_ns, key, space, site);
    }

    #[cold]
    #[inline(never)]
    fn entry_wide(&self, entry: &Entry) {
        self.record_wide(entry.time_ns, &Event::Alloc(entry.alloc()));
    }

    #[cold]
    #[inline(never)]
    fn free_wide(&self, time_ns: u64, key: u64, space: Space, site: SiteId) {
        self.record_wide(time_ns, &Event::Free { key, space, site });
    }

    #[cold]
    #[inline(never)]
    fn entry_reserved(&self, window: &'static Window, at: Reserved, entry: &Entry) {
        self.record_reserved(window, at, entry.time_ns, &Event::Alloc(entry.alloc()));
    }

    #[cold]
    #[inline(never)]
    fn free_reserved(
        &self,
        window: &'static Window,
        at: Reserved,
        time_ns: u64,
        key: u64,
        space: Space,
    ) {
        self.record_reserved(window, at, time_ns, &Event::Free { key, space, site: SiteId(0) });
    }

    /// `record_at` where the fast path ends: if it may, it goes on with the next event.
    #[cold]
    #[inline(never)]
    fn record_wide(&self, time_ns: u64, event: &Event) {
        self.record_at(time_ns, event);
        self.short.begin(|| {
            let runs = self.state.load(Ordering::Acquire) == RUNNING;
            self.trace().filter(|_| runs)?.short()
        });
    }

    /// Goes on with an append that has reserved space at the end of a line.
    #[cold]
    #[inline(never)]
    fn record_reserved(&self, window: &'static Window, at: Reserved, time_ns: u64, event: &Event) {
        let thread = thread_slot::number(self.owner()).unwrap_or_default();
        match window.writer.append_reserved(at, thread, time_ns, event) {
            Appended::At { middle: false, .. } => {}
            Appended::At { middle: true, .. } => {
                let ready = self.trace().map(|trace| trace.middle_reached(window, time_ns));
                if let Some(Err(failure)) = ready {
                    self.fail(failure, time_ns);
                }
            }
            Appended::Full => self.record_wide(time_ns, event),
        }
    }

    /// Thread and window of an event in its short form, in the common case.
    #[inline(always)]
    fn short(&self, time_ns: u64) -> Option<(ThreadId, &'static Window)> {
        let window = self.short.get()?;
        let thread = thread_slot::number(self.owner())?;
        window.writer.is_near(time_ns).then_some((thread, window))
    }
}
