//! Walks over the records of one window: checks each, passes over padding and what was never
//! finished, and finds the next whole record after damage.

use super::damage::{Damage, DamageKind};
use super::found::Window;
use crate::record::code;
use crate::record::word::{CHECK_MASK, Check, Head, SMALL_BITS, SMALL_MASK};
use crate::window::{LINE, WINDOW_HEADER};

/// One whole record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw<'a> {
    /// Byte offset in the window.
    pub at: usize,
    pub kind: u8,
    pub thread: u16,
    /// 40 bits.
    pub ticks: u64,
    pub small: u64,
    /// The words after word 1, as bytes.
    pub body: &'a [u8],
}

/// What was met on the way besides whole records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub damage: Vec<Damage>,
    /// Whole records that this version does not understand.
    pub unknown: u64,
    /// Records that a writer reserved and never finished (its process was killed).
    pub unfinished: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Scan<'a> {
    /// The window, from its header on; shorter than it should be if the file is cut.
    bytes: &'a [u8],
    at: usize,
    /// Of the window in the file.
    offset: u64,
    /// Stop at the first record that is not published yet, instead of passing over it.
    living: bool,
    /// Every byte of the window was published: zeros are not what the writer left.
    complete: bool,
    /// Where the check of each record begins.
    check: Check,
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

impl<'a> Scan<'a> {
    /// Over a window's bytes, from byte `at` of it on.
    pub fn new(bytes: &'a [u8], window: &Window, at: usize, living: bool) -> Scan<'a> {
        // Half a word at a cut end is no word.
        let bytes = &bytes[..bytes.len() & !7];
        let at = at.max(WINDOW_HEADER).next_multiple_of(8);
        let complete = window.is_complete(bytes);
        Scan { bytes, at, offset: window.offset, living, complete, check: window.header.check() }
    }

    pub fn empty() -> Scan<'a> {
        let check = Check::new();
        Scan { bytes: &[], at: 0, offset: 0, living: false, complete: false, check }
    }

    /// Where the next call goes on, in bytes from the window's start.
    pub fn position(&self) -> usize {
        self.at
    }

    /// True when every record was given: false after a stop at one that is not published.
    pub fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub fn offset(&self) -> u64 {
        self.offset
    }

    #[inline]
    pub fn next(&mut self, findings: &mut Findings) -> Option<Raw<'a>> {
        loop {
            let at = self.at;
            if at >= self.bytes.len() {
                return None;
            }
            let first = word(self.bytes, at);
            let head = Head::unpack(first);
            let end = at + 8 * head.len as usize;
            let line_end = (at / LINE + 1) * LINE;
            if head.kind == 0 || head.len < 2 || end > line_end || end > self.bytes.len() {
                if self.pass_over(head, findings) {
                    continue;
                }
                return None;
            }
            if head.kind == code::PAD {
                if self.whole_at(at) == Some(end) {
                    self.at = end;
                } else {
                    self.recover(DamageKind::Record, findings);
                }
                continue;
            }
            let second = word(self.bytes, at + 8);
            let body = &self.bytes[at + 16..end];
            let mut sum = self.check.word(first & !CHECK_MASK).word(second);
            for bytes in body.chunks_exact(8) {
                sum = sum.word(word(bytes, 0));
            }
            if sum.sum16(self.offset + at as u64) != head.check {
                self.recover(DamageKind::Record, findings);
                continue;
            }
            self.at = end;
            return Some(Raw {
                at,
                kind: head.kind,
                thread: head.thread,
                ticks: second >> SMALL_BITS << 16 | u64::from(head.time_lo),
                small: second & SMALL_MASK,
                body,
            });
        }
    }

    /// Anything but a plain record: nothing yet, unfinished, one word of padding, damage. False:
    /// stop here.
    #[cold]
    fn pass_over(&mut self, head: Head, findings: &mut Findings) -> bool {
        let at = self.at;
        let end = at + 8 * head.len as usize;
        let line_end = (at / LINE + 1) * LINE;
        if head.pack() == 0 {
            if self.living {
                return false;
            }
            // Most of a last window may be unwritten: in big steps first.
            let blocks = self.bytes[at..].chunks_exact(512).take_while(|block| **block == [0; 512]);
            self.at += 512 * blocks.count();
            let words = self.bytes[self.at..].chunks_exact(8).take_while(|word| **word == [0; 8]);
            self.at += 8 * words.count();
            if self.complete {
                let (offset, bytes) = (self.offset + at as u64, (self.at - at) as u64);
                findings.damage.push(Damage { offset, bytes, kind: DamageKind::Zeros });
            } else if let Some(next) = self.after_torn(at) {
                findings.unfinished += 1;
                self.at = next;
            }
            return true;
        }
        if head.len > 0 && end <= line_end && end > self.bytes.len() {
            // The last one before the cut, which is known already; or a broken length.
            if self.next_whole(at) == self.bytes.len() {
                self.at = self.bytes.len();
                return false;
            }
            self.recover(DamageKind::RecordLength, findings);
            return true;
        }
        if head.len == 0 || end > line_end {
            self.recover(DamageKind::RecordLength, findings);
        } else if head.is_unfinished() {
            if self.living {
                return false;
            }
            findings.unfinished += 1;
            self.at = end;
        } else if head.kind != 0 && self.whole_at(at) == Some(end) {
            // One word: padding, or a kind of a newer writer.
            findings.unknown += u64::from(head.kind != code::PAD);
            self.at = end;
        } else {
            self.recover(DamageKind::Record, findings);
        }
        true
    }

    /// Where reading goes on when the words here, behind zeros from `began` on, are the rest of a record
    /// without its head: the window was copied while the record was stored. At the next whole record of
    /// the line (one is enough: behind it nothing may have been written yet), a zero word or the line's
    /// end. `None`: this is something else, or more than a record.
    fn after_torn(&self, began: usize) -> Option<usize> {
        const LONGEST: usize = 128;
        let at = self.at;
        if at >= self.bytes.len() || at.is_multiple_of(LINE) || self.whole_at(at).is_some() {
            return None;
        }
        if Head::unpack(word(self.bytes, at)).is_unfinished() {
            return None;
        }
        let line_end = ((at / LINE + 1) * LINE).min(self.bytes.len());
        let mut places = (at + 8..line_end).step_by(8);
        let is_next = |at: &usize| word(self.bytes, *at) == 0 || self.whole_at(*at).is_some();
        let next = places.find(is_next).unwrap_or(line_end);
        (next - began <= LONGEST).then_some(next)
    }

    /// Goes to the next place where whole records stand.
    #[cold]
    fn recover(&mut self, kind: DamageKind, findings: &mut Findings) {
        let at = self.at;
        self.at = self.next_whole(at);
        findings.damage.push(Damage {
            offset: self.offset + at as u64,
            bytes: (self.at - at) as u64,
            kind,
        });
    }

    /// The next place in the line where whole records stand behind a broken one, or the line's
    /// end.
    fn next_whole(&self, at: usize) -> usize {
        let line_end = ((at / LINE + 1) * LINE).min(self.bytes.len());
        let claimed = at + 8 * Head::unpack(word(self.bytes, at)).len as usize;
        let claimed =
            Some(claimed).filter(|to| *to > at && *to < line_end && self.follows(*to, line_end, 1));
        // Two in a row, so that chance makes no record out of the middle of another. Nearest
        // first: a broken length may point past whole records.
        let until = claimed.unwrap_or(line_end);
        let mut candidates = (at + 8..until).step_by(8);
        candidates.find(|to| self.follows(*to, line_end, 2)).unwrap_or(until)
    }

    /// Do `count` whole records stand here, in this line?
    fn follows(&self, at: usize, line_end: usize, count: usize) -> bool {
        let mut next = at;
        (0..count).all(|_| match self.whole_at(next) {
            Some(end) if next < line_end => {
                next = end;
                true
            }
            _ => false,
        })
    }

    /// The end of the whole record that begins here, padding included. `None`: there is none.
    fn whole_at(&self, at: usize) -> Option<usize> {
        if at >= self.bytes.len() {
            return None;
        }
        let first = word(self.bytes, at);
        let head = Head::unpack(first);
        let end = at + 8 * head.len as usize;
        let line_end = (at / LINE + 1) * LINE;
        if head.kind == 0 || head.len == 0 || end > line_end || end > self.bytes.len() {
            return None;
        }
        let covered = if head.kind == code::PAD { at + 8 } else { end };
        let mut sum = self.check.word(first & !CHECK_MASK);
        for bytes in self.bytes[at + 8..covered].chunks_exact(8) {
            sum = sum.word(word(bytes, 0));
        }
        (sum.sum16(self.offset + at as u64) == head.check).then_some(end)
    }
}
