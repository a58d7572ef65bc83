//! A record while it is built, and in its stored form.

use super::code;
use super::word::{self, Check, Head, MAX_WORDS, SMALL_BITS, SMALL_MASK};

/// A record without time, thread and check. `N`: capacity in words.
#[derive(Clone, Copy, Debug)]
pub struct Record<const N: usize> {
    pub(crate) kind: u8,
    len: usize,
    words: [u64; N],
}

impl<const N: usize> Record<N> {
    #[inline(always)]
    pub(crate) fn new(kind: u8, small: u64) -> Record<N> {
        debug_assert!(small <= SMALL_MASK);
        let mut words = [0; N];
        words[1] = small & SMALL_MASK;
        Record { kind, len: 2, words }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, word: u64) {
        self.words[self.len] = word;
        self.len += 1;
    }

    #[inline(always)]
    pub(crate) fn with(mut self, word: u64) -> Record<N> {
        self.push(word);
        self
    }

    /// Sets further bits of the small field of word 1.
    #[inline(always)]
    pub(crate) fn add_small(&mut self, bits: u64) {
        debug_assert!(bits <= SMALL_MASK && self.words[1] & bits == 0);
        self.words[1] |= bits & SMALL_MASK;
    }

    /// Sets further bits of the last word.
    #[inline(always)]
    pub(crate) fn add_last(&mut self, bits: u64) {
        self.words[self.len - 1] |= bits;
    }

    /// The small field of word 1.
    pub(crate) fn small(&self) -> u64 {
        self.words[1]
    }

    /// The words after word 1.
    pub(crate) fn body(&self) -> &[u64] {
        &self.words[2..self.len]
    }

    /// The same record in an array of `M` words.
    pub(crate) fn widen<const M: usize>(self) -> Record<M> {
        let mut words = [0; M];
        words[..self.len].copy_from_slice(&self.words[..self.len]);
        Record { kind: self.kind, len: self.len, words }
    }

    /// Adds time and thread. The result lacks only the check, which depends on the file offset. `file`:
    /// [`Check::of_file`].
    #[inline(always)]
    pub fn seal(&mut self, file: Check, thread: u16, time_ns: u64) -> Sealed<'_> {
        let ticks = word::ticks(time_ns);
        self.words[0] =
            Head { time_lo: ticks as u16, kind: self.kind, len: self.len as u8, thread, check: 0 }
                .pack();
        self.words[1] |= ticks >> 16 << SMALL_BITS;
        let words = &self.words[..self.len];
        Sealed { words, sum: word::check(file, words) }
    }
}

/// A finished record without a file offset.
#[derive(Clone, Copy, Debug)]
pub struct Sealed<'a> {
    pub(crate) words: &'a [u64],
    sum: Check,
}

impl Sealed<'_> {
    /// Word 0 with the check, for a record at this file offset.
    #[inline(always)]
    pub fn head_at(&self, offset: u64) -> u64 {
        self.words[0] | u64::from(self.sum.sum16(offset))
    }
}

/// Word 0 of a padding record of `len` words (1 to 255) at this file offset. The other words of it are not written.
pub(crate) fn padding(file: Check, offset: u64, len: usize) -> u64 {
    debug_assert!((1..=MAX_WORDS).contains(&len));
    let head = Head { time_lo: 0, kind: code::PAD, len: len as u8, thread: 0, check: 0 }.pack();
    head | u64::from(word::check(file, &[head]).sum16(offset))
}
