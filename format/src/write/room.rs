//! Room for records in a window: reserved by one atomic addition, filled, then counted as published.
//! `models/` checks these steps under every order of their threads'.

use crate::atomics::{AtomicU64, Ordering, compiler_fence};
use crate::window::{LINE, WINDOW_HEADER};

const LINE_WORDS: usize = LINE / 8;
const HEADER_WORDS: usize = WINDOW_HEADER / 8;
/// The word of the header with the bytes that are published.
const PUBLISHED: usize = 7;

/// The words of a window, its header included, and the number of reserved words.
#[derive(Debug)]
pub struct Room<'m> {
    words: &'m [AtomicU64],
    /// Runs past the end when threads find it full.
    cursor: AtomicU64,
}

/// Where a record was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its first word.
    pub at: usize,
    /// This record passed the middle of the window.
    pub middle: bool,
}

/// What the words of records are made of: the record's place is part of its check.
pub trait Seal {
    /// The first word of a record that begins at this word, sealed.
    fn head(&self, at: usize) -> u64;
    /// That word before: of known length, of kind 0.
    fn unfinished(&self) -> u64;
    /// The words behind it.
    fn rest(&self) -> &[u64];
}

impl<'m> Room<'m> {
    /// Behind a header that is written.
    pub fn behind_header(words: &'m [AtomicU64]) -> Room<'m> {
        words[PUBLISHED].store((WINDOW_HEADER as u64).to_le(), Ordering::Relaxed);
        Room { words, cursor: AtomicU64::new(HEADER_WORDS as u64) }
    }

    /// Bytes published so far, header and padding included.
    pub fn published(&self) -> usize {
        u64::from_le(self.words[PUBLISHED].load(Ordering::Acquire)) as usize
    }

    /// Words given out so far: nothing was stored behind them.
    pub fn reserved(&self) -> usize {
        self.words.len().min(self.cursor.load(Ordering::Acquire) as usize)
    }

    /// The word that is given out next: a hint.
    #[inline]
    pub fn next(&self) -> usize {
        self.cursor.load(Ordering::Relaxed) as usize
    }

    /// Nothing will be written here any more.
    pub fn is_complete(&self) -> bool {
        self.published() == self.words.len() * 8
    }

    /// Fills what is left with padding. `padding` gives the head of so many words at a place.
    pub fn close(&self, padding: impl Fn(usize, usize) -> u64) {
        let total = self.words.len();
        let at = self.cursor.swap(total as u64, Ordering::Relaxed) as usize;
        if at < total {
            self.pad(at, total, padding);
        }
    }

    /// Reserves and stores one record. `None`: no room, and nothing was written.
    #[inline(always)]
    pub fn put(&self, record: &impl Seal, padding: impl Fn(usize, usize) -> u64) -> Option<Place> {
        let total = self.words.len();
        let len = 1 + record.rest().len();
        let mut middle = false;
        loop {
            let at = self.cursor.fetch_add(len as u64, Ordering::Relaxed) as usize;
            let end = at + len;
            if at >= total {
                return None;
            }
            middle |= at < total / 2 && end >= total / 2;
            let line_end = (at / LINE_WORDS + 1) * LINE_WORDS;
            if end <= line_end {
                self.store(at, record);
                return Some(Place { at, middle });
            }
            self.pad_around_line(at, line_end, end, &padding);
        }
    }

    #[inline(always)]
    fn store(&self, at: usize, record: &impl Seal) {
        let rest = record.rest();
        let to = &self.words[at..=at + rest.len()];
        // A kill from here on leaves a record of known length and kind 0.
        to[0].store(record.unfinished().to_le(), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        for (to, word) in to[1..].iter().zip(rest) {
            to.store(word.to_le(), Ordering::Relaxed);
        }
        to[0].store(record.head(at).to_le(), Ordering::Release);
        self.publish(1 + rest.len());
    }

    /// A reservation that crosses a line is given up: both sides become padding.
    #[cold]
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
        let count = &self.words[PUBLISHED];
        if cfg!(target_endian = "little") {
            count.fetch_add(8 * words as u64, Ordering::Release);
        } else {
            let _ = count.fetch_update(Ordering::Release, Ordering::Relaxed, |count| {
                Some((u64::from_le(count) + 8 * words as u64).to_le())
            });
        }
    }
}
