//! Allocations and frees in their short form: nearly all events of a program. What the fast path cannot write goes to
//! [`TraceWriter::record_at`].
//! The rest takes the event as a closure: it is made there, and the fast path keeps nothing across a call.

use super::window::Window;
use super::{RUNNING, SILENT, TraceWriter};
use crate::model::ledger::Entry;
use crate::runtime::thread_slot;
use std::sync::atomic::Ordering;
use vramtrace_format::{
    Alloc, Appended, Event, Reserved, Short, SiteId, Space, ThreadId, WindowWriter,
};

impl TraceWriter {
    /// `record_at` for a framework's block, with or without its request, in a fast path.
    #[inline(always)]
    pub fn record_block(&self, time_ns: u64, block: &Alloc) {
        if let Some(bytes) = block.requested {
            return self.record_requested(time_ns, *block, bytes);
        }
        let put = |to: &WindowWriter, thread| to.append_alloc(thread, time_ns, block);
        let block = *block;
        self.record_short(time_ns, put, move || Event::Alloc(block));
    }

    /// Out of line: a block whose request is as large touches less code.
    #[inline(never)]
    fn record_requested(&self, time_ns: u64, block: Alloc, bytes: u64) {
        let put = |to: &WindowWriter, thread| to.append_requested(thread, time_ns, &block, bytes);
        self.record_short(time_ns, put, move || Event::Alloc(block));
    }

    /// `record_at` for a free, in a fast path.
    #[inline(always)]
    pub fn record_free(&self, time_ns: u64, key: u64, space: Space, site: SiteId) {
        let put = |to: &WindowWriter, thread| to.append_free(thread, time_ns, key, space, site);
        self.record_short(time_ns, put, move || Event::Free { key, space, site });
    }

    /// Records an entry of the ledger, out of line: for the hooks of the driver's functions, which are many.
    #[inline(never)]
    pub fn record_entry(&self, entry: &Entry) {
        let time_ns = entry.time_ns;
        let put = |to: &WindowWriter, thread| to.append_alloc(thread, time_ns, &entry.alloc());
        self.record_short(time_ns, put, || Event::Alloc(entry.alloc()));
    }

    /// As `record_free`, out of line.
    #[inline(never)]
    pub fn record_driver_free(&self, time_ns: u64, key: u64, space: Space, site: SiteId) {
        self.record_free(time_ns, key, space, site);
    }

    /// Appends an event in its short form by `put`, in the common case; `event`: the same, for the rest.
    #[inline(always)]
    fn record_short(
        &self,
        time_ns: u64,
        put: impl FnOnce(&WindowWriter, ThreadId) -> Short,
        event: impl FnOnce() -> Event,
    ) {
        match self.short(time_ns).map(|(thread, window)| (window, put(&window.writer, thread))) {
            Some((_, Short::At { .. })) => {}
            Some((window, Short::Reserved(at))) => self.go_on(window, at, time_ns, event),
            // Nothing is recorded.
            None if self.state.load(Ordering::Acquire) >= SILENT => {}
            Some((_, Short::Unfit)) | None => self.record_wide(time_ns, event),
        }
    }

    /// `record_at` where the fast path ends: if it may, it goes on with the next event.
    #[cold]
    #[inline(never)]
    fn record_wide(&self, time_ns: u64, event: impl FnOnce() -> Event) {
        self.record_at(time_ns, &event());
        self.short.begin(|| {
            let runs = self.state.load(Ordering::Acquire) == RUNNING;
            self.trace().filter(|_| runs)?.short()
        });
    }

    /// Goes on with an append that has reserved space at the end of a line.
    #[cold]
    #[inline(never)]
    fn go_on(
        &self,
        window: &'static Window,
        at: Reserved,
        time_ns: u64,
        event: impl FnOnce() -> Event,
    ) {
        let event = event();
        let thread = thread_slot::number(self.owner()).unwrap_or_default();
        match window.writer.append_reserved(at, thread, time_ns, &event) {
            Appended::At { middle: false, .. } => {}
            Appended::At { middle: true, .. } => {
                let ready = self.trace().map(|trace| trace.ready(&trace.events, window, time_ns));
                if let Some(Err(failure)) = ready {
                    self.fail(failure, time_ns);
                }
            }
            Appended::Full => self.record_wide(time_ns, || event),
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
