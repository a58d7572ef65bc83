//! Opens the file at the first event that concerns memory, and writes what was kept before it.

use super::failure::Failure;
use super::trace::Trace;
use super::{HELD, PENDING_MOST, Pending, RUNNING, SILENT, TOTALS, TraceWriter, UNOPENED, name};
use crate::config::Out;
use crate::driver::api::Api;
use crate::runtime::clock;
use crate::runtime::fallible::TryPush;
use crate::runtime::lock::Guard;
use crate::runtime::log;
use crate::runtime::own_stack;
use crate::runtime::private_table::{self, Table};
use crate::runtime::reserve;
use crate::runtime::uncancelled::uncancelled;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use vramtrace_format::{Definition, Event, Header, StopReason, ThreadId};

impl TraceWriter {
    /// In every state but `RUNNING`: whether this event is written nevertheless.
    #[cold]
    pub(super) fn admits(&self, time_ns: u64, event: &Event) -> bool {
        match self.state.load(Ordering::Acquire) {
            UNOPENED => self.early(time_ns, event),
            RUNNING => true,
            TOTALS => event.is_total(),
            HELD => {
                self.resume_held(time_ns);
                let is_held = self.state.load(Ordering::Acquire) == HELD;
                self.held.lost.fetch_add(is_held.into(), Ordering::Relaxed);
                !is_held && self.admits(time_ns, event)
            }
            _ => false,
        }
    }

    /// Before the file is open. True: it is open now, and the event is still to be written.
    fn early(&self, time_ns: u64, event: &Event) -> bool {
        // So many were kept that the file is opened for them.
        let is_full = || self.pending.lock().events.len() >= PENDING_MOST;
        if event.opens_file() || is_full() {
            self.open_now(time_ns);
        }
        let thread = self.thread(time_ns);
        let mut pending = self.pending.lock();
        if self.state.load(Ordering::Acquire) != UNOPENED {
            return self.state.load(Ordering::Acquire) == RUNNING;
        }
        if pending.events.len() >= PENDING_MOST {
            self.held.lost.fetch_add(1, Ordering::Relaxed);
        } else if pending.events.try_push((time_ns, thread, *event)).is_err() {
            reserve::ran_out();
        }
        false
    }

    /// Opens the file, unless it is open.
    pub(super) fn open_now(&self, now_ns: u64) {
        let pending = self.pending.lock();
        if self.state.load(Ordering::Acquire) == UNOPENED {
            own_stack::run(|| uncancelled(|| self.open(pending, now_ns)));
        }
    }

    /// Creates the trace file, and writes the definitions and events that were kept until then.
    fn open(&self, mut pending: Guard<'_, Pending>, now_ns: u64) {
        let started = clock::compact_utc(self.start_unix_ns);
        let mut path = self.wanted();
        let created = self
            .held
            .opening
            .run(|| private_table::run(|table| self.create(table, &started, &mut path))?);
        let trace = match created {
            Ok(Some(trace)) => trace,
            Ok(None) => return self.state.store(SILENT, Ordering::Release),
            Err(failure) if failure.may_pass() => return self.say_held(failure, &path),
            Err(failure) => {
                self.state.store(SILENT, Ordering::Release);
                self.show_recording(false);
                return log::line(format_args!(
                    "cannot record into {}: {}; the program goes on without a trace",
                    path.display(),
                    failure
                ));
            }
        };
        let trace = self.trace.put(trace);
        let kept = std::mem::take(&mut *pending);
        let last = kept.events.last().copied();
        let names =
            Api::ALL.iter().map(|&api| Definition::Api { id: api as u16, name: api.name().into() });
        let outcome = names
            .chain(kept.definitions)
            .try_for_each(|one| trace.define(ThreadId(0), now_ns, &one).map(|_| ()))
            .and_then(|_| {
                let mut events = kept.events.iter();
                events.try_for_each(|(at, thread, one)| trace.event(*thread, *at, one).map(|_| ()))
            });
        if let Some(live) = self.live() {
            live.set_trace(trace.path());
        }
        if let (true, Some((last_ns, ..))) = (self.held.lost.load(Ordering::Relaxed) > 0, last) {
            trace.leave_gap(last_ns);
        }
        self.write_due_ns.store(0, Ordering::Relaxed);
        self.state.store(RUNNING, Ordering::Release);
        drop(pending);
        self.went_on();
        if let Err(failure) = outcome {
            self.fail(failure, now_ns);
        }
    }

    /// Where the trace was to be, for a message.
    pub(super) fn wanted(&self) -> PathBuf {
        match &self.out {
            Out::Pattern(pattern) => pattern.into(),
            _ => PathBuf::from("the working directory"),
        }
    }

    fn create(
        &self,
        table: &Table,
        started: &str,
        wanted: &mut PathBuf,
    ) -> Result<Option<Trace>, Failure> {
        let identity = self.identify(Some(table));
        let path = name::place(&self.out, identity, started).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            Failure { reason: StopReason::WriteFailed, errno }
        })?;
        let Some(path) = path else { return Ok(None) };
        wanted.clone_from(&path);
        let header = Header {
            start_unix_ns: self.start_unix_ns,
            start_mono_ns: self.clock.start_ns,
            driver_version: Some(self.driver_version.load(Ordering::Relaxed)).filter(|v| *v != 0),
            max_bytes: self.max,
            ..identity.header()
        };
        Trace::create(table, &path, &header, self.max, self.means).map(Some)
    }
}
