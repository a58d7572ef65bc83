//! Space for records in a window: reserved with one atomic addition, filled, then counted as published. `models/`
//! checks these steps under all interleavings of threads.

use crate::atomics::{AtomicU64, Ordering, compiler_fence};
use crate::window::{LINE, WINDOW_HEADER};

const LINE_WORDS: usize = LINE / 8;
const HEADER_WORDS: usize = WINDOW_HEADER / 8;
/// The word of the header with the number of published bytes.
const PUBLISHED: usize = 7;

/// The words of a window, header included, and the number of reserved words.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Room<'m> {
    /// Number of reserved words. Exceeds the length when threads find the window full. Each append changes it: what
    /// appends only read is on the next line of the cache.
    cursor: AtomicU64,
    _apart: [u64; 7],
    words: &'m [AtomicU64],
    published: &'m AtomicU64,
}

/// The place of a stored record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordPlace {
    /// Index of its first word in the window.
    pub at: usize,
    /// The record reached or crossed the middle of the window.
    pub middle: bool,
}

/// A record to be stored. Its first word depends on its place, which is part of its check.
pub(super) trait Seal {
    /// The finished first word of a record that begins at word `at`.
    fn head(&self, at: usize) -> u64;
    /// The first word of an unfinished record of `len` words: kind 0.
    fn unfinished(len: usize) -> u64;
    /// The words after the first one.
    fn rest(&self) -> &[u64];
}

impl<'m> Room<'m> {
    /// The space after a written header.
    pub(super) fn behind_header(words: &'m [AtomicU64]) -> Room<'m> {
        let published = &words[PUBLISHED];
        published.store((WINDOW_HEADER as u64).to_le(), Ordering::Relaxed);
        Room { cursor: AtomicU64::new(HEADER_WORDS as u64), _apart: [0; 7], words, published }
    }

    /// Bytes published so far, header and padding included.
    pub(super) fn published(&self) -> usize {
        u64::from_le(self.published.load(Ordering::Acquire)) as usize
    }

    /// Words reserved so far. Nothing is stored after them.
    pub(super) fn reserved(&self) -> usize {
        self.words.len().min(self.cursor.load(Ordering::Acquire) as usize)
    }

    /// Where the next append counts and, unless another thread appends first, stores.
    #[inline]
    pub(super) fn next(&self) -> [*const AtomicU64; 2] {
        let at = self.cursor.load(Ordering::Relaxed) as usize;
        [self.published, self.words.as_ptr().wrapping_add(at)]
    }

    /// Whether all words are published: nothing more is written.
    pub(super) fn is_complete(&self) -> bool {
        self.published() == self.words.len() * 8
    }

    /// Fills the rest with padding. `padding(at, len)`: word 0 of a padding record of `len` words at word `at`.
    pub(super) fn close(&self, padding: impl Fn(usize, usize) -> u64) {
        let total = self.words.len();
        let at = self.cursor.swap(total as u64, Ordering::Relaxed) as usize;
        if at < total {
            self.pad(at, total, padding);
        }
    }

    /// Reserves space for a record of `len` words and stores it, if it ends before its line does: nearly always. `Err`: the
    /// begin of what was reserved, where [`Room::put_at_line_end`] must go on.
    #[inline(always)]
    pub(super) fn put<S: Seal>(
        &self,
        len: usize,
        record: impl FnOnce() -> S,
    ) -> Result<usize, usize> {
        let at = self.reserve(len);
        // Window and middle end with a line: a record that ends before its line does reaches neither.
        if at % LINE_WORDS + len < LINE_WORDS
            && let Some(to) = self.words.get(at..at + len)
        {
            self.store(to, at, &record());
            return Ok(at);
        }
        Err(at)
    }

    /// Stores a record for which `put` has reserved space from `at`, there or elsewhere. `None`: no space; it was not stored.
    #[cold]
    pub(super) fn put_at_line_end(
        &self,
        at: usize,
        record: &impl Seal,
        padding: impl Fn(usize, usize) -> u64,
    ) -> Option<RecordPlace> {
        let len = 1 + record.rest().len();
        let place = self.place_at_line_end(at, len, padding)?;
        self.store(&self.words[place.at..place.at + len], place.at, record);
        Some(place)
    }

    #[inline(always)]
    fn reserve(&self, len: usize) -> usize {
        // No window has 2^32 words, and no cursor passes its end by as many: so `at + len` does not wrap.
        self.cursor.fetch_add(len as u64, Ordering::Relaxed) as u32 as usize
    }

    /// The place of a record whose reservation reaches the end of its line, or lies behind the window.
    fn place_at_line_end(
        &self,
        mut at: usize,
        len: usize,
        padding: impl Fn(usize, usize) -> u64,
    ) -> Option<RecordPlace> {
        let total = self.words.len();
        let mut middle = false;
        loop {
            let end = at + len;
            if at >= total {
                return None;
            }
            middle |= at < total / 2 && end >= total / 2;
            let line_end = (at / LINE_WORDS + 1) * LINE_WORDS;
            if end <= line_end {
                return Some(RecordPlace { at, middle });
            }
            self.pad_around_line(at, line_end, end, &padding);
            at = self.reserve(len);
        }
    }

    #[inline(always)]
    fn store<S: Seal>(&self, to: &[AtomicU64], at: usize, record: &S) {
        let rest = record.rest();
        // A kill after this store leaves a record with its length and kind 0.
        to[0].store(S::unfinished(to.len()).to_le(), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        for (to, word) in to[1..].iter().zip(rest) {
            to.store(word.to_le(), Ordering::Relaxed);
        }
        to[0].store(record.head(at).to_le(), Ordering::Release);
        self.publish(to.len());
    }

    /// Abandons a reservation that crosses a line boundary: both parts become padding.
    fn pad_around_line(
        &self,
        at: usize,
        line_end: usize,
        end: usize,
        padding: impl Fn(usize, usize) -> u64,
    ) {
        self.pad(at, line_end, &padding);
        if line_end < self.words.len() {
            self.pad(line_end, end, &padding);
        }
    }

    fn pad(&self, from: usize, to: usize, padding: impl Fn(usize, usize) -> u64) {
        let mut at = from;
        while at < to {
            let line_end = (at / LINE_WORDS + 1) * LINE_WORDS;
            let len = (to - at).min(line_end - at).min(crate::record::word::MAX_WORDS);
            self.words[at].store(padding(at, len).to_le(), Ordering::Release);
            at += len;
        }
        self.publish(to - from);
    }

    #[inline(always)]
    fn publish(&self, words: usize) {
        let count = self.published;
        if cfg!(target_endian = "little") {
            count.fetch_add(8 * words as u64, Ordering::Release);
        } else {
            let _ = count.fetch_update(Ordering::Release, Ordering::Relaxed, |count| {
                Some((u64::from_le(count) + 8 * words as u64).to_le())
            });
        }
    }
}
