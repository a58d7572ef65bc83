//! Encodes definitions as records. Nothing here allocates: the recorder calls it in hooks.

use super::code;
use super::definition::{Definition, Join, NativeName, PythonFrame};
use super::sealed::Record;
use super::word::{MAX_WORDS, SMALL_MASK};
use crate::uuid;

/// A definition that is being written. It may need several records ([`code::PART`]), and the window may end between
/// them. This structure holds the progress.
#[derive(Clone, Copy, Debug)]
pub struct Define<'a> {
    kind: u8,
    small: u64,
    fixed: [u64; 4],
    fixed_len: usize,
    pieces: [Piece<'a>; 3],
    pieces_len: usize,
    /// Words and parts written so far.
    sent: usize,
    parts: u32,
    /// File offset of the first part.
    first: u64,
    done: bool,
}

/// A list after the fixed words of a definition: a word with its length, then its words.
#[derive(Clone, Copy, Debug)]
enum Piece<'a> {
    /// The length counts bytes.
    Bytes(&'a [u8]),
    Words(&'a [u64]),
    Python(&'a [PythonFrame]),
    Joins(&'a [Join]),
    /// Two words each.
    Names(&'a [NativeName]),
}

impl Piece<'_> {
    /// The value of the first word: the length of the list, in bytes for [`Piece::Bytes`], else in words.
    fn count(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Words(words) => words.len(),
            Piece::Python(frames) => frames.len(),
            Piece::Joins(joins) => joins.len(),
            Piece::Names(names) => 2 * names.len(),
        }
    }

    /// Number of words, the first one included.
    fn len(&self) -> usize {
        1 + match self {
            Piece::Bytes(bytes) => bytes.len().div_ceil(8),
            _ => self.count(),
        }
    }

    /// Word `index` of the list; word 0 is its length.
    fn word(&self, index: usize) -> u64 {
        let Some(n) = index.checked_sub(1) else { return self.count() as u64 };
        match self {
            Piece::Bytes(all) => {
                let from = &all[8 * n..];
                let mut bytes = [0; 8];
                let len = from.len().min(8);
                bytes[..len].copy_from_slice(&from[..len]);
                u64::from_le_bytes(bytes)
            }
            Piece::Words(words) => words[n],
            Piece::Python(frames) => {
                u64::from(frames[n].code) << 32 | u64::from(frames[n].last_instruction as u32)
            }
            Piece::Joins(joins) => u64::from(joins[n].python) << 32 | u64::from(joins[n].native),
            Piece::Names(names) => match (names[n / 2], n % 2) {
                (name, 0) => u64::from(name.function) << 32 | u64::from(name.file),
                (name, _) => u64::from(name.line),
            },
        }
    }
}

/// Greatest number of payload words in a part: 255 less word 0, word 1 and the word with the offset of the first part.
const PART_BODY: usize = MAX_WORDS - 3;

impl<'a> Define<'a> {
    /// Starts at the first record of the definition.
    pub fn new(definition: &'a Definition) -> Define<'a> {
        let with_pieces = |kind, small, fixed: &[u64], some: &[Piece<'a>]| {
            let mut all = [0; 4];
            all[..fixed.len()].copy_from_slice(fixed);
            let mut pieces = [Piece::Words(&[]); 3];
            pieces[..some.len()].copy_from_slice(some);
            Define {
                kind,
                small,
                fixed: all,
                fixed_len: fixed.len(),
                pieces,
                pieces_len: some.len(),
                sent: 0,
                parts: 0,
                first: 0,
                done: false,
            }
        };
        let text = |text: &'a str| Piece::Bytes(text.as_bytes());
        let plain = |kind, small, fixed: &[u64], name: Option<&'a String>| match name {
            Some(name) => with_pieces(kind, small, fixed, &[text(name)]),
            None => with_pieces(kind, small, fixed, &[]),
        };
        match *definition {
            Definition::Api { id, ref name } => {
                plain(code::DEFINE_API, u64::from(id), &[], Some(name))
            }
            Definition::Thread { id, tid, ref name } => {
                plain(code::DEFINE_THREAD, u64::from(id.0), &[u64::from(tid)], Some(name))
            }
            Definition::Device { id, uuid, ref name, total_bytes, mig } => {
                let [low, high] = uuid::to_words(&uuid);
                let small = u64::from(id.0) | u64::from(mig) << 8;
                plain(code::DEFINE_DEVICE, small, &[low, high, total_bytes], Some(name))
            }
            Definition::Context { id, device, handle, primary } => {
                let small = u64::from(id.0) | u64::from(device.0) << 16 | u64::from(primary) << 24;
                plain(code::DEFINE_CONTEXT, small, &[handle], None)
            }
            Definition::Pool { id, device, handle, origin } => {
                let small = u64::from(id.0) | u64::from(device.0) << 16 | (origin as u64) << 24;
                plain(code::DEFINE_POOL, small, &[handle], None)
            }
            Definition::Site { id, api, kind, device, context, pool, stream } => {
                let kind = kind.map_or(0, |kind| kind as u64);
                let small = u64::from(id.0) | u64::from(device.0) << 32;
                let place = u64::from(api)
                    | u64::from(context.0) << 16
                    | u64::from(pool.0) << 32
                    | kind << 48;
                plain(code::DEFINE_SITE, small, &[place, stream], None)
            }
            Definition::Text { id, ref text } => {
                plain(code::DEFINE_TEXT, u64::from(id), &[], Some(text))
            }
            Definition::Setting { ref name, ref value } => {
                with_pieces(code::DEFINE_SETTING, 0, &[], &[text(name), text(value)])
            }
            Definition::Note { ref text } => plain(code::DEFINE_NOTE, 0, &[], Some(text)),
            Definition::Module { id, ref path, ref build_id, base, start, end } => {
                let pieces = [text(path), Piece::Bytes(build_id)];
                with_pieces(code::DEFINE_MODULE, u64::from(id), &[base, start, end], &pieces)
            }
            Definition::Code { id, minor, ref name, ref file, first_line, ref line_table } => {
                let small = u64::from(id) | u64::from(minor) << 32;
                let pieces = [text(name), text(file), Piece::Bytes(line_table)];
                with_pieces(code::DEFINE_CODE, small, &[u64::from(first_line as u32)], &pieces)
            }
            Definition::Stack { id, flags, ref native, ref python, ref joins } => {
                let small = u64::from(id.0) | u64::from(flags.0) << 32;
                let pieces = [Piece::Words(native), Piece::Python(python), Piece::Joins(joins)];
                with_pieces(code::DEFINE_STACK, small, &[], &pieces)
            }
            Definition::Names { module, address, ref names } => with_pieces(
                code::DEFINE_NAMES,
                u64::from(module),
                &[address],
                &[Piece::Names(names)],
            ),
            Definition::Forward { stack, forward } => {
                let small = u64::from(stack.0);
                plain(code::DEFINE_FORWARD, small, &[u64::from(forward.0)], None)
            }
        }
    }

    fn pieces(&self) -> &[Piece<'a>] {
        &self.pieces[..self.pieces_len]
    }

    /// Length of the body (the fixed words, then the pieces), in words.
    fn body_len(&self) -> usize {
        self.fixed_len + self.pieces().iter().map(Piece::len).sum::<usize>()
    }

    fn body_word(&self, index: usize) -> u64 {
        if index < self.fixed_len {
            return self.fixed[index];
        }
        let mut index = index - self.fixed_len;
        for piece in self.pieces() {
            if index < piece.len() {
                return piece.word(index);
            }
            index -= piece.len();
        }
        0
    }

    /// The next record. `None`: all are written. It stays the same until [`Define::written`] is called.
    pub fn next_record(&self) -> Option<Record<MAX_WORDS>> {
        if self.done {
            return None;
        }
        let body = self.body_len();
        if body <= MAX_WORDS - 2 {
            let record = Record::new(self.kind, self.small);
            return Some((0..body).fold(record, |r, i| r.with(self.body_word(i))));
        }
        // In parts: the payload of all parts together is the small field of word 1, then the body.
        let whole = 1 + body;
        let until = whole.min(self.sent + PART_BODY);
        let last = until == whole;
        let small = u64::from(self.kind) | u64::from(last) << 8 | u64::from(self.parts) << 16;
        let record = Record::new(code::PART, small & SMALL_MASK).with(self.first);
        Some(
            (self.sent..until).fold(record, |r, i| {
                r.with(if i == 0 { self.small } else { self.body_word(i - 1) })
            }),
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
