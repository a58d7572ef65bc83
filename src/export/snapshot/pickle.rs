//! Writes a pickle of protocol 4 with the few opcodes that PyTorch's viewers in the browser know.
//! Texts are written once and named afterwards; so is what the caller memoises.

use std::io::{self, Write};

use rustc_hash::FxHashMap;

mod opcode {
    pub(super) const PROTO: u8 = 0x80;
    pub(super) const STOP: u8 = b'.';
    pub(super) const MARK: u8 = b'(';
    pub(super) const NEWTRUE: u8 = 0x88;
    pub(super) const NEWFALSE: u8 = 0x89;
    pub(super) const BININT: u8 = b'J';
    pub(super) const BININT1: u8 = b'K';
    pub(super) const BININT2: u8 = b'M';
    pub(super) const LONG1: u8 = 0x8a;
    pub(super) const BINFLOAT: u8 = b'G';
    pub(super) const SHORT_BINUNICODE: u8 = 0x8c;
    pub(super) const BINUNICODE: u8 = b'X';
    pub(super) const EMPTY_LIST: u8 = b']';
    pub(super) const APPENDS: u8 = b'e';
    pub(super) const EMPTY_DICT: u8 = b'}';
    pub(super) const SETITEMS: u8 = b'u';
    pub(super) const TUPLE2: u8 = 0x86;
    pub(super) const MEMOIZE: u8 = 0x94;
    pub(super) const BINGET: u8 = b'h';
    pub(super) const LONG_BINGET: u8 = b'j';
}
use opcode::*;

/// Viewers hand a batch over as the arguments of one call.
const BATCH: u64 = 1_000;
/// Bytes between two writes.
const CHUNK: usize = 1 << 16;

/// What was memoised, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memo(u32);

pub(super) struct Pickler<'o> {
    out: &'o mut dyn Write,
    bytes: Vec<u8>,
    memos: u32,
    texts: FxHashMap<String, Memo>,
    /// Items so far of the lists that are open.
    lists: Vec<u64>,
}

impl<'o> Pickler<'o> {
    pub(super) fn new(out: &'o mut dyn Write) -> Pickler<'o> {
        let bytes = vec![PROTO, 4];
        Pickler { out, bytes, memos: 0, texts: FxHashMap::default(), lists: Vec::new() }
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.bytes.push(STOP);
        self.out.write_all(&self.bytes)?;
        self.out.flush()
    }

    /// Numbers beyond 63 bits become the largest: viewers would read them as another type.
    pub(super) fn int(&mut self, number: u64) {
        match number {
            0..0x100 => self.bytes.extend([BININT1, number as u8]),
            0x100..0x1_0000 => {
                self.bytes.push(BININT2);
                self.bytes.extend((number as u16).to_le_bytes());
            }
            0x1_0000..0x8000_0000 => {
                self.bytes.push(BININT);
                self.bytes.extend((number as u32).to_le_bytes());
            }
            _ => {
                let bytes = number.min(i64::MAX as u64).to_le_bytes();
                // With a bit for the sign.
                let length = (64 - u64::from_le_bytes(bytes).leading_zeros() as usize) / 8 + 1;
                self.bytes.extend([LONG1, length as u8]);
                self.bytes.extend(&bytes[..length]);
            }
        }
    }

    pub(super) fn minus_one(&mut self) {
        self.bytes.push(BININT);
        self.bytes.extend((-1i32).to_le_bytes());
    }

    pub(super) fn float(&mut self, number: f64) {
        self.bytes.push(BINFLOAT);
        self.bytes.extend(number.to_be_bytes());
    }

    pub(super) fn bool(&mut self, on: bool) {
        self.bytes.push(if on { NEWTRUE } else { NEWFALSE });
    }

    pub(super) fn text(&mut self, text: &str) {
        if let Some(memo) = self.texts.get(text) {
            return self.get(*memo);
        }
        match u8::try_from(text.len()) {
            Ok(length) => self.bytes.extend([SHORT_BINUNICODE, length]),
            Err(_) => {
                self.bytes.push(BINUNICODE);
                self.bytes.extend((text.len() as u32).to_le_bytes());
            }
        }
        self.bytes.extend(text.as_bytes());
        let memo = self.memoise();
        self.texts.insert(text.to_string(), memo);
    }

    /// Keeps what was written last under a number.
    pub(super) fn memoise(&mut self) -> Memo {
        self.bytes.push(MEMOIZE);
        self.memos += 1;
        Memo(self.memos - 1)
    }

    /// What was kept, again.
    pub(super) fn get(&mut self, memo: Memo) {
        match u8::try_from(memo.0) {
            Ok(short) => self.bytes.extend([BINGET, short]),
            Err(_) => {
                self.bytes.push(LONG_BINGET);
                self.bytes.extend(memo.0.to_le_bytes());
            }
        }
    }

    /// A key of a dict. Its value comes next.
    pub(super) fn key(&mut self, key: &str) -> &mut Pickler<'o> {
        self.text(key);
        self
    }

    /// Then keys and values, in turn.
    pub(super) fn begin_dict(&mut self) {
        self.bytes.extend([EMPTY_DICT, MARK]);
    }

    pub(super) fn end_dict(&mut self) {
        self.bytes.push(SETITEMS);
    }

    /// Begins a list. Call [`Pickler::item`] before each item, and `end_list` after the last.
    pub(super) fn begin_list(&mut self) {
        self.bytes.push(EMPTY_LIST);
        self.lists.push(0);
    }

    pub(super) fn item(&mut self) -> io::Result<()> {
        let Some(items) = self.lists.last_mut() else { return Ok(()) };
        if items.is_multiple_of(BATCH) {
            if *items > 0 {
                self.bytes.push(APPENDS);
            }
            self.bytes.push(MARK);
        }
        *items += 1;
        if self.bytes.len() >= CHUNK {
            self.out.write_all(&self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }

    pub(super) fn end_list(&mut self) {
        if self.lists.pop() > Some(0) {
            self.bytes.push(APPENDS);
        }
    }

    pub(super) fn empty_list(&mut self) {
        self.bytes.push(EMPTY_LIST);
    }

    pub(super) fn pair(&mut self, first: u64, second: u64) {
        self.int(first);
        self.int(second);
        self.bytes.push(TUPLE2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::parse_pickle;

    #[test]
    fn what_is_written_reads_back() {
        let numbers = [
            0,
            1,
            255,
            256,
            65_535,
            65_536,
            (1 << 31) - 1,
            1 << 31,
            (1 << 39) - 1,
            1 << 39,
            1 << 46,
            (1 << 55) - 1,
            1 << 55,
            i64::MAX as u64,
            u64::MAX,
        ];
        let mut bytes = Vec::new();
        let mut pickler = Pickler::new(&mut bytes);
        pickler.begin_list();
        for number in numbers {
            pickler.item().unwrap();
            pickler.int(number);
        }
        for n in 0..2_500 {
            pickler.item().unwrap();
            pickler.text(&format!("{}", n % 300));
        }
        pickler.item().unwrap();
        pickler.text(&"long".repeat(100));
        pickler.item().unwrap();
        pickler.begin_list();
        pickler.end_list();
        pickler.end_list();
        pickler.finish().unwrap();
        let items = parse_pickle(&bytes).unwrap().items().unwrap();
        let back: Vec<u64> = items[..15].iter().map(|n| n.int().unwrap() as u64).collect();
        assert_eq!(back, numbers.map(|n| n.min(i64::MAX as u64)));
        assert_eq!(&*items[15 + 2_499].text().unwrap(), "99");
        assert_eq!(items[2_515].text().unwrap().len(), 400);
        assert_eq!(items[2_516].items().unwrap().len(), 0);
        let batches = bytes.iter().filter(|byte| **byte == APPENDS).count();
        assert!(batches >= 3);
    }
}
