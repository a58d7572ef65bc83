//! The identity of a code object, and the fields that its definition in the trace needs.
//!
//! The address does not identify a code object: when it is freed, another one may get its address.
//! From CPython 3.12 on its version number is part of the identity. Before, or if it has no number, the
//! contents of its strings and of its line table are (their addresses may be reused too).

use super::layout::{Layout, Objects};
use super::memory::Memory;

/// The maximum length of a text, bytes. A longer one is cut.
const TEXT_MOST: usize = 4 << 10;
const TABLE_MOST: usize = 1 << 20;

pub struct Code {
    pub name: String,
    pub file: String,
    pub first_line: i32,
    pub line_table: Vec<u8>,
}

/// A number that identifies a code object. Its parts are multiplied independently, so that the
/// processor need not wait for one product before the next.
///
/// `last`: the last file name of this walk, and its fingerprint.
#[inline(always)]
pub fn identity(
    memory: &impl Memory,
    layout: &Layout,
    code: usize,
    last: &mut (usize, u64),
) -> Option<u64> {
    let version = match layout.version {
        0 => 0,
        at => memory.int(code + at)? as u32,
    };
    if version != 0 {
        // The interpreter numbers its code objects; 0 once the numbers are used up.
        return Some(pair(code as u64, u64::from(version), 1));
    }
    let file = memory.word(code + layout.file)?;
    let name = memory.word(code + layout.name)?;
    let line = memory.int(code + layout.first_line)? as u32 as u64;
    let mut fingerprint = pair(code as u64, line << 32, 1);
    if last.0 != file {
        *last = (file, pair(file as u64, text_fingerprint(memory, layout, file)?, 2));
    }
    fingerprint ^= last.1;
    fingerprint ^= pair(name as u64, text_fingerprint(memory, layout, name)?, 3);
    fingerprint ^=
        table_fingerprint(memory, &layout.objects, memory.word(code + layout.line_table)?)?;
    Some(fingerprint)
}

/// A fingerprint of the line table.
#[inline(always)]
fn table_fingerprint(memory: &impl Memory, objects: &Objects, table: usize) -> Option<u64> {
    let size = memory.word(table + objects.bytes_size)?;
    let word = |at: usize| memory.word(table + objects.bytes_data + at).map(|word| word as u64);
    if size < 8 {
        // The object has at least 8 bytes there; bytes behind the table are masked.
        return Some(pair(word(0)? & ((1 << (8 * size)) - 1), size as u64, 4));
    }
    // The first and the last words may overlap others.
    let last = size.min(TABLE_MOST) - 8;
    let mut fingerprint = pair(word(last)?, size as u64, 4);
    let mut at = 0;
    while at < last {
        fingerprint = pair(word(at)?, word((at + 8).min(last))? ^ fingerprint, 5);
        at += 16;
    }
    Some(fingerprint)
}

/// Mixes two numbers into one that depends on all bits of both and on `place`.
#[inline(always)]
fn pair(a: u64, b: u64, place: u64) -> u64 {
    let a = a ^ 0x9E37_79B9_7F4A_7C15u64.rotate_left(place as u32);
    let b = b ^ 0xD6E8_FEB8_6659_FD93u64.rotate_left(place as u32);
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Python's cached hash of a string, which strings used as names have. Otherwise some of its bytes.
#[inline(always)]
fn text_fingerprint(memory: &impl Memory, layout: &Layout, text: usize) -> Option<u64> {
    let length = memory.word(text + layout.objects.text_length)?;
    let hash = memory.word(text + layout.objects.text_hash)?;
    let part = |word: usize| (word as u64).rotate_left(17) ^ length as u64;
    if hash != usize::MAX || length < 8 {
        return Some(part(hash));
    }
    let data = data(memory, layout, text)?;
    let end = memory.word(data.at + length * data.width - 8)?;
    Some(pair(memory.word(data.at)? as u64, part(end), 6))
}

/// Where the characters of a text lie.
struct Data {
    at: usize,
    width: usize,
}

#[inline(always)]
fn data(memory: &impl Memory, layout: &Layout, text: usize) -> Option<Data> {
    let state = memory.int(text + layout.objects.text_state)? >> layout.objects.text_kind_bit;
    let width = state as usize & 7;
    if !matches!(width, 1 | 2 | 4) {
        return None;
    }
    let at = match (state >> 3 & 1, state >> 4 & 1) {
        (1, 1) => text + layout.ascii,
        (1, _) => text + layout.compact,
        _ => memory.word(text + layout.compact)?,
    };
    Some(Data { at, width })
}

fn text(memory: &impl Memory, layout: &Layout, text: usize) -> Option<String> {
    let length = memory.word(text + layout.objects.text_length)?;
    let Data { at, width } = data(memory, layout, text)?;
    // In the expected layout a zero character follows the last.
    let end = memory.bytes(at.checked_add(length.checked_mul(width)?)?, width, 4)?;
    if end.iter().any(|byte| *byte != 0) {
        return None;
    }
    let kept = length.min(TEXT_MOST / width);
    let bytes = memory.bytes(at, kept * width, TEXT_MOST)?;
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u32, |n, byte| n << 8 | u32::from(*byte));
    let character = |bytes| char::from_u32(number(bytes)).unwrap_or(char::REPLACEMENT_CHARACTER);
    #[allow(clippy::disallowed_methods)] // as long as `bytes`, which has a limit
    Some(bytes.chunks_exact(width).map(character).collect())
}

/// Reads the fields that a definition needs. `None`: the object does not have the expected layout.
pub fn read(memory: &impl Memory, layout: &Layout, code: usize) -> Option<Code> {
    let table = memory.word(code + layout.line_table)?;
    let size = memory.word(table + layout.objects.bytes_size)?;
    Some(Code {
        name: text(memory, layout, memory.word(code + layout.name)?)?,
        file: text(memory, layout, memory.word(code + layout.file)?)?,
        first_line: memory.int(code + layout.first_line)?,
        line_table: memory.bytes(table + layout.objects.bytes_data, size, TABLE_MOST)?,
    })
}
