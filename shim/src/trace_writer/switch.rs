//! The switch: the recording goes off and on while the program runs, by an order in the live page
//! (`vramtrace record`) or by a file of the host or of the user ([`vramtrace_format::host_switch`]).
//!
//! Off: events are not appended and no stacks are captured. Definitions of sites are still written, since
//! the ledger goes on, and its entries name them. On again: a record says that events are missing, and a
//! checkpoint writes the live set. A reader treats the time between as any other missing events.
//!
//! All changes are made in [`TraceWriter::maintain`], by one thread at a time. At the end of a process
//! the recording goes on, so that the trace has what was live then.

use super::maintenance::{ProcessView, Turn};
use super::{PAUSED, RUNNING, TOTALS, TraceWriter, UNOPENED};
use crate::runtime::fallible::TryPush;
use crate::runtime::{log, reserve, secure_dir, system};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use vramtrace_format::host_switch::{self, HOST_FILE, NoSwitch};
use vramtrace_format::{Event, SwitchedBy};

/// Time between two readings of the files: with the time of a call they are followed within a second.
const READ_EVERY_NS: u64 = 500_000_000;

/// Whether the recording is to be off.
pub(super) struct Switch {
    /// The file of the host, and that of the user.
    files: [Option<CString>; 2],
    by_order: bool,
    by_file: bool,
    /// The state to which the recording returns.
    before: u32,
    /// The process ends: nothing switches the recording any more.
    ended: bool,
    /// The line about a file that does not count was printed.
    reported: bool,
}

impl Switch {
    /// `runtime`: the runtime directory, as the environment names it.
    pub(super) fn new(runtime: Option<&Path>) -> Switch {
        let user = runtime.filter(|path| path.is_absolute()).map(host_switch::of_user);
        let file = |path: &Path| CString::new(path.as_os_str().as_bytes()).ok();
        Switch {
            files: [file(Path::new(HOST_FILE)), user.as_deref().and_then(file)],
            by_order: false,
            by_file: false,
            before: UNOPENED,
            ended: false,
            reported: false,
        }
    }

    /// Reads the files. A system call for each.
    fn read_files(&mut self) {
        self.by_file = false;
        for file in self.files.iter().flatten() {
            match said_by(file) {
                None => {}
                Some(Ok(())) => self.by_file = true,
                Some(Err(why)) if !self.reported => {
                    self.reported = true;
                    log::line(format_args!(
                        "{}: {why}; it does not switch the recording off",
                        file.to_string_lossy()
                    ));
                }
                Some(Err(_)) => {}
            }
        }
    }

    /// What holds the recording off.
    fn off_by(&self) -> &'static [SwitchedBy] {
        const BOTH: [SwitchedBy; 2] = [SwitchedBy::Order, SwitchedBy::HostFile];
        &BOTH[usize::from(!self.by_order)..1 + usize::from(self.by_file)]
    }
}

/// `None`: there is no such file. No link is followed.
fn said_by(file: &CStr) -> Option<Result<(), NoSwitch>> {
    let stat = system::stat_of_name(system::WORKING_DIRECTORY, file)?;
    Some(host_switch::check(stat.st_mode, stat.st_uid, secure_dir::user()))
}

impl TraceWriter {
    /// At the start, when the live page is there: a file may have switched the recording off already.
    pub(super) fn begin_switched(&self) {
        if self.is_silent() {
            self.switch_due_ns.store(u64::MAX, Ordering::Relaxed);
            return;
        }
        let switch = &mut self.maintenance.lock().switch;
        let now_ns = self.clock.now_ns();
        self.read_switch(switch, now_ns);
        if let Some(by) = switch.off_by().first() {
            self.turn_unopened(now_ns, false, *by);
        }
        self.show(switch);
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

    /// Shows in the live page whether the recording is switched off.
    fn show(&self, switch: &Switch) {
        let is_off = self.state.load(Ordering::Acquire) == PAUSED;
        if let Some(live) = self.live() {
            live.page().set_off_by(if is_off { switch.off_by() } else { &[] });
        }
    }

    /// Switches the recording off or on before the file is open.
    fn turn_unopened(&self, now_ns: u64, on: bool, by: SwitchedBy) {
        let (from, to) = if on { (PAUSED, UNOPENED) } else { (UNOPENED, PAUSED) };
        let mut pending = self.pending.lock();
        if self.state.load(Ordering::Acquire) != from {
            return;
        }
        let event = Event::Recording { on, by };
        if pending.events.try_push((now_ns, Default::default(), event)).is_err() {
            reserve::ran_out();
        }
        self.state.store(to, Ordering::Release);
        drop(pending);
        match self.live() {
            Some(live) if on => live.loaded(),
            Some(live) => live.recording(false),
            None => {}
        }
    }
}

impl<V: ProcessView> Turn<'_, V> {
    /// Switches the recording off or on, if that is asked for.
    pub(super) fn follow_switch(&mut self) {
        let Turn { writer, now_ns, end, .. } = *self;
        let switch = &mut self.of.switch;
        if switch.ended || writer.is_silent() {
            writer.switch_due_ns.store(u64::MAX, Ordering::Relaxed);
            return;
        }
        switch.ended = end;
        let order = writer.live().and_then(|live| live.page().switch_order());
        let before = switch.off_by().first().copied();
        writer.read_switch(switch, now_ns);
        let off_by = switch.off_by().first().copied();
        match (writer.state.load(Ordering::Acquire), off_by) {
            (UNOPENED, Some(by)) => writer.turn_unopened(now_ns, false, by),
            (RUNNING | TOTALS, Some(by)) if !end => self.pause(by),
            (PAUSED, Some(_)) if end && writer.trace().is_some() => self.resume(SwitchedBy::End),
            (PAUSED, None) => self.resume(before.unwrap_or(SwitchedBy::Order)),
            _ => {}
        }
        writer.show(&self.of.switch);
        if let (Some(live), Some((number, _))) = (writer.live(), order) {
            live.page().set_switch_applied(number);
        }
    }

    fn pause(&mut self, by: SwitchedBy) {
        let writer = self.writer;
        let Some(trace) = writer.trace() else { return };
        // A checkpoint that is under way has no end otherwise.
        self.write_checkpoint(trace, usize::MAX);
        self.note(trace, &self.counters());
        // Events that other threads append behind it are read and then replaced by the checkpoint.
        writer.append(self.now_ns, &Event::Recording { on: false, by });
        let before = writer.state.load(Ordering::Acquire);
        if matches!(before, RUNNING | TOTALS) && writer.turn(before, PAUSED) {
            writer.short.end();
            self.of.switch.before = before;
            writer.show_recording(false);
        }
    }

    /// From here on events are appended; the next checkpoint is due at once.
    fn resume(&mut self, by: SwitchedBy) {
        let Turn { writer, now_ns, .. } = *self;
        writer.owes_checkpoint.store(true, Ordering::Relaxed);
        if writer.trace().is_none() {
            writer.turn_unopened(now_ns, true, by);
            if !self.view.devices().is_empty() {
                writer.open_now(now_ns);
            }
        } else if writer.turn(PAUSED, self.of.switch.before) {
            writer.append(now_ns, &Event::Recording { on: true, by });
            writer.show_recording(true);
        }
    }
}
