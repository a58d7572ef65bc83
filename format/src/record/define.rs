//! Encodes definitions as records. Nothing here allocates: the recorder calls it in hooks.

use super::code;
use super::definition::Definition;
use super::sealed::Record;
use super::wire::Put;
use super::word::{MAX_WORDS, SMALL_MASK};

/// A definition that is being written. It may need several records ([`code::PART`]), and the window may end between
/// them. This structure holds the progress.
#[derive(Clone, Copy, Debug)]
pub struct Define<'a> {
    fields: Put<'a>,
    /// Words and parts written so far.
    sent: usize,
    parts: u32,
    /// File offset of the first part.
    first: u64,
    done: bool,
}

/// Greatest number of payload words in a part: 255 less word 0, word 1 and the word with the offset of the first part.
const PART_BODY: usize = MAX_WORDS - 3;

impl<'a> Define<'a> {
    /// Starts at the first record of the definition.
    pub fn new(definition: &'a Definition) -> Define<'a> {
        Define { fields: definition.put(), sent: 0, parts: 0, first: 0, done: false }
    }

    /// Length of the body (the words of fields, then the lists), in words.
    fn body_len(&self) -> usize {
        let lists = self.fields.lists.iter().flatten().map(|list| 1 + list.words());
        self.fields.record.body().len() + lists.sum::<usize>()
    }

    fn body_word(&self, index: usize) -> u64 {
        let words = self.fields.record.body();
        if let Some(word) = words.get(index) {
            return *word;
        }
        let mut index = index - words.len();
        for list in self.fields.lists.iter().flatten() {
            match index.checked_sub(1) {
                None => return list.length() as u64,
                Some(at) if at < list.words() => return list.word(at),
                Some(_) => index -= 1 + list.words(),
            }
        }
        0
    }

    /// The next record. `None`: all are written. It stays the same until [`Define::written`] is called.
    pub fn next_record(&self) -> Option<Record<MAX_WORDS>> {
        if self.done {
            return None;
        }
        let (kind, small) = (self.fields.record.kind, self.fields.record.small());
        let body = self.body_len();
        if body <= MAX_WORDS - 2 {
            let record = Record::new(kind, small);
            return Some((0..body).fold(record, |r, i| r.with(self.body_word(i))));
        }
        // In parts: the payload of all parts together is the small field of word 1, then the body.
        let whole = 1 + body;
        let until = whole.min(self.sent + PART_BODY);
        let last = until == whole;
        let part = u64::from(kind) | u64::from(last) << 8 | u64::from(self.parts) << 16;
        let record = Record::new(code::PART, part & SMALL_MASK).with(self.first);
        Some(
            (self.sent..until)
                .fold(record, |r, i| r.with(if i == 0 { small } else { self.body_word(i - 1) })),
        )
    }

    /// File offset of the first part, once it is written. `None`: the definition fits in one record, or nothing is
    /// written yet.
    pub fn first(&self) -> Option<u64> {
        (self.parts > 0).then_some(self.first)
    }

    /// Notes that the record of [`Define::next_record`] was written at this file offset.
    pub fn written(&mut self, offset: u64) {
        let body = self.body_len();
        if body <= MAX_WORDS - 2 {
            self.done = true;
            return;
        }
        if self.parts == 0 {
            self.first = offset;
        }
        self.parts += 1;
        self.sent = (1 + body).min(self.sent + PART_BODY);
        self.done = self.sent == 1 + body;
    }
}
