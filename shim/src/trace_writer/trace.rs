//! An open trace: its two lanes of windows, and rolling from one window to the next.
//!
//! The hot path takes no lock: it appends to its lane's current window, which lies in the tail file.
//! The thread that passes the middle of a window prepares the next one under the lock of the grid. A
//! thread that finds a window full takes that lock too. Complete windows stay in the tail until more
//! room is needed: then one task (`runtime/private_table.rs`) writes them to the trace, and makes room
//! for several new ones. Without a tail (where there is no place for one, and after the end), records
//! are written to the file at once, within a share of the time.

use super::attempts::Attempts;
use super::credit::Credit;
use super::failure::Failure;
use super::file::{File, OpenFile};
use super::grid::{Grid, NO_MEMORY, make_room, new_window};
use super::means::Means;
use super::slots::Slots;
use super::tail::Tail;
use super::window::{Lane, Window};
use crate::runtime::clock;
use crate::runtime::fallible::list_of;
use crate::runtime::hash_table::NoMemory;
use crate::runtime::lock::{Guard, Lock};
use crate::runtime::private_table::{self, Table};
use crate::runtime::system::Part;
use crate::trace_writer::retention::Retention;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vramtrace_format::window::WINDOW_HEADER;
use vramtrace_format::{
    Appended, Define, Definition, Event, HEADER_BYTES, Header, Lookup, SLOT, SwitchedBy, TailPlace,
    ThreadId, WindowKind, WindowWriter, slot_offset,
};

/// Event windows of one slot at the start, so that a short run leaves a small file.
const SMALL_WINDOWS: u64 = 4;
/// Slots of the later ones.
const LARGE: u16 = 4;
/// Later windows for which room is made at one time, where the file has no limit.
const AHEAD: u16 = 4;

/// Without a tail: time for writes that can be saved up, for some hundred records, one after the other; and one part in so many
/// of the time is given for them.
const CREDIT_NS: i64 = 50_000_000;
const SHARE: u64 = 20;

/// What each event reads is on the first cache line.
#[repr(C, align(64))]
pub struct Trace {
    pub(super) events: Lane,
    /// Records are written to the file at once, since there is no tail.
    at_once: AtomicBool,
    definitions: Lane,
    file: File,
    /// To write to it and to make room.
    pub(super) attempts: Attempts,
    header: Header,
    grid: Lock<Grid>,
    /// Whether the file was truncated since this was last read.
    pub(super) cut: AtomicBool,
    /// Slots of later event windows, and how many get room at one time.
    large: u16,
    ahead: u16,
    /// Bytes of event windows begun.
    event_bytes: AtomicU64,
}

/// The result of an append: whether a new event window has begun.
pub type Outcome = Result<bool, Failure>;

impl Trace {
    /// Makes the file and its first windows. `limit`: most bytes on disk.
    pub fn create(
        table: &Table,
        path: &Path,
        header: &Header,
        limit: Option<u64>,
        means: Means,
    ) -> Result<Trace, Failure> {
        let file = File::create(table, path, means.punch)?;
        let tail = Tail::create(table, file.path(), header, means);
        let place = tail.as_ref().map(Tail::place);
        let header = Header { tail: place, ..header.clone() };
        let mut grid = Grid {
            slots: Slots::default(),
            definitions: Vec::new(),
            sequences: [0; 2],
            retired_bytes: 0,
            open: Vec::new(),
            reserved: Vec::new(),
            tail,
            credit: Credit::new(CREDIT_NS, clock::mono_ns()),
            retention: Retention::new(limit),
        };
        let begun = file.open(table).and_then(|open| Trace::begin(&open, &header, &mut grid));
        match begun {
            Ok((events, definitions)) => Ok(Trace {
                file,
                attempts: Attempts::default(),
                header,
                events,
                definitions,
                at_once: AtomicBool::new(grid.tail.is_none()),
                grid: Lock::new(grid),
                cut: AtomicBool::new(false),
                large: match place {
                    // Its memory is the program's too.
                    Some(TailPlace::Memory) => 1,
                    _ => limit.map_or(LARGE, |limit| {
                        (limit / (64 * SLOT as u64)).clamp(1, u64::from(LARGE)) as u16
                    }),
                },
                ahead: if limit.is_some() { 1 } else { AHEAD },
                event_bytes: AtomicU64::new(SLOT as u64),
            }),
            Err(failure) => {
                grid.tail.take().into_iter().for_each(Tail::remove);
                file.discard();
                Err(failure)
            }
        }
    }

    fn begin(file: &OpenFile, header: &Header, grid: &mut Grid) -> Result<(Lane, Lane), Failure> {
        file.write_bytes(&header.to_page(), 0)?;
        let mut lane = |kind| {
            make_room(file, grid, 1, 1)?;
            new_window(header.file_tag(), grid, kind, 1, 0).map(Lane::new)
        };
        let definitions = lane(WindowKind::Definitions)?;
        Ok((lane(WindowKind::Events)?, definitions))
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Sequence of the event window that is being filled.
    pub fn sequence(&self) -> u64 {
        self.events.current().writer.header().sequence
    }

    /// Bytes of event windows begun so far.
    pub fn event_bytes(&self) -> u64 {
        self.event_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of records so far, and of the headers that they stand behind.
    pub fn appended_bytes(&self) -> u64 {
        let grid = self.grid.lock();
        let open: usize = grid.open.iter().map(|window| window.writer.published()).sum();
        HEADER_BYTES as u64 + grid.retired_bytes + open as u64
    }

    /// Runs `work` on the data about the limit, under the lock.
    pub fn with_retention<R>(&self, work: impl FnOnce(&mut Retention) -> R) -> R {
        work(&mut self.grid.lock().retention)
    }

    #[inline]
    pub fn event(&self, thread: ThreadId, now_ns: u64, event: &Event) -> Outcome {
        self.append(&self.events, now_ns, |writer| writer.append(thread, now_ns, event))
    }

    /// The window where events may be appended without a look at the trace; `None`: nowhere.
    pub fn short(&self) -> Option<&'static Window> {
        (!self.at_once.load(Ordering::Acquire)).then(|| self.events.current())
    }

    /// Records are written to the file at once, from now on.
    pub fn write_at_once(&self) {
        self.at_once.store(true, Ordering::Release);
    }

    /// Appends a definition. Returns its offset in the file.
    pub fn define(
        &self,
        thread: ThreadId,
        now_ns: u64,
        definition: &Definition,
    ) -> Result<u64, Failure> {
        self.go_on(&self.definitions, now_ns)?;
        let mut define = Define::new(definition);
        let mut place = 0;
        self.append(&self.definitions, now_ns, |writer| {
            let appended = writer.define(thread, now_ns, &mut define);
            if let Appended::At { offset, .. } = appended {
                place = offset;
            }
            appended
        })?;
        Ok(define.first().unwrap_or(place))
    }

    /// Reads definitions of this file again, while `work` runs.
    pub fn look_up<W>(&self, work: W)
    where
        W: FnOnce(&mut Lookup<&mut dyn FnMut(u64, &mut [u8]) -> bool>),
    {
        // A failure here only means that nothing is found.
        let _ = self.with_file(|file| {
            let slots = {
                let mut grid = self.grid.lock();
                let _ = self.store_open(file, &mut grid);
                let definitions = grid.definitions.iter().copied();
                list_of(grid.definitions.len(), definitions).unwrap_or_default()
            };
            let mut read = |offset, bytes: &mut [u8]| file.read(bytes, offset).is_ok();
            work(&mut Lookup::new(&slots, &mut read));
            Ok(())
        });
    }

    /// Begins the next event window, if records are lost without it.
    pub fn resume(&self, now_ns: u64) -> Result<(), Failure> {
        self.go_on(&self.events, now_ns)
    }

    fn go_on(&self, lane: &Lane, now_ns: u64) -> Result<(), Failure> {
        if lane.held_ns().is_none() {
            return Ok(());
        }
        let mut grid = self.grid.lock();
        lane.held_ns().map_or(Ok(()), |_| self.advance(&mut grid, lane, now_ns))
    }

    /// Events are missing from this time on, until the next event window.
    pub fn leave_gap(&self, from_ns: u64) {
        let _grid = self.grid.lock();
        self.events.current().writer.close();
        self.events.held.store(from_ns, Ordering::Relaxed);
    }

    /// Prepares the next windows that another thread could not.
    pub fn catch_up(&self, now_ns: u64) -> Result<(), Failure> {
        let mut lacking =
            [&self.events, &self.definitions].into_iter().filter(|lane| lane.lacks_next());
        match self.at_once.load(Ordering::Relaxed) {
            true => Ok(()),
            false => lacking.try_for_each(|lane| self.ready(lane, lane.current(), now_ns)),
        }
    }

    /// Runs `work` in a task, in which the file is open.
    fn with_file<R>(
        &self,
        work: impl FnOnce(&OpenFile) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        private_table::run(|table| work(&self.file.open(table)?))?
    }

    /// Appends where there is room left in the current window; no new window, no error.
    pub fn add(&self, thread: ThreadId, now_ns: u64, event: &Event) {
        let _ = self.events.current().writer.append(thread, now_ns, event);
    }

    /// The same, and writes it to the file.
    pub fn last_words(&self, thread: ThreadId, now_ns: u64, event: &Event) {
        self.add(thread, now_ns, event);
        let _ = self.flush();
    }

    /// Writes what was published since the last call, so that a copy of the trace without its tail
    /// lacks only later events.
    pub fn flush(&self) -> Result<(), Failure> {
        let mut grid = self.grid.lock();
        if grid.open.iter().all(|window| window.is_stored()) {
            return Ok(());
        }
        self.with_file(|file| self.store_all(file, &mut grid))
    }

    /// The trace was removed: removes the tail, which is of no use without it.
    pub fn abandon(&self) {
        self.write_at_once();
        self.grid.lock().tail.take().into_iter().for_each(Tail::remove);
    }

    /// Writes everything to the trace and removes the tail. Later records are written at once. If
    /// something could not be written, the tail stays.
    pub fn finish(&self) {
        self.write_at_once();
        let mut grid = self.grid.lock();
        let _ = self.with_file(|file| {
            self.store_all(file, &mut grid)?;
            let Grid { slots, reserved, .. } = &mut *grid;
            reserved.drain(..).for_each(|range| slots.give(range.slot, range.slots));
            file.shorten(slot_offset(u64::from(slots.forget_free_end())));
            if grid.tail.is_some() {
                let header = Header { tail: None, ..self.header.clone() };
                file.write_bytes(&header.to_page(), 0)?;
                grid.tail.take().into_iter().for_each(Tail::remove);
            }
            Ok(())
        });
    }

    #[inline]
    fn append(
        &self,
        lane: &Lane,
        now_ns: u64,
        mut put: impl FnMut(&WindowWriter) -> Appended,
    ) -> Outcome {
        if self.at_once.load(Ordering::Relaxed) {
            return self.append_at_once(lane, now_ns, put);
        }
        let mut rolled = false;
        loop {
            let window = lane.current();
            match put(&window.writer) {
                Appended::At { middle: false, .. } => return Ok(rolled),
                Appended::At { middle: true, .. } => {
                    self.ready(lane, window, now_ns)?;
                    return Ok(rolled);
                }
                Appended::Full => rolled |= self.roll(lane, window, now_ns)?,
            }
        }
    }

    /// As `append`, without a tail: the record is stored in memory and then written to the file, one
    /// thread at a time. If that would take too much of the time, it is written with a later one.
    #[cold]
    fn append_at_once(
        &self,
        lane: &Lane,
        now_ns: u64,
        mut put: impl FnMut(&WindowWriter) -> Appended,
    ) -> Outcome {
        let mut grid = self.grid.lock();
        let mut rolled = false;
        while matches!(put(&lane.current().writer), Appended::Full) {
            self.advance(&mut grid, lane, now_ns)?;
            rolled |= lane.kind() == WindowKind::Events;
        }
        let began_ns = clock::mono_ns();
        if grid.credit.has_any(began_ns, SHARE) {
            let written =
                self.attempts.run(|| self.with_file(|file| self.store_all(file, &mut grid)));
            unless_later(written)?;
            grid.credit.spend(clock::elapsed_ns(began_ns));
        }
        Ok(rolled)
    }

    /// Writes the part of a window that is not in the trace. Records that are being stored meanwhile
    /// are written again the next time.
    fn store(&self, file: &OpenFile, window: &Window) -> Result<(), Failure> {
        let (writer, offset) = (&window.writer, window.offset());
        if window.is_stored() {
            return Ok(());
        }
        // In this order: everything published so far lies before the end.
        let published = writer.published();
        let end = writer.reserved();
        let (begin, first) = (window.begin(published), window.begin(WINDOW_HEADER));
        let from = window.written.load(Ordering::Relaxed).max(WINDOW_HEADER);
        if from == WINDOW_HEADER {
            // At a kill or on a full disk the kernel may write a part only: until everything is
            // written, the header's count does not include it.
            let first = Part::Bytes(first.as_flattened());
            file.write(&[first, window.part(from, end)], offset)?;
        } else {
            file.write(&[window.part(from, end)], offset + from as u64)?;
        }
        if end == window.bytes() || !self.at_once.load(Ordering::Relaxed) {
            file.write_bytes(begin.as_flattened(), offset)?;
        }
        window.stored.store(published, Ordering::Relaxed);
        if published == end {
            window.written.store(end, Ordering::Relaxed);
        }
        Ok(())
    }

    fn store_all(&self, file: &OpenFile, grid: &mut Grid) -> Result<(), Failure> {
        self.retire(file, grid)?;
        self.store_open(file, grid)
    }

    fn store_open(&self, file: &OpenFile, grid: &mut Grid) -> Result<(), Failure> {
        grid.open.iter().try_for_each(|window| self.store(file, window))?;
        self.mend(file, grid)
    }

    /// After a truncation: writes again what is still in memory. The rest is lost.
    fn mend(&self, file: &OpenFile, grid: &mut Grid) -> Result<(), Failure> {
        if !file.mend()? {
            return Ok(());
        }
        self.cut.store(true, Ordering::Relaxed);
        file.write_bytes(&self.header.to_page(), 0)?;
        grid.open.iter().try_for_each(|window| self.store_again(file, window))
    }

    /// Writes all of a window to the trace, including what was written before.
    fn store_again(&self, file: &OpenFile, window: &Window) -> Result<(), Failure> {
        window.written.store(0, Ordering::Relaxed);
        window.stored.store(0, Ordering::Relaxed);
        self.store(file, window)
    }

    #[cold]
    pub(super) fn ready(
        &self,
        lane: &Lane,
        passed: &'static Window,
        now_ns: u64,
    ) -> Result<(), Failure> {
        let mut grid = self.grid.lock();
        let overtaken = !std::ptr::eq(lane.current(), passed);
        if overtaken || lane.next.get().is_some() {
            return Ok(());
        }
        let next = self.prepare(&mut grid, lane, now_ns);
        unless_later(next.map(|next| lane.next.set(next)))
    }

    /// True: this call began a new event window.
    #[cold]
    fn roll(&self, lane: &Lane, full: &'static Window, now_ns: u64) -> Outcome {
        let mut grid = self.grid.lock();
        if !std::ptr::eq(lane.current(), full) {
            return Ok(false);
        }
        self.advance(&mut grid, lane, now_ns)?;
        Ok(lane.kind() == WindowKind::Events)
    }

    fn advance(&self, grid: &mut Guard<'_, Grid>, lane: &Lane, now_ns: u64) -> Result<(), Failure> {
        let prepared = lane.next.take().map_or_else(|| self.prepare(grid, lane, now_ns), Ok);
        let next = prepared.inspect_err(|failure| {
            if failure.may_pass() {
                lane.held.fetch_min(now_ns, Ordering::Relaxed);
            }
        })?;
        lane.current.set(next);
        lane.held.store(u64::MAX, Ordering::Relaxed);
        Ok(())
    }

    /// Writes full windows whose appends have all ended, and gives their memory back.
    fn retire(&self, file: &OpenFile, grid: &mut Grid) -> Result<(), Failure> {
        let mut at = 0;
        while let Some(window) = grid.open.get(at).copied() {
            if !window.writer.is_complete() || self.is_in_use(window) {
                at += 1;
                continue;
            }
            self.store(file, window)?;
            if self.file.cut.load(Ordering::Relaxed) {
                // Parts written before may be lost by a truncation, and its memory is about to be
                // released.
                self.store_again(file, window)?;
            }
            grid.open.remove(at);
            grid.retired_bytes += window.writer.published() as u64;
            window.release(&mut grid.tail);
            let header = window.writer.header();
            grid.retention.complete(header.kind, header.sequence);
        }
        self.mend(file, grid)
    }

    fn is_in_use(&self, window: &Window) -> bool {
        [&self.events, &self.definitions].iter().any(|lane| std::ptr::eq(lane.current(), window))
    }

    /// Creates a new window, and makes room for it below the limit.
    fn prepare(
        &self,
        grid: &mut Guard<'_, Grid>,
        lane: &Lane,
        now_ns: u64,
    ) -> Result<&'static Window, Failure> {
        let slots = match lane.kind() {
            WindowKind::Events if grid.sequences[0] >= SMALL_WINDOWS => self.large,
            _ => 1,
        };
        if !grid.has_room(slots) {
            self.attempts.run(|| self.with_file(|file| self.provide(file, grid, slots)))?;
        }
        let held_ns = lane.held_ns();
        let from_ns = held_ns.unwrap_or(now_ns);
        let window = new_window(self.header.file_tag(), grid, lane.kind(), slots, from_ns)?;
        if lane.kind() == WindowKind::Events {
            // First of all, so that readers know what is missing before they find something that needs it.
            for (at_ns, on) in held_ns.into_iter().flat_map(|from| [(from, false), (now_ns, true)])
            {
                let by = if on { SwitchedBy::Order } else { SwitchedBy::End };
                let event = Event::Recording { on, by };
                let _ = window.writer.append(ThreadId(0), at_ns, &event);
            }
            self.event_bytes.fetch_add(slots as u64 * SLOT as u64, Ordering::Relaxed);
        }
        Ok(window)
    }

    /// Writes complete windows to the trace, and makes room for the next ones.
    fn provide(&self, file: &OpenFile, grid: &mut Grid, slots: u16) -> Result<(), Failure> {
        self.retire(file, grid)?;
        let windows = if slots == self.large { self.ahead } else { 1 };
        let bytes = u64::from(windows) * slots as u64 * SLOT as u64;
        grid.make_room().map_err(|NoMemory| NO_MEMORY)?;
        let Grid { retention, slots: free, .. } = grid;
        retention.make_room(bytes, |slot, slots| {
            file.erase(slot_offset(u64::from(slot)), u64::from(slots) * SLOT as u64)?;
            free.give(slot, slots);
            Ok(())
        })?;
        make_room(file, grid, windows, slots)
    }
}

/// What another thread may do, or this one later, is no failure where nothing is lost.
fn unless_later(done: Result<(), Failure>) -> Result<(), Failure> {
    if done.is_err_and(|failure| failure.may_pass()) { Ok(()) } else { done }
}
