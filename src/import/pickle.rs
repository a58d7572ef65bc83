//! A pickle reader that makes data and nothing else: numbers, strings, lists, tuples, dicts. An
//! opcode that could make an object or call a function is an error. Protocols 2 to 5.
//!
//! Values are shared by reference counts, as pickles share them, so that a file stays small in
//! memory too. Depth is bounded where values are walked, not here: building needs no recursion.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

/// A value. Containers are shared: a pickle may name one several times, and fill it later.
#[derive(Clone, Debug)]
pub enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond 64 bits: kept as "there was one".
    Huge,
    Float(f64),
    Text(Rc<str>),
    Bytes,
    List(Rc<RefCell<Vec<Value>>>),
    Tuple(Rc<[Value]>),
    Dict(Rc<RefCell<Vec<(Value, Value)>>>),
}

impl Value {
    /// The entry of a dict with this key.
    pub fn get(&self, key: &str) -> Option<Value> {
        let Value::Dict(entries) = self else { return None };
        let entries = entries.borrow();
        let found = entries.iter().rev().find(|(k, _)| matches!(k, Value::Text(t) if &**t == key));
        found.map(|(_, value)| value.clone())
    }

    pub fn int(&self) -> Option<i64> {
        match self {
            Value::Int(n) => Some(*n),
            Value::Bool(b) => Some(i64::from(*b)),
            _ => None,
        }
    }

    pub fn text(&self) -> Option<Rc<str>> {
        match self {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    /// The elements of a list or tuple.
    pub fn items(&self) -> Option<Vec<Value>> {
        match self {
            Value::List(items) => Some(items.borrow().clone()),
            Value::Tuple(items) => Some(items.to_vec()),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PickleError {
    Truncated,
    /// The file would make an object or call a function, or is no pickle.
    Opcode {
        opcode: u8,
        at: usize,
    },
    /// A value where another kind is needed, an empty stack, an unknown memo.
    Malformed {
        at: usize,
    },
    Protocol(u8),
}

impl fmt::Display for PickleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PickleError::Truncated => f.write_str("the pickle ends in the middle"),
            PickleError::Opcode { opcode, at } => write!(
                f,
                "byte {at}: opcode 0x{opcode:02x} makes more than plain data; a memory snapshot needs none of that"
            ),
            PickleError::Malformed { at } => write!(f, "byte {at}: not a sound pickle"),
            PickleError::Protocol(version) => {
                write!(f, "pickle protocol {version}; 2 to 5 are understood")
            }
        }
    }
}

impl std::error::Error for PickleError {}

/// Reads one pickle.
pub fn parse(bytes: &[u8]) -> Result<Value, PickleError> {
    let mut machine =
        Machine { bytes, at: 0, stack: Vec::new(), memo: HashMap::new(), texts: HashMap::new() };
    let value = machine.run();
    // Deeply nested values would be dropped by recursion: they are taken apart by hand instead.
    let Machine { stack, memo, .. } = machine;
    match value {
        Ok(value) => {
            drop(memo);
            Ok(value)
        }
        Err(error) => {
            take_apart(stack.into_iter().filter_map(|slot| match slot {
                Slot::Value(value) => Some(value),
                Slot::Mark => None,
            }));
            take_apart(memo.into_values());
            Err(error)
        }
    }
}

/// Drops values without recursion, however deep they nest.
pub fn take_apart(values: impl IntoIterator<Item = Value>) {
    let mut pending: Vec<Value> = values.into_iter().collect();
    while let Some(value) = pending.pop() {
        match value {
            Value::List(items) if Rc::strong_count(&items) == 1 => {
                pending.append(&mut items.borrow_mut())
            }
            Value::Dict(entries) if Rc::strong_count(&entries) == 1 => {
                pending.extend(entries.borrow_mut().drain(..).flat_map(|(k, v)| [k, v]));
            }
            Value::Tuple(mut items) => {
                if let Some(items) = Rc::get_mut(&mut items) {
                    pending
                        .extend(items.iter_mut().map(|item| std::mem::replace(item, Value::None)));
                }
            }
            _ => {}
        }
    }
}

enum Slot {
    Mark,
    Value(Value),
}

struct Machine<'b> {
    bytes: &'b [u8],
    at: usize,
    stack: Vec<Slot>,
    memo: HashMap<u32, Value>,
    /// Equal strings are one.
    texts: HashMap<&'b str, Rc<str>>,
}

impl<'b> Machine<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8], PickleError> {
        let end = self.at.checked_add(count).ok_or(PickleError::Truncated)?;
        let taken = self.bytes.get(self.at..end).ok_or(PickleError::Truncated)?;
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<u32, PickleError> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn text(&mut self, count: usize) -> Result<(), PickleError> {
        let at = self.at;
        let bytes = self.take(count)?;
        let text = std::str::from_utf8(bytes).map_err(|_| PickleError::Malformed { at })?;
        let shared = self.texts.entry(text).or_insert_with(|| text.into()).clone();
        self.push(Value::Text(shared));
        Ok(())
    }

    fn push(&mut self, value: Value) {
        self.stack.push(Slot::Value(value));
    }

    fn malformed(&self) -> PickleError {
        PickleError::Malformed { at: self.at }
    }

    fn pop(&mut self) -> Result<Value, PickleError> {
        match self.stack.pop() {
            Some(Slot::Value(value)) => Ok(value),
            _ => Err(self.malformed()),
        }
    }

    fn top(&self) -> Result<&Value, PickleError> {
        match self.stack.last() {
            Some(Slot::Value(value)) => Ok(value),
            _ => Err(self.malformed()),
        }
    }

    /// All above the last mark, which goes too.
    fn above_mark(&mut self) -> Result<Vec<Value>, PickleError> {
        let mark = self.stack.iter().rposition(|slot| matches!(slot, Slot::Mark));
        let mark = mark.ok_or(self.malformed())?;
        let values = self.stack.drain(mark..).skip(1);
        Ok(values
            .filter_map(|slot| match slot {
                Slot::Value(value) => Some(value),
                Slot::Mark => None,
            })
            .collect())
    }

    fn tuple(&mut self, count: usize) -> Result<(), PickleError> {
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push(Value::Tuple(items.into()));
        Ok(())
    }

    fn append(&mut self, items: Vec<Value>) -> Result<(), PickleError> {
        match self.top()? {
            Value::List(list) => list.borrow_mut().extend(items),
            _ => return Err(self.malformed()),
        }
        Ok(())
    }

    fn set(&mut self, items: Vec<Value>) -> Result<(), PickleError> {
        if !items.len().is_multiple_of(2) {
            return Err(self.malformed());
        }
        let mut items = items.into_iter();
        match self.top()? {
            Value::Dict(entries) => {
                let mut entries = entries.borrow_mut();
                while let (Some(key), Some(value)) = (items.next(), items.next()) {
                    entries.push((key, value));
                }
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
                b'(' => self.stack.push(Slot::Mark),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.above_mark()?),
                b'N' => self.push(Value::None),
                0x88 => self.push(Value::Bool(true)),
                0x89 => self.push(Value::Bool(false)),
                b'J' => {
                    let n = self.u32()? as i32;
                    self.push(Value::Int(n.into()));
                }
                b'K' => {
                    let n = self.byte()?;
                    self.push(Value::Int(n.into()));
                }
                b'M' => {
                    let n = u16::from_le_bytes(self.take(2)?.try_into().expect("two bytes"));
                    self.push(Value::Int(n.into()));
                }
                0x8a => {
                    let count = self.byte()? as usize;
                    let value = long(self.take(count)?);
                    self.push(value);
                }
                b'G' => {
                    let bits = self.take(8)?.try_into().expect("eight bytes");
                    self.push(Value::Float(f64::from_be_bytes(bits)));
                }
                0x8c => {
                    let count = self.byte()? as usize;
                    self.text(count)?;
                }
                b'X' => {
                    let count = self.u32()? as usize;
                    self.text(count)?;
                }
                0x8d => {
                    let count = u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes"));
                    self.text(usize::try_from(count).map_err(|_| PickleError::Truncated)?)?;
                }
                b'C' => {
                    let count = self.byte()? as usize;
                    self.take(count)?;
                    self.push(Value::Bytes);
                }
                b']' => self.push(Value::List(Rc::default())),
                b'}' => self.push(Value::Dict(Rc::default())),
                b')' => self.push(Value::Tuple(Rc::from([]))),
                b'l' => {
                    let items = self.above_mark()?;
                    self.push(Value::List(Rc::new(RefCell::new(items))));
                }
                b't' => {
                    let items = self.above_mark()?;
                    self.push(Value::Tuple(items.into()));
                }
                0x85 => self.tuple(1)?,
                0x86 => self.tuple(2)?,
                0x87 => self.tuple(3)?,
                b'a' => {
                    let item = self.pop()?;
                    self.append(vec![item])?;
                }
                b'e' => {
                    let items = self.above_mark()?;
                    self.append(items)?;
                }
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.set(vec![key, value])?;
                }
                b'u' => {
                    let items = self.above_mark()?;
                    self.set(items)?;
                }
                b'd' => {
                    let items = self.above_mark()?;
                    self.push(Value::Dict(Rc::default()));
                    self.set(items)?;
                }
                b'q' => {
                    let id = u32::from(self.byte()?);
                    self.memoise(id)?;
                }
                b'r' => {
                    let id = self.u32()?;
                    self.memoise(id)?;
                }
                0x94 => {
                    let id = u32::try_from(self.memo.len()).map_err(|_| self.malformed())?;
                    self.memoise(id)?;
                }
                b'h' => {
                    let id = u32::from(self.byte()?);
                    self.recall(id)?;
                }
                b'j' => {
                    let id = self.u32()?;
                    self.recall(id)?;
                }
                opcode => return Err(PickleError::Opcode { opcode, at }),
            }
        }
    }

    fn memoise(&mut self, id: u32) -> Result<(), PickleError> {
        let value = self.top()?.clone();
        self.memo.insert(id, value);
        Ok(())
    }

    fn recall(&mut self, id: u32) -> Result<(), PickleError> {
        let value = self.memo.get(&id).cloned().ok_or(self.malformed())?;
        self.push(value);
        Ok(())
    }
}

/// Little-endian two's complement of any length.
fn long(bytes: &[u8]) -> Value {
    if bytes.len() > 8 {
        let significant = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
        // A ninth byte of zero is what unsigned 64-bit numbers need.
        if significant > 8 || (significant == 8 && bytes[7] & 0x80 != 0) {
            return Value::Huge;
        }
    }
    let negative = bytes.len() <= 8 && bytes.last().is_some_and(|b| b & 0x80 != 0);
    let mut word = if negative { [0xff; 8] } else { [0; 8] };
    let count = bytes.len().min(8);
    word[..count].copy_from_slice(&bytes[..count]);
    Value::Int(i64::from_le_bytes(word))
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
        let mut bytes = vec![0x80, 2];
        bytes.extend(std::iter::repeat_n(b']', 1_000_000));
        bytes.extend(std::iter::repeat_n(b'a', 999_999));
        let whole = parse(&[&bytes[..], b"."].concat()).unwrap();
        take_apart([whole]);
        assert_eq!(parse(&bytes).unwrap_err(), PickleError::Truncated);
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
