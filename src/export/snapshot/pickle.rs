//! Writes a pickle of protocol 4 with the few opcodes that PyTorch's viewers in the browser know.
//! Texts are written once and named afterwards; so is what the caller memoises.

use std::io::{self, Write};

use rustc_hash::FxHashMap;

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
}

impl<'o> Pickler<'o> {
    pub(super) fn new(out: &'o mut dyn Write) -> Pickler<'o> {
        // PROTO
        Pickler { out, bytes: vec![0x80, 4], memos: 0, texts: FxHashMap::default() }
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.bytes.push(b'.'); // STOP
        self.out.write_all(&self.bytes)?;
        self.out.flush()
    }

    /// Numbers beyond 63 bits become the largest: viewers would read them as another type.
    pub(super) fn int(&mut self, number: u64) {
        self.signed(i64::try_from(number).unwrap_or(i64::MAX));
    }

    pub(super) fn signed(&mut self, number: i64) {
        match i32::try_from(number) {
            Ok(number) => {
                self.bytes.push(b'J'); // BININT
                self.bytes.extend(number.to_le_bytes());
            }
            Err(_) => {
                self.bytes.extend([0x8a, 8]); // LONG1, of 8 bytes
                self.bytes.extend(number.to_le_bytes());
            }
        }
    }

    pub(super) fn float(&mut self, number: f64) {
        self.bytes.push(b'G'); // BINFLOAT
        self.bytes.extend(number.to_be_bytes());
    }

    pub(super) fn bool(&mut self, on: bool) {
        self.bytes.push(if on { 0x88 } else { 0x89 }); // NEWTRUE, NEWFALSE
    }

    pub(super) fn text(&mut self, text: &str) {
        if let Some(memo) = self.texts.get(text) {
            return self.get(*memo);
        }
        self.bytes.push(b'X'); // BINUNICODE
        self.bytes.extend((text.len() as u32).to_le_bytes());
        self.bytes.extend(text.as_bytes());
        let memo = self.memoise();
        self.texts.insert(text.to_string(), memo);
    }

    /// Keeps what was written last under a number.
    pub(super) fn memoise(&mut self) -> Memo {
        self.bytes.push(0x94); // MEMOIZE
        self.memos += 1;
        Memo(self.memos - 1)
    }

    /// What was kept, again.
    pub(super) fn get(&mut self, memo: Memo) {
        match u8::try_from(memo.0) {
            Ok(short) => self.bytes.extend([b'h', short]), // BINGET
            Err(_) => {
                self.bytes.push(b'j'); // LONG_BINGET
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
        self.bytes.extend(b"}("); // EMPTY_DICT, MARK
    }

    pub(super) fn end_dict(&mut self) {
        self.bytes.push(b'u'); // SETITEMS
    }

    /// An empty list. [`Pickler::append`] after each item adds it.
    pub(super) fn list(&mut self) {
        self.bytes.push(b']'); // EMPTY_LIST
    }

    pub(super) fn append(&mut self) -> io::Result<()> {
        self.bytes.push(b'a'); // APPEND
        if self.bytes.len() >= CHUNK {
            self.out.write_all(&self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }

    pub(super) fn pair(&mut self, first: u64, second: u64) {
        self.int(first);
        self.int(second);
        self.bytes.push(0x86); // TUPLE2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::parse_pickle;

    #[test]
    fn what_is_written_reads_back() {
        let numbers = [0, 1, 65_536, (1 << 31) - 1, 1 << 31, 1 << 46, i64::MAX as u64, u64::MAX];
        let mut bytes = Vec::new();
        let mut pickler = Pickler::new(&mut bytes);
        pickler.list();
        for number in numbers {
            pickler.int(number);
            pickler.append().unwrap();
        }
        for n in 0..20_000 {
            pickler.text(&format!("{}", n % 300));
            pickler.append().unwrap();
        }
        pickler.text(&"long".repeat(100));
        pickler.append().unwrap();
        pickler.list();
        pickler.append().unwrap();
        pickler.signed(-1);
        pickler.append().unwrap();
        pickler.finish().unwrap();
        let items = parse_pickle(&bytes).unwrap().items().unwrap();
        let back: Vec<u64> = items[..8].iter().map(|n| n.int().unwrap() as u64).collect();
        assert_eq!(back, numbers.map(|n| n.min(i64::MAX as u64)));
        assert_eq!(&*items[8 + 19_999].text().unwrap(), "199");
        assert_eq!(items[20_008].text().unwrap().len(), 400);
        assert_eq!(items[20_009].items().unwrap().len(), 0);
        assert_eq!(items[20_010].int(), Some(-1));
    }
}
