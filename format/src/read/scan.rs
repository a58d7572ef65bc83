//! Reads the records of one window: verifies the check of each, skips padding and unfinished records, and finds the
//! next intact record after damage.

use super::damage::{Damage, DamageKind};
use super::found::Window;
use crate::record::code;
use crate::record::definition::Definition;
use crate::record::word::{CHECK_MASK, Check, Head, SMALL_BITS, SMALL_MASK};
use crate::window::{LINE, WINDOW_HEADER};

/// An intact record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw<'a> {
    /// Byte offset in the window.
    pub at: usize,
    pub kind: u8,
    pub thread: u16,
    /// The low 40 bits of the time, in ticks of 64 ns.
    pub ticks: u64,
    /// The low 40 bits of word 1.
    pub small: u64,
    /// The words after word 1, as bytes.
    pub body: &'a [u8],
}

impl<'a> Raw<'a> {
    /// The words of the body.
    pub(super) fn words(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.body.chunks_exact(8).map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes))
    }

    /// The definition, if it is one that is not in parts.
    pub(super) fn definition(&self) -> Option<Definition> {
        Definition::decode(self.kind, self.small, &self.words().collect::<Vec<u64>>())
    }
}

/// What a scan found besides intact records that can be decoded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub damage: Vec<Damage>,
    /// Number of intact records that this version cannot decode.
    pub unknown: u64,
    /// Number of records that a writer reserved but did not finish (its process was killed).
    pub unfinished: u64,
}

/// Reads the records of a window in order. The default has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scan<'a> {
    /// The bytes of the window, header included. Shorter than the window if the file is truncated.
    pub(super) bytes: &'a [u8],
    /// Position of the next record, in bytes from the window's start.
    pub(super) at: usize,
    /// File offset of the window.
    pub(super) offset: u64,
    /// Stop at the first record that is not published yet, instead of skipping it.
    living: bool,
    /// Every byte of the window was published: zeros in it are damage.
    complete: bool,
    /// The initial value of each record's check.
    check: Check,
    /// The end of the line in which records were searched last, and what is left of [`SEARCHED`] there.
    searched: (usize, usize),
}

/// Bytes of a line that are examined in search of records, at most, beside the records that are found: else a file made
/// for it is read again from every word of it on. More than a line of random bytes takes.
const SEARCHED: usize = 2 * LINE;
/// Greatest length of an event record, in words.
const EVENT_WORDS: u8 = 16;
/// Codes of definitions from here on are not searched for.
const BEHIND_DEFINITIONS: u8 = code::FIRST_DEFINITION + 16;

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    #[cfg(test)]
    super::examined::add(8);
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

impl<'a> Scan<'a> {
    /// A scan of a window from byte `at` of it on. `living`: the process still writes the window.
    pub(super) fn new(bytes: &'a [u8], window: &Window, at: usize, living: bool) -> Scan<'a> {
        // Drops an incomplete word at the end of a truncated file.
        let bytes = &bytes[..bytes.len() & !7];
        let at = at.max(WINDOW_HEADER).max(window.empty).next_multiple_of(8);
        let complete = window.is_complete(bytes);
        let (offset, check) = (window.offset, window.header.check());
        Scan { bytes, at, offset, living, complete, check, searched: (0, 0) }
    }

    /// The next intact record. `None`: the end of the window, or a record that is not published yet.
    #[inline]
    pub(super) fn next(&mut self, findings: &mut Findings) -> Option<Raw<'a>> {
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

    /// Handles everything but a record of two or more words: zeros, an unfinished record, one word of padding, damage.
    /// False: stop here.
    #[cold]
    fn pass_over(&mut self, head: Head, findings: &mut Findings) -> bool {
        let at = self.at;
        let end = at + 8 * head.len as usize;
        let line_end = (at / LINE + 1) * LINE;
        if head.pack() == 0 {
            if self.living {
                return false;
            }
            // Most of the last window may be unwritten: skips blocks first, then words.
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
            // The record at the end of a truncated file, which is reported already; or a damaged length.
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
            // A record of one word: padding, or a kind of a newer writer.
            findings.unknown += u64::from(head.kind != code::PAD);
            self.at = end;
        } else {
            self.recover(DamageKind::Record, findings);
        }
        true
    }

    /// Handles a record without its first words: the window was copied while the record was stored. The zeros begin at
    /// `began`; the rest of the record is at the current position. Returns where reading continues: at the next intact
    /// record of the line (one is enough, because nothing may be written after it yet), at a zero word, or at the
    /// line's end. `None`: the words are not such a rest, or longer than an event record.
    fn after_torn(&mut self, began: usize) -> Option<usize> {
        const LONGEST: usize = 8 * EVENT_WORDS as usize;
        let at = self.at;
        if at >= self.bytes.len() || at.is_multiple_of(LINE) || self.search(at).is_some() {
            return None;
        }
        if Head::unpack(word(self.bytes, at)).is_unfinished() {
            return None;
        }
        let line_end = self.line_end(at);
        let mut places = (at + 8..line_end.min(began + LONGEST + 8)).step_by(8);
        let next = places.find(|at| word(self.bytes, *at) == 0 || self.search(*at).is_some());
        Some(next.unwrap_or(line_end)).filter(|next| next - began <= LONGEST)
    }

    /// Reports damage, and continues at the next intact records of the line or at its end.
    #[cold]
    fn recover(&mut self, kind: DamageKind, findings: &mut Findings) {
        let at = self.at;
        self.at = self.next_whole(at);
        let (offset, bytes) = (self.offset + at as u64, (self.at - at) as u64);
        findings.damage.push(Damage { offset, bytes, kind });
    }

    /// The position of the next intact records in the line after a damaged one, or the line's end.
    fn next_whole(&mut self, at: usize) -> usize {
        let line_end = self.line_end(at);
        let bytes = 8 * Head::unpack(word(self.bytes, at)).len as usize;
        // The check of the damaged one was computed.
        if !self.take(at, bytes) {
            return line_end;
        }
        let claimed = (at + bytes > at && at + bytes < line_end).then_some(at + bytes);
        let claimed = claimed.filter(|to| self.search(*to).is_some());
        // Requires two records in a row: the middle of a record may look like one by chance. Takes the nearest: a
        // damaged length may point past intact records.
        let until = claimed.unwrap_or(line_end);
        let mut candidates = (at + 8..until).step_by(8);
        let found = candidates.find(|to| self.searched.1 == 0 || self.two_follow(*to, line_end));
        found.filter(|_| self.searched.1 > 0).unwrap_or(until)
    }

    /// Whether two intact records of one kind of window begin here in this line. The check of neither is computed
    /// unless both look like records.
    fn two_follow(&mut self, at: usize, line_end: usize) -> bool {
        let looks = |at: usize| {
            let head = Head::unpack(word(self.bytes, at));
            let is_definition = match head.kind {
                code::PAD => None,
                code::PART | code::FIRST_DEFINITION..BEHIND_DEFINITIONS => Some(true),
                1..code::FIRST_DEFINITION if head.len <= EVENT_WORDS => Some(false),
                _ => return None,
            };
            Some((is_definition, at + 8 * head.len as usize))
        };
        let first = looks(at).filter(|(_, end)| *end > at && *end < line_end);
        let second = first.and_then(|(_, end)| looks(end));
        let kinds = [first, second].map(|one| one.and_then(|(is_definition, _)| is_definition));
        let differ = matches!(kinds, [Some(one), Some(other)] if one != other);
        self.take(at, 8 + 8 * usize::from(first.is_some()));
        match (first, second) {
            (Some((_, next)), Some(_)) if !differ => {
                self.search(at).is_some() && self.search(next).is_some()
            }
            _ => false,
        }
    }

    fn line_end(&self, at: usize) -> usize {
        ((at / LINE + 1) * LINE).min(self.bytes.len())
    }

    /// Takes these bytes of what may be searched in the line. False: nothing is left.
    fn take(&mut self, at: usize, bytes: usize) -> bool {
        let line_end = self.line_end(at);
        if self.searched.0 != line_end {
            self.searched = (line_end, SEARCHED);
        }
        self.searched.1 = self.searched.1.saturating_sub(bytes);
        self.searched.1 > 0
    }

    /// As [`Scan::whole_at`], as long as more may be searched in the line.
    fn search(&mut self, at: usize) -> Option<usize> {
        let first = self.bytes.get(at..at + 8)?;
        let bytes = 8 + 8 * Head::unpack(word(first, 0)).len as usize;
        self.take(at, bytes).then(|| self.whole_at(at))?
    }

    /// The end of the intact record or padding that begins here. `None`: there is none.
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
