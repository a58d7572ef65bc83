//! Reads pickles of plain data: numbers, strings, lists, tuples, dicts, protocols 2 to 5. Opcodes that make objects
//! or call functions are errors.
//!
//! Nothing recurses, and a length in the file is used only after its bytes were read: time and memory are bounded by
//! the length of the file.

mod value;

use std::collections::HashMap;
use std::rc::Rc;

use value::Container;
pub use value::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    #[error("the pickle ends in the middle")]
    Truncated,
    /// The file would make an object or call a function, or is no pickle.
    #[error(
        "byte {at}: opcode 0x{opcode:02x} makes more than plain data; a memory snapshot needs none of that"
    )]
    Opcode { opcode: u8, at: usize },
    /// A value where another kind is needed, an empty stack, an unknown memo.
    #[error("byte {at}: not a sound pickle")]
    Malformed { at: usize },
    #[error("pickle protocol {0}; 2 to 5 are understood")]
    Protocol(u8),
    /// More containers than a file of this length may have.
    #[error("byte {at}: nothing but empty lists and dicts: no memory snapshot")]
    TooMany { at: usize },
}

/// Reads one pickle.
pub fn parse(bytes: &[u8]) -> Result<Value, PickleError> {
    Machine::new(bytes).run()
}

/// Reads a pickle that may end in the middle: then what is complete of it, and true.
pub(super) fn parse_cut(bytes: &[u8]) -> Result<(Value, bool), PickleError> {
    let mut machine = Machine::new(bytes);
    match machine.run() {
        Err(PickleError::Truncated) => machine.close().map(|value| (value, true)),
        result => result.map(|value| (value, false)),
    }
}

struct Machine<'b> {
    bytes: &'b [u8],
    at: usize,
    stack: Vec<Value>,
    /// Lengths of the stack at the marks. Nothing below the last is popped but by the opcodes that pop the mark.
    marks: Vec<usize>,
    memo: HashMap<usize, Value>,
    /// Equal strings share one allocation.
    texts: HashMap<&'b [u8], Rc<str>>,
    /// Lists, tuples and dicts made so far.
    containers: usize,
}

/// A file may have one container for so many of its bytes. An empty container takes one byte in the file and about
/// 100 in memory; snapshots have one for 20 bytes or more.
const BYTES_A_CONTAINER: usize = 4;
/// Containers that a file of any length may have.
const SOME_CONTAINERS: usize = 1_000;

impl<'b> Machine<'b> {
    fn new(bytes: &'b [u8]) -> Machine<'b> {
        let (stack, marks, memo, texts) = Default::default();
        Machine { bytes, at: 0, stack, marks, memo, texts, containers: 0 }
    }

    /// The outermost value, with the lists that are open in it. Their last item may be incomplete: it is left out, as is each
    /// open dict, but for the outermost one.
    fn close(mut self) -> Result<Value, PickleError> {
        if self.stack.len() > 1 {
            self.pop().ok();
        }
        while let Ok(mut items) = self.above_mark() {
            let dict = matches!(self.stack.last(), Some(Value::Dict(_)));
            if dict {
                // A list of one has no mark: it stands behind the one that it will be in.
                let whole =
                    (0..items.len()).step_by(2).take_while(|at| items[*at].text().is_some());
                let whole = (2 * whole.count()).min(items.len());
                while items.len() > whole
                    && let Some(last) = items.pop()
                {
                    if let Some(Value::List(all)) = items.last() {
                        all.0.borrow_mut().push(last);
                    }
                }
                items.truncate(items.len() / 2 * 2);
            }
            if self.extend(items, dict).is_err() || dict && self.stack.len() > 1 {
                self.pop().ok();
            }
        }
        self.stack.into_iter().next().ok_or(PickleError::Truncated)
    }

    fn take(&mut self, count: usize) -> Result<&'b [u8], PickleError> {
        let end = self.at.checked_add(count).ok_or(PickleError::Truncated)?;
        let taken = self.bytes.get(self.at..end).ok_or(PickleError::Truncated)?;
        self.at = end;
        Ok(taken)
    }

    /// The next bytes of a fixed number.
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| PickleError::Truncated)
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        self.bytes().map(u8::from_le_bytes)
    }

    /// A length or number of as many bytes, the lowest first.
    fn number<const N: usize>(&mut self) -> Result<usize, PickleError> {
        let mut word = [0; 8];
        word[..N].copy_from_slice(&self.bytes::<N>()?);
        usize::try_from(u64::from_le_bytes(word)).map_err(|_| PickleError::Truncated)
    }

    fn text(&mut self, count: usize) -> Result<Value, PickleError> {
        let bytes = self.take(count)?;
        // The name of a file may be no UTF-8: Python then writes half of a pair.
        let text = self.texts.entry(bytes).or_insert_with(|| String::from_utf8_lossy(bytes).into());
        Ok(Value::Text(text.clone()))
    }

    /// A new container. An error if the file has too many for its length ([`BYTES_A_CONTAINER`]).
    fn container(&mut self, items: Vec<Value>) -> Result<Rc<Container>, PickleError> {
        self.containers += 1;
        if self.containers > SOME_CONTAINERS + self.bytes.len() / BYTES_A_CONTAINER {
            return Err(PickleError::TooMany { at: self.at });
        }
        Ok(Rc::new(Container(items.into())))
    }

    fn malformed(&self) -> PickleError {
        PickleError::Malformed { at: self.at }
    }

    fn pop(&mut self) -> Result<Value, PickleError> {
        self.top()?;
        self.stack.pop().ok_or(self.malformed())
    }

    fn top(&self) -> Result<&Value, PickleError> {
        let above = self.stack.len() > self.marks.last().copied().unwrap_or(0);
        self.stack.last().filter(|_| above).ok_or(self.malformed())
    }

    /// Pops the values above the last mark, and the mark.
    fn above_mark(&mut self) -> Result<Vec<Value>, PickleError> {
        let mark = self.marks.pop().ok_or(self.malformed())?;
        Ok(self.stack.split_off(mark))
    }

    /// The last `count` values, as a tuple.
    fn tuple(&mut self, count: usize) -> Result<Value, PickleError> {
        let from = self.stack.len().checked_sub(count);
        let from = from.filter(|from| *from >= self.marks.last().copied().unwrap_or(0));
        let items = self.stack.split_off(from.ok_or(self.malformed())?);
        Ok(Value::Tuple(self.container(items)?))
    }

    /// Adds items to the list, or keys and values in turn to the dict, on the top of the stack.
    fn extend(&mut self, items: Vec<Value>, dict: bool) -> Result<(), PickleError> {
        match self.top()? {
            Value::List(all) if !dict => all.0.borrow_mut().extend(items),
            Value::Dict(all) if dict && items.len().is_multiple_of(2) => {
                all.0.borrow_mut().extend(items);
            }
            _ => return Err(self.malformed()),
        }
        Ok(())
    }

    fn run(&mut self) -> Result<Value, PickleError> {
        loop {
            let at = self.at;
            match self.byte()? {
                0x80 => match self.byte()? {
                    2..=5 => {}
                    version => return Err(PickleError::Protocol(version)),
                },
                0x95 => drop(self.take(8)?), // FRAME
                b'.' => return self.pop(),
                b'(' => self.marks.push(self.stack.len()),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.above_mark()?),
                b'a' => self.pop().and_then(|item| self.extend(vec![item], false))?,
                b'e' => self.above_mark().and_then(|items| self.extend(items, false))?,
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.extend(vec![key, value], true)?;
                }
                b'u' => self.above_mark().and_then(|items| self.extend(items, true))?,
                b'q' => self.number::<1>().and_then(|id| self.memoise(id))?,
                b'r' => self.number::<4>().and_then(|id| self.memoise(id))?,
                0x94 => self.memoise(self.memo.len())?,
                opcode => {
                    let value = self.value(opcode, at)?;
                    self.stack.push(value);
                }
            }
        }
    }

    /// The value that an opcode pushes.
    fn value(&mut self, opcode: u8, at: usize) -> Result<Value, PickleError> {
        Ok(match opcode {
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'J' => Value::Int(i32::from_le_bytes(self.bytes()?).into()),
            b'K' => Value::Int(self.byte()?.into()),
            b'M' => Value::Int(u16::from_le_bytes(self.bytes()?).into()),
            0x8a => self.number::<1>().and_then(|count| self.take(count)).map(long)?,
            b'G' => Value::Float(f64::from_be_bytes(self.bytes()?)),
            0x8c => self.number::<1>().and_then(|count| self.text(count))?,
            b'X' => self.number::<4>().and_then(|count| self.text(count))?,
            0x8d => self.number::<8>().and_then(|count| self.text(count))?,
            b'C' => self.number::<1>().and_then(|count| self.take(count)).map(|_| Value::Bytes)?,
            b']' => Value::List(self.container(Vec::new())?),
            b'}' => Value::Dict(self.container(Vec::new())?),
            b')' => self.tuple(0)?,
            0x85..=0x87 => self.tuple(usize::from(opcode - 0x84))?,
            b'l' => Value::List(self.above_mark().and_then(|items| self.container(items))?),
            b't' => Value::Tuple(self.above_mark().and_then(|items| self.container(items))?),
            b'd' => {
                let items = self.above_mark()?;
                if !items.len().is_multiple_of(2) {
                    return Err(self.malformed());
                }
                Value::Dict(self.container(items)?)
            }
            b'h' => self.number::<1>().and_then(|id| self.recall(id))?,
            b'j' => self.number::<4>().and_then(|id| self.recall(id))?,
            opcode => return Err(PickleError::Opcode { opcode, at }),
        })
    }

    fn memoise(&mut self, id: usize) -> Result<(), PickleError> {
        let value = self.top()?.clone();
        self.memo.insert(id, value);
        Ok(())
    }

    fn recall(&self, id: usize) -> Result<Value, PickleError> {
        self.memo.get(&id).cloned().ok_or(self.malformed())
    }
}

/// Little-endian two's complement of any length.
fn long(bytes: &[u8]) -> Value {
    let sign = if bytes.last().is_some_and(|last| last & 0x80 != 0) { 0xff } else { 0 };
    let mut word = [sign; 8];
    let (low, high) = bytes.split_at(bytes.len().min(8));
    word[..low.len()].copy_from_slice(low);
    let number = i64::from_le_bytes(word);
    // A ninth byte of zero is what unsigned 64-bit numbers need.
    match high.iter().all(|byte| *byte == sign) && (number < 0) == (sign != 0) {
        true => Value::Int(number),
        false => Value::Huge,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_data() {
        // {"a": [1, -2, 300, 2.5, None, True], "b": (1, "x")}, protocol 2, written by hand.
        let bytes = b"\x80\x02}(X\x01\x00\x00\x00a](K\x01J\xfe\xff\xff\xffM\x2c\x01G\x40\x04\x00\x00\x00\x00\x00\x00N\x88eX\x01\x00\x00\x00bK\x01X\x01\x00\x00\x00x\x86u.";
        let value = parse(bytes).unwrap();
        let items = value.get("a").unwrap().items().unwrap();
        assert_eq!(items[..3].iter().map(|v| v.int().unwrap()).collect::<Vec<_>>(), [1, -2, 300]);
        assert!(matches!(items[3], Value::Float(f) if f == 2.5));
        let pair = value.get("b").unwrap().items().unwrap();
        assert_eq!(&*pair[1].text().unwrap(), "x");
    }

    #[test]
    fn longs() {
        assert!(matches!(long(&[]), Value::Int(0)));
        assert!(matches!(long(&[0xff]), Value::Int(-1)));
        assert!(matches!(long(&[0x80, 0]), Value::Int(128)));
        assert!(matches!(long(&[0, 0, 0, 0, 0, 0, 0, 0x70, 0]), Value::Int(n) if n == 0x70 << 56));
        assert!(matches!(long(&[1; 9]), Value::Huge));
    }

    #[test]
    fn hostile_pickles_are_errors() {
        // os.system by GLOBAL, by STACK_GLOBAL; REDUCE, BUILD, INST, OBJ, PERSID.
        for opcode in [b'c', 0x93, b'R', b'b', b'i', b'o', b'P', b'Q', 0x81, 0x92, 0x82] {
            let bytes = [0x80, 2, opcode, b'o', b's', b'\n'];
            assert_eq!(parse(&bytes).unwrap_err(), PickleError::Opcode { opcode, at: 2 });
        }
        assert_eq!(parse(b"\x80\x02").unwrap_err(), PickleError::Truncated);
        assert_eq!(parse(b"\x80\x02X\xff\xff\xff\xff").unwrap_err(), PickleError::Truncated);
        assert_eq!(parse(b"\x80\x02j\x05\0\0\0.").unwrap_err(), PickleError::Malformed { at: 7 });
        assert!(matches!(parse(b"\x80\x02e."), Err(PickleError::Malformed { .. })));
        assert_eq!(parse(b"\x80\x09.").unwrap_err(), PickleError::Protocol(9));
    }

    #[test]
    fn deep_nesting_neither_overflows_nor_hangs() {
        let deep = |open: u8, close: &[u8]| {
            // A string, so that the file is as long as so many lists need.
            let mut bytes = vec![0x80, 2, b'X'];
            bytes.extend(1_500_000u32.to_le_bytes());
            bytes.resize(bytes.len() + 1_500_000, b'x');
            bytes.extend(std::iter::repeat_n(open, 300_000));
            bytes.extend(close.iter().cycle().take(299_999 * close.len()));
            bytes
        };
        let lists = deep(b']', b"a");
        assert_eq!(parse(&lists).unwrap_err(), PickleError::Truncated);
        // The answer; left on the stack, popped, kept in the memo alone.
        for end in [&b"."[..], b"N.", b"0N.", b"\x940N.", b"\x940]q\x00."] {
            parse(&[&lists[..], end].concat()).unwrap();
        }
        let mut dicts = deep(b'}', b"Ns");
        dicts.push(b'.');
        drop(parse(&dicts).unwrap());
        let mut tuples = deep(b'N', b"\x86");
        tuples.push(b'.');
        parse(&tuples).unwrap();
        // A dict and a list of themselves.
        let both = parse(b"\x80\x02}q\x00K\x01h\x00s]q\x01h\x01a\x86.").unwrap();
        // Nothing frees these by itself before the command ends.
        let Value::Tuple(both) = both else { panic!("a tuple") };
        let [Value::Dict(dict), Value::List(list)] = &both.0.borrow()[..] else {
            panic!("two values")
        };
        dict.0.borrow_mut().clear();
        list.0.borrow_mut().clear();
    }

    #[test]
    fn a_short_file_makes_no_million_lists() {
        let bytes = [&b"\x80\x02"[..], &[b']'; 1_000_000], b"."].concat();
        assert!(matches!(parse(&bytes).unwrap_err(), PickleError::TooMany { .. }));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let bytes = b"\x80\x04\x95\x10\0\0\0\0\0\0\0}\x94\x8c\x01a\x94]\x94(K\x01K\x02es.";
        assert!(parse(bytes).is_ok());
        for end in 0..bytes.len() {
            assert!(parse(&bytes[..end]).is_err(), "{end}");
        }
    }
}
