//! The writing end of a window. Any number of threads append to one at once, without locks,
//! allocation or system calls.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ids::{SiteId, ThreadId};
use crate::kind::Space;
use crate::record::define::Define;
use crate::record::event::Event;
use crate::record::event_codec::{encode, short_alloc, short_free};
use crate::record::sealed::{Sealed, padding};
use crate::record::values::Alloc;
use crate::record::word::{Check, KIND_MASK};
use crate::window::{WINDOW_MAGIC, WindowHeader, slot_offset};

use super::room::{Room, Seal};

/// An [`Event::Anchor`] goes first when the last stamp is older than this: stamps wrap at 19.5 h,
/// and the reader takes the nearest.
const ANCHOR_AFTER_NS: u64 = 8 * 3_600_000_000_000;
/// The last stamp is noted this coarsely, so that appending seldom stores it.
const STAMP_STEP_NS: u64 = 60_000_000_000;

/// What became of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Appended {
    /// The record stands in the file.
    At {
        /// Byte offset in the file.
        offset: u64,
        /// Length of the record in bytes.
        bytes: usize,
        /// This append passed the middle of the window: the caller readies the next one. Exactly
        /// one append of a window says so (or `Full` does, where it was the last).
        middle: bool,
    },
    /// No room: nothing was written. The caller rolls to the next window and appends there.
    Full,
}

/// The writing end of one mapped window. Shared by all threads.
#[derive(Debug)]
pub struct WindowWriter<'m> {
    words: &'m [AtomicU64],
    room: Room<'m>,
    header: WindowHeader,
    /// Byte of the file where it begins.
    start: u64,
    /// Where the check of each record begins.
    check: Check,
    /// A recent stamp, see [`STAMP_STEP_NS`].
    last_ns: AtomicU64,
}

impl<'m> WindowWriter<'m> {
    /// Begins a window over its mapped, zeroed memory: writes the header. `words` must be as long
    /// as the header says.
    ///
    /// # Panics
    /// When the length is not that of `header.slots`: a mistake of the caller.
    pub fn begin(words: &'m [AtomicU64], header: WindowHeader) -> WindowWriter<'m> {
        assert_eq!(words.len() * 8, header.bytes(), "window length");
        for (to, word) in words[1..].iter().zip(header.words()) {
            to.store(word.to_le(), Ordering::Relaxed);
        }
        let room = Room::behind_header(words);
        // The magic makes it a window: last, so that a kill leaves a whole header or none.
        words[0].store(WINDOW_MAGIC.to_le(), Ordering::Release);
        WindowWriter {
            words,
            room,
            header,
            start: slot_offset(u64::from(header.slot)),
            check: header.check(),
            last_ns: AtomicU64::new(header.base_time_ns),
        }
    }

    pub fn header(&self) -> &WindowHeader {
        &self.header
    }

    /// Bytes published so far, header and padding included.
    pub fn published(&self) -> usize {
        self.room.published()
    }

    /// What the next append will write: a hint, to have it in the cache early. Nothing may be
    /// read or written there.
    #[inline]
    pub fn places(&self) -> [*const AtomicU64; 2] {
        let at = self.room.next();
        [self.words.as_ptr().wrapping_add(7), self.words.as_ptr().wrapping_add(at)]
    }

    /// Bytes given out so far, header and padding included: nothing was stored behind them.
    pub fn reserved(&self) -> usize {
        8 * self.room.reserved()
    }

    /// Nothing will be written here any more: only now may its memory be used again.
    pub fn is_complete(&self) -> bool {
        self.room.is_complete()
    }

    /// Fills what is left with padding, so that the window becomes complete as soon as the other
    /// threads' appends under way have ended. Later appends say [`Appended::Full`].
    pub fn close(&self) {
        self.room.close(|at, len| padding(self.check, self.offset(at), len));
    }

    /// Appends an event. `thread` and `time_ns` (since start) go into its head.
    #[inline]
    pub fn append(&self, thread: ThreadId, time_ns: u64, event: &Event) -> Appended {
        if !self.is_near(time_ns) {
            self.note_time(thread, time_ns);
        }
        let short = match event {
            Event::Alloc(alloc) => self.append_alloc(thread, time_ns, alloc),
            Event::Free { key, space, site } => {
                self.append_free(thread, time_ns, *key, *space, *site)
            }
            _ => None,
        };
        short.unwrap_or_else(|| self.append_wide(thread, time_ns, event))
    }

    /// Appends an allocation in the short form of 32 bytes. `None`: it does not fit, nothing was written.
    #[inline(always)]
    pub fn append_alloc(&self, thread: ThreadId, time_ns: u64, alloc: &Alloc) -> Option<Appended> {
        let mut record = short_alloc(alloc)?;
        Some(self.put(record.seal(self.check, thread.0, time_ns)))
    }

    /// Appends a free in the short form of 16 bytes. `None`: it does not fit, nothing was written.
    #[inline(always)]
    pub fn append_free(
        &self,
        thread: ThreadId,
        time_ns: u64,
        key: u64,
        space: Space,
        site: SiteId,
    ) -> Option<Appended> {
        let mut record = short_free(key, space, site)?;
        Some(self.put(record.seal(self.check, thread.0, time_ns)))
    }

    /// Whether a record of this time needs no look at the last stamps: [`WindowWriter::append`]
    /// looks.
    #[inline(always)]
    pub fn is_near(&self, time_ns: u64) -> bool {
        time_ns <= self.last_ns.load(Ordering::Relaxed).saturating_add(STAMP_STEP_NS)
    }

    #[inline(never)]
    fn append_wide(&self, thread: ThreadId, time_ns: u64, event: &Event) -> Appended {
        self.put(encode(event, time_ns).seal(self.check, thread.0, time_ns))
    }

    /// Appends what is left of a definition, in several records if it is long. After
    /// [`Appended::Full`] call it again with the next window: it goes on where it stopped.
    /// `bytes` counts from the first to the last record written by this call, padding between
    /// them included.
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

    /// Anchors first, then notes the time: a reader that sees the noted time also sees the anchor.
    #[cold]
    fn note_time(&self, thread: ThreadId, time_ns: u64) {
        let last = self.last_ns.load(Ordering::Relaxed);
        if time_ns.saturating_sub(last) > ANCHOR_AFTER_NS {
            let _ = self.append_wide(thread, time_ns, &Event::Anchor);
        }
        self.last_ns.fetch_max(time_ns, Ordering::Relaxed);
    }

    /// Reserves and stores one sealed record.
    #[inline(always)]
    fn put(&self, record: Sealed) -> Appended {
        let bytes = 8 * record.words.len();
        let record = InWindow { record, start: self.start };
        let put = self.room.put(&record, |at, len| padding(self.check, self.offset(at), len));
        match put {
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

/// A record, and the byte of the file at which its window begins.
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
    fn unfinished(&self) -> u64 {
        self.record.words[0] & !KIND_MASK
    }

    #[inline(always)]
    fn rest(&self) -> &[u64] {
        &self.record.words[1..]
    }
}
