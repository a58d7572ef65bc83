//! Offsets of the CPython fields that are read, by version: in bytes, for release builds with 8-byte
//! pointers. From 3.13 on the interpreter exports them (`_Py_DebugOffsets`), and those take precedence.

use super::memory::{Memory, Plain};
use std::cell::Cell;

/// How frames are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// Up to 3.10: a list of frame objects, each with its own interpreter loop on the C stack.
    Objects,
    /// 3.11: one loop runs several frames; a `_PyCFrame` on the C stack marks the start of each loop.
    Entries,
    /// From 3.12 on: an extra frame on the C stack marks the start of each loop.
    Markers,
}

/// What each capture reads comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Layout {
    /// The Y of 3.Y.
    pub minor: u8,
    pub chain: Chain,
    /// In the thread state: the first frame, or with `cframe` the `_PyCFrame`.
    pub first: usize,
    /// In the `_PyCFrame`: the first frame, and the previous `_PyCFrame`.
    pub cframe: Option<(usize, usize)>,
    pub previous: usize,
    pub instruction: usize,
    pub code: usize,
    pub owner: usize,
    /// In the runtime (`_PyRuntime`): a word that is not 0 from when the interpreter begins to finalize.
    pub finalizing: usize,
    pub file: usize,
    pub name: usize,
    pub first_line: usize,
    /// In a code object: its unique version number, unless that is 0. An offset of 0: this version has
    /// none.
    pub version: usize,
    pub line_table: usize,
    pub bytecode: usize,
    pub first_traceable: usize,
    /// Where the text of a string begins: ASCII, and other compact ones.
    pub ascii: usize,
    pub compact: usize,
    pub objects: Objects,
    /// Of free-threaded builds from 3.14 on.
    pub thread_bytecode: Option<ThreadBytecode>,
}

/// Fields of objects, by the size of the header that all objects have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objects {
    pub object_type: usize,
    pub bytes_size: usize,
    pub bytes_data: usize,
    pub text_length: usize,
    pub text_hash: usize,
    pub text_state: usize,
    /// The first bit of a string's state that is its kind; `compact` and `ascii` follow it.
    pub text_kind_bit: u32,
}

impl Objects {
    /// Reference count and type.
    pub const WITH_GIL: Objects = Objects {
        object_type: 8,
        bytes_size: 16,
        bytes_data: 32,
        text_length: 16,
        text_hash: 24,
        text_state: 32,
        text_kind_bit: 2,
    };
}

/// Free-threaded builds from 3.14 on: each thread runs a copy of the bytecode (`co_tlbc`). The first
/// copy is that of the code object itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadBytecode {
    /// Of a code object: the address of the array of copies (their number, then their addresses).
    pub copies: usize,
    /// Of a frame: which of the copies it runs, 4 bytes.
    pub index: usize,
}

const FIRST: Layout = Layout {
    minor: 8,
    chain: Chain::Objects,
    finalizing: 16,
    first: 24,
    cframe: None,
    code: 32,
    previous: 24,
    instruction: 104,
    owner: 0,
    file: 104,
    name: 112,
    first_line: 40,
    version: 0,
    line_table: 120,
    bytecode: 0,
    first_traceable: 0,
    ascii: 48,
    compact: 72,
    objects: Objects::WITH_GIL,
    thread_bytecode: None,
};

const TEN: Layout = Layout { minor: 10, instruction: 96, ..FIRST };

const ELEVEN: Layout = Layout {
    minor: 11,
    chain: Chain::Entries,
    finalizing: 24,
    first: 56,
    cframe: Some((8, 16)),
    previous: 48,
    instruction: 56,
    owner: 69,
    file: 112,
    name: 128,
    first_line: 72,
    line_table: 136,
    bytecode: 184,
    first_traceable: 168,
    ..FIRST
};

/// `is_entry` of 3.11.
pub const IS_ENTRY: usize = 68;

const TWELVE: Layout = Layout {
    minor: 12,
    chain: Chain::Markers,
    cframe: Some((0, 8)),
    code: 0,
    previous: 8,
    owner: 70,
    first_line: 68,
    version: 92,
    bytecode: 192,
    first_traceable: 176,
    ascii: 40,
    compact: 56,
    ..ELEVEN
};

const THIRTEEN: Layout =
    Layout { minor: 13, first: 72, cframe: None, bytecode: 200, first_traceable: 184, ..TWELVE };

const FOURTEEN: Layout =
    Layout { minor: 14, owner: 74, version: 0, bytecode: 208, first_traceable: 192, ..THIRTEEN };

/// Its table of offsets is longer; fields that are not in it are where 3.14 has them.
const FIFTEEN: Layout = Layout { minor: 15, ..FOURTEEN };

/// Why the frames of an interpreter cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("this is {0}; only CPython is supported")]
    OtherInterpreter(&'static str),
    #[error("CPython {major}.{minor} is not supported (3.8 to 3.15 are)")]
    UnknownVersion { major: u32, minor: u32 },
    #[error("its table of offsets (_Py_DebugOffsets) has an unknown layout")]
    UnknownTable,
    #[error("it is a free-threaded build (only those of 3.13 and 3.14 are supported)")]
    FreeThreaded,
    #[error("its table of offsets (_Py_DebugOffsets) has values out of range")]
    OutOfRange,
    #[error("its runtime (_PyRuntime) has an unknown layout")]
    UnknownRuntime,
}

impl Layout {
    /// The layout of this version (`PY_VERSION_HEX`). `runtime`: address of `_PyRuntime`.
    pub fn of(version: u32, runtime: usize) -> Result<Layout, LayoutError> {
        let (major, minor) = (version >> 24, version >> 16 & 0xff);
        let known = match (major, minor) {
            (3, 8 | 9) => Layout { minor: minor as u8, ..FIRST },
            (3, 10) => TEN,
            (3, 11) => ELEVEN,
            (3, 12) => TWELVE,
            (3, 13) => THIRTEEN.with_offsets_of(version, runtime)?,
            (3, 14) => FOURTEEN.with_offsets_of(version, runtime)?,
            (3, 15) => FIFTEEN.with_offsets_of(version, runtime)?,
            _ => return Err(LayoutError::UnknownVersion { major, minor }),
        };
        Ok(known)
    }

    /// Takes the offsets from the interpreter's own table (`_Py_DebugOffsets`).
    fn with_offsets_of(self, version: u32, runtime: usize) -> Result<Layout, LayoutError> {
        let read = |at: usize| Plain.word(runtime + at).unwrap_or(0);
        if read(0).to_ne_bytes() != *b"xdebugpy" || read(8) as u32 != version {
            return Err(LayoutError::UnknownTable);
        }
        let (thread, frame, code, object, bytes, text) = match self.minor {
            13 => (152, 224, 272, 352, 512, 536),
            14 => (176, 248, 312, 400, 592, 616),
            _ => (176, 312, 376, 464, 688, 712),
        };
        let is_out_of_range = Cell::new(false);
        // A field's offset, and a field at a distance from one.
        let near = |at: usize, distance: isize| {
            let offset = read(at).wrapping_add_signed(distance);
            is_out_of_range.set(is_out_of_range.get() || offset >= 1024);
            offset
        };
        let field = |at: usize| near(at, 0);
        let own = Layout {
            finalizing: field(32),
            first: field(thread + 32),
            previous: field(frame + 8),
            code: field(frame + 16),
            instruction: field(frame + 24),
            owner: field(frame + 40),
            file: field(code + 8),
            name: field(code + 24),
            line_table: field(code + 32),
            first_line: field(code + 40),
            bytecode: field(code + 72),
            ..self
        };
        let layout = match (read(16), self.minor) {
            (0, _) => own,
            (_, 13 | 14) => Layout {
                // A number of one code object may be another's, made by another thread.
                version: 0,
                first_traceable: near(code + 72, if self.minor == 13 { -16 } else { -24 }),
                ascii: field(text + 24),
                // The UTF-8 form and its length follow.
                compact: near(text + 24, 16),
                objects: Objects {
                    object_type: field(object + 8),
                    bytes_size: field(bytes + 8),
                    bytes_data: field(bytes + 16),
                    text_state: field(text + 8),
                    text_length: field(text + 16),
                    text_hash: near(text + 16, 8),
                    text_kind_bit: if self.minor == 13 { 2 } else { 8 },
                },
                thread_bytecode: (self.minor == 14)
                    .then(|| ThreadBytecode { copies: field(code + 80), index: field(frame + 56) }),
                ..own
            },
            _ => return Err(LayoutError::FreeThreaded),
        };
        if is_out_of_range.get() { Err(LayoutError::OutOfRange) } else { Ok(layout) }
    }

    /// The `_PyCFrame` of a thread by its state, where this version has such, and the thread's first frame.
    #[inline(always)]
    pub fn first_frame(&self, memory: &impl Memory, thread: usize) -> Option<(usize, usize)> {
        let first = memory.word(thread + self.first)?;
        match self.cframe {
            Some((current, _)) => Some((first, memory.word(first + current)?)),
            None => Some((first, first)),
        }
    }

    /// The tag bit in a frame's word for its code object (from 3.14 on).
    #[inline(always)]
    pub fn tag(&self) -> usize {
        usize::from(self.minor >= 14)
    }

    /// The address of the code object in a frame's word; `None`: a tagged integer.
    #[inline(always)]
    pub fn object(&self, word: usize) -> Option<usize> {
        (self.minor < 14 || word & 3 != 3).then_some(word & !self.tag())
    }

    /// A build without the interpreter's lock.
    pub fn is_free_threaded(&self) -> bool {
        self.objects != Objects::WITH_GIL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (version, minor) in [(0x0308_12f0, 8), (0x0309_12f0, 9), (0x030a_0df0, 10)] {
            let layout = Layout::of(version, 0).unwrap();
            assert_eq!((layout.minor, layout.chain), (minor, Chain::Objects));
            assert_eq!(layout.finalizing, 16);
        }
        assert_eq!(Layout::of(0x030b_07f0, 0).unwrap().chain, Chain::Entries);
        let twelve = Layout::of(0x030c_01f0, 0).unwrap();
        assert_eq!((twelve.chain, twelve.finalizing), (Chain::Markers, 24));
        for unknown in [0x0207_12f0, 0x0307_10f0, 0x0310_00f0, 0] {
            assert!(Layout::of(unknown, 0).unwrap_err().to_string().contains("is not supported"));
        }
    }

    /// The table of free-threaded 3.14.7, as far as it is read.
    fn free_threaded(version: u32) -> [u64; 100] {
        let mut table = [0u64; 100];
        table[..3].copy_from_slice(&[u64::from_ne_bytes(*b"xdebugpy"), version.into(), 1]);
        let mut put = |at: usize, fields: &[u64]| {
            table[at / 8..at / 8 + fields.len()].copy_from_slice(fields);
        };
        put(24, &[0, 608]);
        put(176 + 32, &[72]);
        put(248 + 8, &[8, 0, 56, 80, 78, 64, 72]);
        put(312 + 8, &[128, 136, 144, 152, 84, 68, 112, 120, 232, 224]);
        put(400 + 8, &[24]);
        put(592 + 8, &[32, 48]);
        put(616 + 8, &[48, 32, 56]);
        table
    }

    #[test]
    fn free_threaded_builds() {
        let of = |version: u32, change: &dyn Fn(&mut [u64; 100])| {
            let mut table = free_threaded(version);
            change(&mut table);
            Layout::of(version, std::hint::black_box(&table).as_ptr() as usize)
        };
        let layout = of(0x030e_07f0, &|_| ()).unwrap();
        assert!(layout.is_free_threaded());
        assert_eq!(layout.finalizing, 608);
        assert_eq!(layout.thread_bytecode, Some(ThreadBytecode { copies: 224, index: 72 }));
        assert_eq!((layout.first_traceable, layout.ascii, layout.compact), (208, 56, 72));
        let Objects { object_type, bytes_data, text_hash, text_kind_bit, .. } = layout.objects;
        assert_eq!((object_type, bytes_data, text_hash, text_kind_bit), (24, 48, 40, 8));
        assert!(of(0x030e_07f0, &|table| table[(312 + 80) / 8] = 1 << 20).is_err());
        assert!(of(0x030e_07f0, &|table| table[(616 + 24) / 8] = 1 << 20).is_err());
        assert_eq!(of(0x030f_00f0, &|_| ()), Err(LayoutError::FreeThreaded));
    }

    #[test]
    fn what_the_interpreter_says_goes_before() {
        let table = |change: &dyn Fn(&mut [u64; 100])| {
            let mut table = [0u64; 100];
            table[0] = u64::from_ne_bytes(*b"xdebugpy");
            table[1] = 0x030d_00f0;
            table[(152 + 32) / 8] = 80;
            table[(272 + 8) / 8] = 112;
            change(&mut table);
            let at = std::hint::black_box(&table).as_ptr() as usize;
            Layout::of(0x030d_00f0, at)
        };
        let layout = table(&|_| ()).unwrap();
        assert_eq!((layout.first, layout.file), (80, 112));
        assert!(table(&|table| table[1] = 0x030d_01f0).is_err());
        assert!(
            table(&|table| table[(272 + 8) / 8] = 1 << 40)
                .unwrap_err()
                .to_string()
                .contains("range")
        );
    }
}
