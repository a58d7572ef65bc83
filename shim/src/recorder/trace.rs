//! An open trace: its two lanes of windows, and rolling from one window to the next.
//!
//! The hot path takes no lock: it appends to its lane's current window. The thread that passes
//! the middle of a window readies the next one under the lock of the grid; who finds a window
//! full takes that lock too, and so waits at most for a window to be readied.

use super::bound::Bound;
use super::file::{Access, Failure, File};
use crate::lock::{Guard, Lock};
use crate::table;
use std::collections::VecDeque;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use vramtrace_format::{
    Appended, Define, Definition, Event, HEADER_BYTES, Header, Lookup, SLOT, StopReason, ThreadId,
    WindowHeader, WindowKind, WindowWriter, slot_offset,
};

/// Event windows of one slot at the start, so that a short run leaves a small file.
const SMALL_WINDOWS: u64 = 4;
/// Slots of the later ones.
const LARGE: u16 = 4;
/// Full windows that stay mapped: a reader of this process's memory finds the last events there.
const KEEP_MAPPED: usize = 2;

/// A window and its memory. Never freed: a thread that was about to append when the window became
/// full finds it full, and nothing else, however late it comes.
struct Window {
    writer: WindowWriter<'static>,
    memory: *mut u8,
    bytes: usize,
    /// Bytes that pwrite has taken, where the window is not mapped.
    written: AtomicUsize,
}

impl Window {
    fn offset(&self) -> u64 {
        slot_offset(u64::from(self.writer.header().slot))
    }

    fn unmap(&self) {
        // SAFETY: the window is complete: nobody stores into it, and later appends do not get
        // beyond its cursor.
        unsafe { libc::munmap(self.memory.cast(), self.bytes) };
    }
}

/// Windows of one kind, in a row.
struct Lane {
    kind: WindowKind,
    current: AtomicPtr<Window>,
    /// Readied by whoever passed the middle of the current one.
    next: AtomicPtr<Window>,
}

impl Lane {
    fn new(kind: WindowKind) -> Lane {
        Lane { kind, current: AtomicPtr::new(null_mut()), next: AtomicPtr::new(null_mut()) }
    }

    fn current(&self) -> &'static Window {
        // SAFETY: set when the trace opened, and windows are never freed.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }
}

/// What is known of the file's grid; changed under its lock.
struct Grid {
    next_slot: u32,
    /// Of the definition windows.
    definitions: Vec<u32>,
    /// Next sequence of event and definition windows.
    sequences: [u64; 2],
    /// Full windows that are still mapped, oldest first.
    mapped: VecDeque<&'static Window>,
    pub bound: Bound,
}

pub struct Trace {
    file: File,
    tag: u64,
    events: Lane,
    definitions: Lane,
    grid: Lock<Grid>,
    /// Slots of later event windows.
    large: u16,
    /// Bytes of event windows begun.
    event_bytes: AtomicU64,
}

// SAFETY: windows are shared through atomics, everything else is behind the lock.
unsafe impl Send for Trace {}
unsafe impl Sync for Trace {}

/// What the filesystem may be used for. Tests take some of it away, for filesystems that they have
/// not got.
#[derive(Clone, Copy, Debug)]
pub struct Means {
    pub map: bool,
    pub punch: bool,
}

impl Default for Means {
    fn default() -> Self {
        Means { map: true, punch: true }
    }
}

/// What became of an append: whether a new event window began.
pub type Outcome = Result<bool, Failure>;

impl Trace {
    /// Makes the file and its first windows. `limit`: most bytes on disk.
    pub fn create(
        path: &Path,
        header: &Header,
        limit: Option<u64>,
        means: Means,
    ) -> Result<Trace, Failure> {
        let mut file = File::create(path)?;
        if !means.map {
            file.write_only();
        }
        match Trace::begin(&mut file, header, limit, means) {
            Ok((events, definitions, grid)) => {
                let large = limit.map_or(LARGE, |limit| {
                    (limit / (64 * SLOT as u64)).clamp(1, u64::from(LARGE)) as u16
                });
                let event_bytes = AtomicU64::new(SLOT as u64);
                let (tag, grid) = (header.file_tag(), Lock::new(grid));
                Ok(Trace { file, tag, events, definitions, grid, large, event_bytes })
            }
            Err(failure) => {
                file.discard();
                Err(failure)
            }
        }
    }

    fn begin(
        file: &mut File,
        header: &Header,
        limit: Option<u64>,
        means: Means,
    ) -> Result<(Lane, Lane, Grid), Failure> {
        file.write(&header.to_page(), 0)?;
        // Tried on the hole behind the header, before anything is there.
        let can_punch = means.punch && file.punch(HEADER_BYTES as u64, HEADER_BYTES as u64).is_ok();
        let mut grid = Grid {
            next_slot: 0,
            definitions: Vec::new(),
            sequences: [0; 2],
            mapped: VecDeque::new(),
            bound: Bound::new(limit, can_punch),
        };
        let (events, definitions) =
            (Lane::new(WindowKind::Events), Lane::new(WindowKind::Definitions));
        for lane in [&definitions, &events] {
            let window = match new_window(file, header.file_tag(), &mut grid, lane.kind, 1, 0) {
                Err(Failure { errno: libc::EOPNOTSUPP | libc::ENOSYS, .. }) => {
                    // No blocks ahead here.
                    file.write_only();
                    new_window(file, header.file_tag(), &mut grid, lane.kind, 1, 0)?
                }
                other => other?,
            };
            lane.current.store(window, Ordering::Release);
        }
        Ok((events, definitions, grid))
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

    /// The limit's bookkeeping, for a while.
    pub fn with_bound<R>(&self, work: impl FnOnce(&mut Bound) -> R) -> R {
        work(&mut self.grid.lock().bound)
    }

    /// Begins to fetch where the next event will stand.
    #[inline]
    pub fn prefetch(&self) {
        let writer = &self.events.current().writer;
        writer.places().into_iter().for_each(table::prefetch);
    }

    #[inline]
    pub fn event(&self, thread: ThreadId, now_ns: u64, event: &Event) -> Outcome {
        self.append(&self.events, now_ns, |writer| writer.append(thread, now_ns, event))
    }

    /// As `event`, for one that `put` appends in its short form, where there is little else to do.
    /// `None`: nothing was written.
    #[inline(always)]
    pub fn short(
        &self,
        now_ns: u64,
        put: impl FnOnce(&WindowWriter) -> Option<Appended>,
    ) -> Option<Outcome> {
        let window = self.events.current();
        if self.file.access() == Access::Write || !window.writer.is_near(now_ns) {
            return None;
        }
        match put(&window.writer)? {
            Appended::At { middle: false, .. } => Some(Ok(false)),
            Appended::At { middle: true, .. } => {
                Some(self.ready(&self.events, window, now_ns).map(|()| false))
            }
            Appended::Full => None,
        }
    }

    /// The byte of the file at which it stands.
    pub fn define(
        &self,
        thread: ThreadId,
        now_ns: u64,
        definition: &Definition,
    ) -> Result<u64, Failure> {
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
        let slots = self.grid.lock().definitions.clone();
        let mut read = |offset, bytes: &mut [u8]| self.file.read(bytes, offset).is_ok();
        work(&mut Lookup::new(&slots, &mut read));
    }

    /// Appends where there is room left in the current window; no new window, no error.
    pub fn last_words(&self, thread: ThreadId, now_ns: u64, event: &Event) {
        let window = self.events.current();
        let _ = window.writer.append(thread, now_ns, event);
        if self.file.access() == Access::Write {
            let _grid = self.grid.lock();
            let _ = self.flush(window, window.bytes.min(window.writer.published()));
        }
    }

    #[inline]
    fn append(
        &self,
        lane: &Lane,
        now_ns: u64,
        mut put: impl FnMut(&WindowWriter) -> Appended,
    ) -> Outcome {
        if self.file.access() == Access::Write {
            return self.append_written(lane, now_ns, put);
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

    /// As `append`, on filesystems that are not mapped: the record goes to memory of our own and
    /// from there into the file, one writer at a time.
    #[cold]
    fn append_written(
        &self,
        lane: &Lane,
        now_ns: u64,
        mut put: impl FnMut(&WindowWriter) -> Appended,
    ) -> Outcome {
        let mut grid = self.grid.lock();
        let mut rolled = false;
        loop {
            let window = lane.current();
            match put(&window.writer) {
                Appended::At { offset, bytes, .. } => {
                    self.flush(window, (offset - window.offset()) as usize + bytes)?;
                    return Ok(rolled);
                }
                Appended::Full => {
                    // Padding, and a published count that says complete.
                    self.flush(window, window.bytes)?;
                    self.file.write(&memory(window, 0, 64), window.offset())?;
                    let next = self.prepare(&mut grid, lane, now_ns)?;
                    lane.current.store(next, Ordering::Release);
                    window.unmap();
                    grid.bound.complete(lane.kind, window.writer.header().sequence);
                    rolled |= lane.kind == WindowKind::Events;
                }
            }
        }
    }

    /// What lies before `end` in a window's memory goes into the file.
    fn flush(&self, window: &Window, end: usize) -> Result<(), Failure> {
        let from = window.written.load(Ordering::Relaxed);
        if from < end {
            self.file.write(&memory(window, from, end), window.offset() + from as u64)?;
            window.written.store(end, Ordering::Relaxed);
        }
        Ok(())
    }

    #[cold]
    fn ready(&self, lane: &Lane, passed: &'static Window, now_ns: u64) -> Result<(), Failure> {
        let mut grid = self.grid.lock();
        let overtaken = !std::ptr::eq(lane.current(), passed);
        if overtaken || !lane.next.load(Ordering::Relaxed).is_null() {
            return Ok(());
        }
        let next = self.prepare(&mut grid, lane, now_ns)?;
        lane.next.store(next, Ordering::Relaxed);
        Ok(())
    }

    /// True: this call began a new event window.
    #[cold]
    fn roll(&self, lane: &Lane, full: &'static Window, now_ns: u64) -> Outcome {
        let mut grid = self.grid.lock();
        if !std::ptr::eq(lane.current(), full) {
            return Ok(false);
        }
        let mut next = lane.next.swap(null_mut(), Ordering::Relaxed);
        if next.is_null() {
            next = self.prepare(&mut grid, lane, now_ns)?;
        }
        lane.current.store(next, Ordering::Release);
        grid.mapped.push_back(full);
        self.retire(&mut grid);
        Ok(lane.kind == WindowKind::Events)
    }

    /// Unmaps full windows, oldest first, as far as their appends have all ended.
    fn retire(&self, grid: &mut Grid) {
        while grid.mapped.len() > KEEP_MAPPED {
            let Some(at) = grid.mapped.iter().position(|window| window.writer.is_complete()) else {
                return;
            };
            if at + KEEP_MAPPED >= grid.mapped.len() {
                return;
            }
            let Some(window) = grid.mapped.remove(at) else { return };
            window.unmap();
            let header = window.writer.header();
            grid.bound.complete(header.kind, header.sequence);
        }
    }

    /// A new window at the end of the file, and room for it below the limit.
    fn prepare(
        &self,
        grid: &mut Guard<'_, Grid>,
        lane: &Lane,
        now_ns: u64,
    ) -> Result<*mut Window, Failure> {
        let slots = match lane.kind {
            WindowKind::Events if grid.sequences[0] >= SMALL_WINDOWS => self.large,
            _ => 1,
        };
        let bytes = slots as u64 * SLOT as u64;
        let file = &self.file;
        grid.bound.make_room(lane.kind, bytes, |slot, slots| {
            file.punch(slot_offset(u64::from(slot)), u64::from(slots) * SLOT as u64)
        })?;
        let window = new_window(file, self.tag, grid, lane.kind, slots, now_ns)?;
        if lane.kind == WindowKind::Events {
            self.event_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(window)
    }
}

fn new_window(
    file: &File,
    tag: u64,
    grid: &mut Grid,
    kind: WindowKind,
    slots: u16,
    now_ns: u64,
) -> Result<*mut Window, Failure> {
    let bytes = slots as usize * SLOT;
    let offset = slot_offset(u64::from(grid.next_slot));
    let memory = match file.access() {
        Access::Map => file.map(offset, bytes)?,
        Access::Write => table::pages(bytes)
            .map_err(|_| Failure { reason: StopReason::MapFailed, errno: libc::ENOMEM })?,
    };
    let lane = match kind {
        WindowKind::Events => 0,
        WindowKind::Definitions => 1,
    };
    let header = WindowHeader {
        kind,
        slots,
        sequence: grid.sequences[lane],
        slot: grid.next_slot,
        base_time_ns: now_ns,
        file: tag,
    };
    // SAFETY: the memory is mapped, zero, aligned to a page, and used through atomics alone until
    // the window is complete; `Window::unmap` says why nobody comes after that.
    let words = unsafe { std::slice::from_raw_parts(memory as *const AtomicU64, bytes / 8) };
    let writer = WindowWriter::begin(words, header);
    grid.bound.placed(kind, header.sequence, grid.next_slot, slots);
    if kind == WindowKind::Definitions {
        grid.definitions.push(grid.next_slot);
    }
    grid.sequences[lane] += 1;
    grid.next_slot += u32::from(slots);
    Ok(Box::into_raw(Box::new(Window { writer, memory, bytes, written: AtomicUsize::new(0) })))
}

/// A copy of part of a window that only we write.
fn memory(window: &Window, from: usize, end: usize) -> Vec<u8> {
    // SAFETY: inside the window's memory; the grid's lock is held and there is no other writer.
    unsafe { std::slice::from_raw_parts(window.memory.add(from), end - from) }.to_vec()
}
