//! The writer of a window. Any number of threads append concurrently, without locks, allocation or system calls.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ids::{SiteId, ThreadId};
use crate::kind::Space;
use crate::record::define::Define;
use crate::record::event::Event;
use crate::record::event_codec::{encode, short_alloc, short_free, short_requested};
use crate::record::sealed::{Record, Sealed, padding};
use crate::record::values::Alloc;
use crate::record::word::{Check, Head};
use crate::window::{WINDOW_MAGIC, WindowHeader, slot_offset};

use super::room::{Room, Seal};

/// An [`Event::Anchor`] is written first if the last timestamp is older than this. Timestamps wrap after 19.5 h, and
/// the reader takes the nearest time.
const ANCHOR_AFTER_NS: u64 = 8 * 3_600_000_000_000;
/// The time of the window is updated only by a time that is later by more than this, so that most appends do not store it.
const STAMP_STEP_NS: u64 = 60_000_000_000;

/// The result of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Appended {
    /// The record was written.
    At {
        /// Byte offset in the file.
        offset: u64,
        /// Length of the record in bytes.
        bytes: usize,
        /// This append reached or crossed the middle of the window: the caller prepares the next window. Exactly
        /// one append of a window returns true, or else the one that reached the middle returned `Full`.
        middle: bool,
    },
    /// No space: the record was not written. The caller appends it to the next window.
    Full,
}

/// The result of an append in a short form, which leaves to others what is seldom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Short {
    /// The record was written; it did not reach the middle of the window.
    At {
        /// Byte offset in the file.
        offset: u64,
        /// Length of the record in bytes.
        bytes: usize,
    },
    /// Space was reserved, and is to be given to [`WindowWriter::append_reserved`] with the same event.
    Reserved(Reserved),
    /// The values do not fit; nothing was written.
    Unfit,
}

/// Space for a record at the end of its line. If it is dropped, the window never becomes complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    at: usize,
}

/// The writer of one mapped window. All threads share it. What each append reads is on its second cache line; its first has
/// what each append changes.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct WindowWriter<'m> {
    room: Room<'m>,
    /// [`STAMP_STEP_NS`] after a recent time in ns since start.
    near_until_ns: AtomicU64,
    /// File offset of the window.
    start: u64,
    /// The initial value of each record's check.
    check: Check,
    header: WindowHeader,
}

impl<'m> WindowWriter<'m> {
    /// Begins a window in mapped memory of zeros: writes the header.
    ///
    /// # Panics
    /// If `words` does not have the length of `header.slots` slots.
    pub fn begin(words: &'m [AtomicU64], header: WindowHeader) -> WindowWriter<'m> {
        assert_eq!(words.len() * 8, header.bytes(), "window length");
        for (to, word) in words[1..].iter().zip(header.words()) {
            to.store(word.to_le(), Ordering::Relaxed);
        }
        let room = Room::behind_header(words);
        // The magic is stored last: a kill leaves a complete header or none.
        words[0].store(WINDOW_MAGIC.to_le(), Ordering::Release);
        WindowWriter {
            room,
            near_until_ns: AtomicU64::new(header.base_time_ns.saturating_add(STAMP_STEP_NS)),
            start: slot_offset(u64::from(header.slot)),
            check: header.check(),
            header,
        }
    }

    pub fn header(&self) -> &WindowHeader {
        &self.header
    }

    /// Bytes published so far, header and padding included.
    pub fn published(&self) -> usize {
        self.room.published()
    }

    /// Addresses that the next append will probably write, for a prefetch. The caller must not read or write them.
    #[inline]
    pub fn prefetch_hints(&self) -> [*const AtomicU64; 2] {
        self.room.next()
    }

    /// Bytes reserved so far, header and padding included. Nothing is stored after them.
    pub fn reserved(&self) -> usize {
        8 * self.room.reserved()
    }

    /// Whether all bytes are published, so that nothing more is written. Only then may the memory be reused.
    pub fn is_complete(&self) -> bool {
        self.room.is_complete()
    }

    /// Fills the rest with padding. The window becomes complete when the appends in progress on other threads have
    /// ended. Later appends return [`Appended::Full`].
    pub fn close(&self) {
        self.room.close(|at, len| padding(self.check, self.offset(at), len));
    }

    /// Appends an event of `thread` at `time_ns` (since start), after an anchor if one is needed.
    #[inline]
    pub fn append(&self, thread: ThreadId, time_ns: u64, event: &Event) -> Appended {
        if !self.is_near(time_ns) {
            self.note_time(thread, time_ns);
        }
        let short = match event {
            Event::Alloc(alloc) => match alloc.requested {
                None => self.append_alloc(thread, time_ns, alloc),
                Some(bytes) => self.append_requested(thread, time_ns, alloc, bytes),
            },
            Event::Free { key, space, site } => {
                self.append_free(thread, time_ns, *key, *space, *site)
            }
            _ => Short::Unfit,
        };
        match short {
            Short::At { offset, bytes } => Appended::At { offset, bytes, middle: false },
            Short::Reserved(reserved) => self.append_reserved(reserved, thread, time_ns, event),
            Short::Unfit => self.append_wide(thread, time_ns, event),
        }
    }

    /// Appends an allocation, without its request, in the short form of 32 bytes.
    #[inline(always)]
    pub fn append_alloc(&self, thread: ThreadId, time_ns: u64, alloc: &Alloc) -> Short {
        self.put_short(thread, time_ns, short_alloc(alloc))
    }

    /// Appends a block with the bytes that were requested, in the short form of 40 bytes. It is also unfit if it is no block.
    #[inline(always)]
    pub fn append_requested(
        &self,
        thread: ThreadId,
        time_ns: u64,
        block: &Alloc,
        requested: u64,
    ) -> Short {
        self.put_short(thread, time_ns, short_requested(block, requested))
    }

    /// Appends a free in the short form of 16 bytes.
    #[inline(always)]
    pub fn append_free(
        &self,
        thread: ThreadId,
        time_ns: u64,
        key: u64,
        space: Space,
        site: SiteId,
    ) -> Short {
        self.put_short(thread, time_ns, short_free(key, space, site))
    }

    #[inline(always)]
    fn put_short<const N: usize>(
        &self,
        thread: ThreadId,
        time_ns: u64,
        record: Option<Record<N>>,
    ) -> Short {
        let Some(mut record) = record else { return Short::Unfit };
        let record = &mut record;
        match self.room.put(N, move || InWindow {
            record: record.seal(self.check, thread.0, time_ns),
            start: self.start,
        }) {
            Ok(at) => Short::At { offset: self.offset(at), bytes: 8 * N },
            Err(at) => Short::Reserved(Reserved { at }),
        }
    }

    /// Appends the event of an append that returned [`Short::Reserved`].
    #[cold]
    #[inline(never)]
    pub fn append_reserved(
        &self,
        reserved: Reserved,
        thread: ThreadId,
        time_ns: u64,
        event: &Event,
    ) -> Appended {
        self.put_reserved(reserved.at, encode(event, time_ns).seal(self.check, thread.0, time_ns))
    }

    /// Whether a record of this time needs no anchor and no update of the last time. If false, the caller must use
    /// [`WindowWriter::append`].
    #[inline(always)]
    pub fn is_near(&self, time_ns: u64) -> bool {
        time_ns <= self.near_until_ns.load(Ordering::Relaxed)
    }

    #[inline(never)]
    fn append_wide(&self, thread: ThreadId, time_ns: u64, event: &Event) -> Appended {
        self.put(encode(event, time_ns).seal(self.check, thread.0, time_ns))
    }

    /// Appends the rest of a definition, in several records if it is long. After [`Appended::Full`], call it on the
    /// next window: it continues where it stopped. `bytes` extends from the first to the last record that this call
    /// wrote, records of other threads and padding between them included.
    pub fn define(&self, thread: ThreadId, time_ns: u64, define: &mut Define) -> Appended {
        let (mut start, mut end, mut passed) = (0, 0, false);
        while let Some(mut record) = define.next_record() {
            match self.put(record.seal(self.check, thread.0, time_ns)) {
                Appended::At { offset, bytes, middle } => {
                    define.written(offset);
                    if end == 0 {
                        start = offset;
                    }
                    end = offset + bytes as u64;
                    passed |= middle;
                }
                Appended::Full => return Appended::Full,
            }
        }
        Appended::At { offset: start, bytes: (end - start) as usize, middle: passed }
    }

    /// Appends an anchor if one is needed, then updates the last time.
    #[cold]
    fn note_time(&self, thread: ThreadId, time_ns: u64) {
        let last = self.near_until_ns.load(Ordering::Relaxed) - STAMP_STEP_NS;
        if time_ns.saturating_sub(last) > ANCHOR_AFTER_NS {
            let _ = self.append_wide(thread, time_ns, &Event::Anchor);
        }
        self.near_until_ns.fetch_max(time_ns.saturating_add(STAMP_STEP_NS), Ordering::Relaxed);
    }

    /// Reserves and stores one sealed record.
    fn put(&self, record: Sealed) -> Appended {
        let bytes = 8 * record.words.len();
        match self.room.put(record.words.len(), || InWindow { record, start: self.start }) {
            Ok(at) => Appended::At { offset: self.offset(at), bytes, middle: false },
            Err(at) => self.put_reserved(at, record),
        }
    }

    fn put_reserved(&self, at: usize, record: Sealed) -> Appended {
        let bytes = 8 * record.words.len();
        let record = InWindow { record, start: self.start };
        let padding = |at, len| padding(self.check, self.offset(at), len);
        match self.room.put_at_line_end(at, &record, padding) {
            Some(place) => {
                Appended::At { offset: self.offset(place.at), bytes, middle: place.middle }
            }
            None => Appended::Full,
        }
    }

    #[inline(always)]
    fn offset(&self, at: usize) -> u64 {
        self.start + 8 * at as u64
    }
}

/// A record, and the file offset of its window.
struct InWindow<'r> {
    record: Sealed<'r>,
    start: u64,
}

impl Seal for InWindow<'_> {
    #[inline(always)]
    fn head(&self, at: usize) -> u64 {
        self.record.head_at(self.start + 8 * at as u64)
    }

    #[inline(always)]
    fn unfinished(len: usize) -> u64 {
        Head { time_lo: 0, kind: 0, len: len as u8, thread: 0, check: 0 }.pack()
    }

    #[inline(always)]
    fn rest(&self) -> &[u64] {
        &self.record.words[1..]
    }
}
