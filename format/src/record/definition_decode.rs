//! Decodes definitions. Words may have any values: the result is `None` for what cannot be decoded. Nothing panics.

use super::code;
use super::definition::{Definition, Join, NativeName, PoolOrigin, PythonFrame, StackFlags};
use crate::ids::{ContextId, DeviceId, PoolId, SiteId, StackId, ThreadId};
use crate::kind::Kind;
use crate::uuid;

/// Decodes a definition from its code, the small field of word 1 and the words after it. `None`: unknown or invalid.
pub(crate) fn decode(kind: u8, small: u64, body: &[u64]) -> Option<Definition> {
    let device = DeviceId((small >> 16) as u8);
    Some(match (kind, body) {
        (code::DEFINE_API, text) => Definition::Api { id: small as u16, name: string(text)? },
        (code::DEFINE_THREAD, &[tid, ref text @ ..]) => {
            Definition::Thread { id: ThreadId(small as u16), tid: tid as u32, name: string(text)? }
        }
        (code::DEFINE_DEVICE, &[low, high, total_bytes, ref text @ ..]) => Definition::Device {
            id: DeviceId(small as u8),
            uuid: uuid::from_words([low, high]),
            name: string(text)?,
            total_bytes,
            mig: small >> 8 & 1 != 0,
        },
        (code::DEFINE_CONTEXT, &[handle, ..]) => Definition::Context {
            id: ContextId(small as u16),
            device,
            handle,
            primary: small >> 24 & 1 != 0,
        },
        (code::DEFINE_POOL, &[handle, ..]) => Definition::Pool {
            id: PoolId(small as u16),
            device,
            handle,
            origin: pool_origin((small >> 24) as u8)?,
        },
        (code::DEFINE_SITE, &[place, stream, ..]) => Definition::Site {
            id: SiteId(small as u32),
            api: place as u16,
            kind: Kind::from_u8((place >> 48) as u8),
            device: DeviceId((small >> 32) as u8),
            context: ContextId((place >> 16) as u16),
            pool: PoolId((place >> 32) as u16),
            stream,
        },
        (code::DEFINE_TEXT, text) => Definition::Text { id: small as u32, text: string(text)? },
        (code::DEFINE_NOTE, text) => Definition::Note { text: string(text)? },
        (code::DEFINE_SETTING, all) => {
            let mut rest = Pieces(all);
            Definition::Setting { name: rest.string()?, value: rest.string()? }
        }
        (code::DEFINE_MODULE, &[base, start, end, ref rest @ ..]) => {
            let mut rest = Pieces(rest);
            let (path, build_id) = (rest.string()?, rest.bytes()?);
            Definition::Module { id: small as u32, path, build_id, base, start, end }
        }
        (code::DEFINE_CODE, &[first_line, ref rest @ ..]) => {
            let mut rest = Pieces(rest);
            Definition::Code {
                id: small as u32,
                minor: (small >> 32) as u8,
                name: rest.string()?,
                file: rest.string()?,
                first_line: first_line as i32,
                line_table: rest.bytes()?,
            }
        }
        (code::DEFINE_STACK, rest) => {
            let mut rest = Pieces(rest);
            let halves = |word: u64| ((word >> 32) as u32, word as u32);
            Definition::Stack {
                id: StackId(small as u32),
                flags: StackFlags((small >> 32) as u8),
                native: rest.words()?.to_vec(),
                python: rest.list(|word| {
                    let (code, last) = halves(word);
                    PythonFrame { code, last_instruction: last as i32 }
                })?,
                joins: rest.list(|word| {
                    let (python, native) = halves(word);
                    Join { python, native }
                })?,
            }
        }
        (code::DEFINE_NAMES, &[address, ref rest @ ..]) => {
            let (names, []) = Pieces(rest).words()?.as_chunks() else { return None };
            let names = names.iter().map(name).collect();
            Definition::Names { module: small as u32, address, names }
        }
        (code::DEFINE_FORWARD, &[forward, ..]) => {
            let (stack, forward) = (StackId(small as u32), StackId(forward as u32));
            Definition::Forward { stack, forward }
        }
        _ => return None,
    })
}

fn name(words: &[u64; 2]) -> NativeName {
    let [texts, line] = *words;
    NativeName { function: (texts >> 32) as u32, file: texts as u32, line: line as u32 }
}

fn pool_origin(value: u8) -> Option<PoolOrigin> {
    use PoolOrigin::*;
    [Default, Created, Imported].into_iter().find(|origin| *origin as u8 == value)
}

/// Decodes a string: its length in bytes, then its bytes.
fn string(words: &[u64]) -> Option<String> {
    Pieces(words).string()
}

/// Consecutive lists of a definition, each with its length in the first word.
struct Pieces<'a>(&'a [u64]);

impl<'a> Pieces<'a> {
    /// The length and the words of the next list. `unit`: elements in a word (8 for bytes).
    fn take(&mut self, unit: usize) -> Option<(usize, &'a [u64])> {
        let (&len, rest) = self.0.split_first()?;
        let len = usize::try_from(len).ok()?;
        let (piece, rest) = rest.split_at_checked(len.div_ceil(unit))?;
        self.0 = rest;
        Some((len, piece))
    }

    fn words(&mut self) -> Option<&'a [u64]> {
        Some(self.take(1)?.1)
    }

    fn list<T>(&mut self, of: impl Fn(u64) -> T) -> Option<Vec<T>> {
        Some(self.words()?.iter().map(|word| of(*word)).collect())
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let (len, words) = self.take(8)?;
        let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.truncate(len);
        Some(bytes)
    }

    /// Invalid UTF-8 is replaced with U+FFFD.
    fn string(&mut self) -> Option<String> {
        Some(match String::from_utf8(self.bytes()?) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }
}
