//! The trace writer: records events in the trace file.
//!
//! `record` is the hot path: it reads the clock and stores into the current window of the open
//! `trace::Trace`. The file opens at the first event that concerns memory or a context; definitions
//! before that are kept and written then. A failure pauses recording ([`held`]) or ends it, and affects
//! nothing else.

mod attempts;
mod credit;
mod failure;
mod file;
mod grid;
mod held;
mod history;
mod identity;
pub mod live;
mod live_lock;
pub mod maintenance;
mod means;
mod name;
mod named_file;
mod opening;
mod retention;
mod short;
mod short_window;
mod slots;
mod switch;
mod tail;
mod tail_place;
mod trace;
mod window;

#[cfg(test)]
mod tests;

use crate::capture::definitions::{DefinitionLocation, DefinitionSink};
use crate::config::{Config, Out};
use crate::driver::functions::{answer, driver};
use crate::model::ledger::Sink;
use crate::runtime::clock::{self, ProcessClock};
use crate::runtime::fallible::TryPush;
use crate::runtime::hash_table::prefetch;
use crate::runtime::leaked::Leaked;
use crate::runtime::lock::Lock;
use crate::runtime::log;
use crate::runtime::own_stack;
use crate::runtime::private_table::{self, NoTask, Table};
use crate::runtime::reserve;
use crate::runtime::thread_slot;
use crate::trace_writer::maintenance::Maintenance;
use failure::Failure;
use held::Held;
use identity::Identity;
use live::PublishedPage;
use means::Means;
use short_window::ShortWindow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use trace::Trace;
use vramtrace_format::{Definition, Event, Header, StopReason, ThreadId};
use window::Window;

/// Nothing recorded yet; the first event that opens the file will.
const UNOPENED: u32 = 0;
const RUNNING: u32 = 1;
/// The limit is reached and nothing can be punched: checkpoints, totals and refusals only.
const TOTALS: u32 = 2;
/// Events are lost until a thread can make room for them. See [`held`].
const HELD: u32 = 3;
/// Off from the start, or stopped by a failure.
const SILENT: u32 = 4;
/// Switched off: events are not appended, the ledger goes on. See [`switch`].
const PAUSED: u32 = 5;

/// A call has ended since the live page's figures were last stored.
const BEHIND: u8 = 1;
/// Maintenance was done at the end of a block's call; the part that calls NVML waits for a driver call.
const LEFT_TO_ASK: u8 = 2;

/// Most events that are kept for a file that may never open; at more it opens. Definitions are as many as
/// the tables of what they define have.
const PENDING_MOST: usize = 1 << 14;

/// What each event reads is on the first cache line.
#[repr(C, align(64))]
pub struct TraceWriter {
    /// Where short records go without a look at `state` and `trace`. It ends when these change.
    short: ShortWindow<Window>,
    state: AtomicU32,
    /// The live page's figures must be stored at the end of this call.
    stale: AtomicBool,
    /// [`BEHIND`] after nearly all calls, and [`LEFT_TO_ASK`].
    noted: AtomicU8,
    trace: Leaked<Trace>,
    held: Held,
    clock: ProcessClock,
    /// When [`TraceWriter::maintain`] has something to do; 0: at once.
    due_ns: AtomicU64,
    /// When windows are next to be written to the trace. Never while there is no trace.
    write_due_ns: AtomicU64,
    /// When the switch is next to be read.
    switch_due_ns: AtomicU64,
    live: Leaked<PublishedPage>,
    start_unix_ns: u64,
    /// Events are missing, and no checkpoint follows yet.
    owes_checkpoint: AtomicBool,
    /// The line about a truncated trace was printed.
    cut_reported: AtomicBool,
    /// The line about threads without a number was printed.
    threads_reported: AtomicBool,
    threads: AtomicU32,
    pending: Lock<Pending>,
    maintenance: Lock<Maintenance>,
    identity: Leaked<Identity>,
    out: Out,
    max: Option<u64>,
    means: Means,
    /// 0 = unknown.
    driver_version: AtomicU32,
}

/// Kept until the file opens.
#[derive(Default)]
struct Pending {
    definitions: Vec<Definition>,
    events: Vec<(u64, ThreadId, Event)>,
}

impl TraceWriter {
    pub fn new(config: &Config) -> TraceWriter {
        let off = config.out == Out::Off;
        if config.test_clock {
            clock::always_ask();
        }
        TraceWriter {
            short: ShortWindow::default(),
            state: AtomicU32::new(if off { SILENT } else { UNOPENED }),
            trace: Leaked::NONE,
            held: Held::default(),
            clock: ProcessClock::start(),
            start_unix_ns: clock::unix_ns(),
            stale: AtomicBool::new(false),
            noted: AtomicU8::new(0),
            due_ns: AtomicU64::new(0),
            write_due_ns: AtomicU64::new(u64::MAX),
            switch_due_ns: AtomicU64::new(0),
            owes_checkpoint: AtomicBool::new(false),
            cut_reported: AtomicBool::new(false),
            threads_reported: AtomicBool::new(false),
            threads: AtomicU32::new(0),
            pending: Lock::new(Pending::default()),
            maintenance: Lock::new(Maintenance::new(config)),
            live: Leaked::NONE,
            identity: Leaked::NONE,
            out: config.out.clone(),
            max: config.max,
            means: Means::ALL,
            driver_version: AtomicU32::new(0),
        }
    }

    /// Creates the live page, once the process state is final. Called from a hook, with no lock held.
    pub fn start(&self, config: &Config) {
        let version = answer(0, |version| Some(driver().driver_get_version?(version)));
        self.driver_version.store(version.unwrap_or(0) as u32, Ordering::Relaxed);
        let recording = self.state.load(Ordering::Relaxed) != SILENT;
        let made = private_table::run(|table| {
            let identity = self.identify(Some(table));
            PublishedPage::create(table, config, identity, self, recording)
        });
        match made {
            Ok(Ok(live)) => {
                if let Some(wrong) = &live.elsewhere {
                    log::line(format_args!(
                        "VRAMTRACE_LIVE_DIR: {wrong}; the live page is where it would be without the \
                         variable"
                    ));
                }
                if let Some(group) = &config.rules.group {
                    live.page().set_group(&group.name);
                }
                self.live.put(live);
            }
            Ok(Err(Some(wrong))) => {
                log::line(format_args!("{wrong}; `vramtrace ps` and `cap` do not see this process"))
            }
            Ok(Err(None)) => {}
            Err(NoTask { .. }) => _ = self.identify(None),
        }
        self.begin_switched();
    }

    /// The clock of the events.
    pub fn clock(&self) -> ProcessClock {
        self.clock
    }

    /// The time of an event that is recorded now.
    #[inline(always)]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    #[inline]
    pub fn record(&self, event: &Event) {
        self.record_at(self.clock.now_ns(), event);
    }

    /// Records an event with a given time, which is also stored elsewhere (in the ledger).
    #[inline(always)]
    pub fn record_at(&self, time_ns: u64, event: &Event) {
        if self.state.load(Ordering::Acquire) != RUNNING && !self.admits(time_ns, event) {
            return;
        }
        self.append(time_ns, event);
    }

    /// Prefetches the memory of the next event in its short form.
    #[inline(always)]
    pub fn prefetch(&self) {
        if let Some(window) = self.short.get() {
            window.writer.prefetch_hints().into_iter().for_each(prefetch);
        }
    }

    #[inline]
    fn append(&self, time_ns: u64, event: &Event) {
        let thread = self.thread(time_ns);
        match self.trace().map(|trace| trace.event(thread, time_ns, event)) {
            Some(Ok(false)) | None => {}
            Some(Ok(true)) => self.due_ns.store(0, Ordering::Relaxed),
            Some(Err(failure)) if failure.may_pass() => self.hold(failure),
            Some(Err(failure)) => self.fail(failure, time_ns),
        }
    }

    /// Writes a definition, or keeps it until the file opens.
    pub fn define(&self, definition: &Definition) {
        self.try_define(definition);
    }

    /// As [`TraceWriter::define`]. False: nothing is recorded.
    pub fn try_define(&self, definition: &Definition) -> bool {
        own_stack::run(|| self.define_located(definition)).flatten().is_some()
    }

    /// Reads definitions of the trace again while `work` runs; it asks for them by their place, the
    /// kind of record and its number. Not run where there is no trace.
    pub fn look_up(
        &self,
        work: impl FnOnce(&mut dyn FnMut(DefinitionLocation, u8, u32) -> Option<Definition>),
    ) {
        let Some(trace) = self.trace() else { return };
        trace.look_up(|lookup| {
            work(&mut |place, kind, id| match place {
                DefinitionLocation::At(offset) => lookup.at(offset),
                DefinitionLocation::Early => lookup.early(kind, id),
            })
        });
    }

    /// Ends recording; the cap stays in force. Prints nothing, which is left to the caller. False:
    /// recording had already ended.
    pub fn stop(&self, reason: StopReason, errno: i32) -> bool {
        self.stop_at(reason, errno, self.clock.now_ns())
    }

    /// The path of the trace, once it is open.
    pub fn path(&self) -> Option<PathBuf> {
        self.trace().map(|trace| trace.path().to_path_buf())
    }

    fn stop_at(&self, reason: StopReason, errno: i32, now_ns: u64) -> bool {
        let before = self.state.swap(SILENT, Ordering::AcqRel);
        self.short.end();
        if before == SILENT {
            return false;
        }
        self.write_due_ns.store(u64::MAX, Ordering::Relaxed);
        if let Some(trace) = self.trace() {
            trace.last_words(self.thread(now_ns), now_ns, &Event::Stopped { reason, errno });
        }
        self.show_recording(false);
        true
    }

    /// Whether this is the process with that pid.
    pub fn is_of(&self, pid: u32) -> bool {
        self.identity.get().is_some_and(|identity| identity.pid == pid)
    }

    /// The process ends by `_exit`. No lock is taken and no file opened: without room in the window it is not recorded.
    pub fn left(&self, status: i32) {
        let trace = self.trace().filter(|_| self.state.load(Ordering::Acquire) <= TOTALS);
        let thread = thread_slot::number(self.owner()).unwrap_or_default();
        let event = Event::Aftermath { api: None, result: status & 0xFF };
        trace.into_iter().for_each(|trace| trace.add(thread, self.clock.now_ns(), &event));
    }

    /// Changes the state, unless another thread has.
    fn turn(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Shows in the live page whether events are recorded.
    fn show_recording(&self, yes: bool) {
        if let Some(live) = self.live() {
            live.recording(yes);
        }
    }

    /// A failure of the file: recording ends, with one line on stderr; unless another thread may go on.
    #[cold]
    fn fail(&self, failure: Failure, now_ns: u64) {
        if failure.may_pass() {
            return;
        }
        if failure.reason == StopReason::CannotPunch && self.go_on_with_totals(failure, now_ns) {
            return;
        }
        if failure.reason == StopReason::DescriptorLost
            && let Some(trace) = self.trace()
        {
            trace.abandon();
        }
        let reported = failure.reason == StopReason::CannotPunch;
        if self.stop_at(failure.reason, failure.errno, now_ns) && !reported {
            let path = self.path().unwrap_or_default();
            log::line(format_args!(
                "{}: {}; recording ends here, the program goes on",
                path.display(),
                failure
            ));
        }
    }

    /// The limit is reached and nothing can be punched. False: there is no room for totals either.
    fn go_on_with_totals(&self, failure: Failure, now_ns: u64) -> bool {
        let Some(trace) = self.trace() else { return false };
        let has_turned = self.turn(RUNNING, TOTALS);
        self.short.end();
        if !has_turned {
            // Another thread has changed the state meanwhile: this event is dropped like all later
            // ones.
            return failure.errno != libc::EFBIG;
        }
        let stopped = Event::Stopped { reason: failure.reason, errno: failure.errno };
        trace.last_words(self.thread(now_ns), now_ns, &stopped);
        trace.with_retention(|retention| retention.totals_only = true);
        self.due_ns.store(0, Ordering::Relaxed);
        log::line(format_args!(
            "{}: {}; from here on only totals are recorded",
            trace.path().display(),
            failure
        ));
        true
    }

    /// Determines this process's identity again.
    fn identify(&self, table: Option<&Table>) -> &'static Identity {
        self.identity.put(Identity::of_this_process(table))
    }

    /// Who this process is, as the header page of a trace says it. The environment is not read
    /// again: the program may be changing it.
    pub fn this_process(&self) -> Header {
        self.identity.get().map(Identity::header).unwrap_or_default()
    }

    /// Whether definitions are kept for a file that is not open yet.
    fn is_unopened(&self) -> bool {
        match self.state.load(Ordering::Acquire) {
            UNOPENED => true,
            PAUSED => self.trace().is_none(),
            _ => false,
        }
    }

    #[inline]
    fn trace(&self) -> Option<&'static Trace> {
        self.trace.get()
    }

    /// The live page; `None` if it could not be created.
    #[inline]
    pub fn live(&self) -> Option<&'static PublishedPage> {
        self.live.get()
    }

    /// Identifies this trace writer in the threads' numbers: a forked child's is at another address.
    #[inline]
    fn owner(&self) -> usize {
        self as *const TraceWriter as usize
    }

    #[inline]
    fn thread(&self, now_ns: u64) -> ThreadId {
        thread_slot::number(self.owner()).unwrap_or_else(|| self.new_thread(now_ns))
    }

    #[cold]
    fn new_thread(&self, now_ns: u64) -> ThreadId {
        let count = self.threads.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let Ok(number) = u16::try_from(count) else {
            self.threads.store(u32::from(u16::MAX), Ordering::Relaxed);
            thread_slot::set_number(self.owner(), ThreadId(0));
            self.say_threads();
            return ThreadId(0);
        };
        let id = ThreadId(number);
        // Set first, since writing the definition reads the number.
        thread_slot::set_number(self.owner(), id);
        let (tid, name) = identity::thread();
        self.define(&Definition::Thread { id, tid, name });
        thread_slot::set_last_ns(now_ns);
        id
    }

    #[cold]
    fn say_threads(&self) {
        if !self.threads_reported.swap(true, Ordering::Relaxed) {
            let text = "more than 65535 threads: the trace has all further ones as one".to_string();
            log::line(format_args!("{text}"));
            self.define(&Definition::Note { text });
        }
    }
}

impl Sink for TraceWriter {
    fn emit(&self, event: &Event) {
        self.record(event);
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn emit_at(&self, time_ns: u64, event: &Event) {
        self.record_at(time_ns, event);
    }
}

impl DefinitionSink for TraceWriter {
    /// Whether events are written, now or when the file opens.
    #[inline]
    fn is_recording(&self) -> bool {
        self.state.load(Ordering::Relaxed) < SILENT
    }

    /// As [`TraceWriter::define`]: where it stands, for [`TraceWriter::look_up`]. `None`: nothing is
    /// recorded.
    fn define_located(&self, definition: &Definition) -> Option<DefinitionLocation> {
        let now_ns = self.clock.now_ns();
        // The thread has no number before its first event; definitions do not need one.
        let thread = thread_slot::number(self.owner()).unwrap_or_default();
        if self.is_unopened() {
            let mut pending = self.pending.lock();
            if self.is_unopened() {
                if pending.definitions.try_push(definition.clone()).is_err() {
                    reserve::ran_out();
                }
                return Some(DefinitionLocation::Early);
            }
        }
        if self.state.load(Ordering::Acquire) == SILENT {
            return None;
        }
        match self.trace()?.define(thread, now_ns, definition) {
            Ok(offset) => Some(DefinitionLocation::At(offset)),
            Err(failure) => {
                self.fail(failure, now_ns);
                None
            }
        }
    }
}
