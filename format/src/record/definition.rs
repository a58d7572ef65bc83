//! Definitions: what ids refer to. They are in separate windows, which are never erased. A definition is published
//! before the first use of its id.
//!
//! A row of the table is one kind of definition: its code, and its fields with their places in the record (`wire.rs`).

use super::record_macro::records;
use super::wire::{Element, Get};
use crate::ids::{ContextId, DeviceId, PoolId, SiteId, StackId, ThreadId};
use crate::kind::Kind;
use crate::scalar::{numbered_enum, scalar_ids};

/// The name of the [`Definition::Setting`] which says that the sites of blocks carry PyTorch's streams, and as pools the
/// numbers of captures (CUDA graphs). Without it a stream of 0 can be any.
pub const BLOCK_STREAMS: &str = "block_streams";

/// The name of the [`Definition::Setting`] which says that blocks carry the bytes that were requested
/// ([`Alloc::requested`](crate::Alloc)).
pub const BLOCK_REQUESTS: &str = "block_requests";

/// The name of a [`Definition::Setting`] whose value is the path of a library, as in [`Definition::Module`]. The library
/// replaced the beginning of functions of the recorder, so calls go through it. There is one for each such library.
pub const PATCHED_BY: &str = "patched_by";

records! {
    /// A definition of an id, or a setting, note or name of the run.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Definition {
        /// A driver function that the recorder intercepts.
        0x80 Api {
            id: u16 = small,
            name: String = list,
        };

        /// A thread. `tid`: the kernel's thread id.
        0x81 Thread {
            id: ThreadId = small,
            tid: u32 = word,
            name: String = list,
        };

        /// A device. `mig`: it is a MIG device, and `uuid` the UUID of that.
        0x82 Device {
            id: DeviceId = small,
            mig: bool = small,
            uuid: [u8; 16] = uuid,
            total_bytes: u64 = word,
            name: String = list,
        };

        /// A CUDA context. `handle`: the driver's `CUcontext`. `primary`: a primary context.
        0x83 Context {
            id: ContextId = small,
            device: DeviceId = small,
            primary: bool = small,
            handle: u64 = word,
        };

        /// A memory pool. `handle`: the driver's `CUmemoryPool`.
        0x84 Pool {
            id: PoolId = small,
            device: DeviceId = small,
            origin: PoolOrigin = small,
            handle: u64 = word,
        };

        /// The parameters of an allocation or free call. `stream`: the raw handle (0 legacy default, 1 legacy, 2
        /// per-thread). Of a block: PyTorch's id of its stream, and as `pool` the number of the capture that its private
        /// pool serves ([`BLOCK_STREAMS`]).
        0x85 Site {
            id: SiteId = small,
            device: DeviceId = small,
            api: u16 = packed,
            context: ContextId = packed,
            pool: PoolId = packed,
            kind: Option<Kind> = packed,
            stream: u64 = word,
        };

        /// A string that other records refer to by its id: the text of a mark, the name of a function or of a file.
        0x86 Text {
            id: u32 = small,
            text: String = list,
        };

        /// A message of the recorder, one line. Most are printed to stderr too.
        0x87 Note {
            text: String = list,
        };

        /// An executable or library in memory, at `start..end`. An address in memory less `base` is the address in the
        /// file. A module that was loaded later at the same addresses has a later definition. The addresses of a stack
        /// belong to the modules that are defined before the stack.
        0x88 Module {
            id: u32 = small,
            base: u64 = word,
            start: u64 = word,
            end: u64 = word,
            /// The path that the loader used; `[vdso]` for the kernel's vDSO.
            path: String = list,
            /// Its GNU build-id; empty if it has none.
            build_id: Vec<u8> = list,
        };

        /// A Python code object; or, in an imported trace, a native function that is known by name only.
        0x89 Code {
            id: u32 = small,
            /// The Y of CPython 3.Y, which determines the encoding of the line table.
            /// [`Definition::NAMED_NATIVE`]: a native function; `first_line` is its line, 0 if not known.
            minor: u8 = small,
            first_line: i32 = word,
            /// The qualified name (from Python 3.11 on), else the unqualified one.
            name: String = list,
            file: String = list,
            /// The bytes of `co_lnotab` (up to 3.9) or `co_linetable` (from 3.10 on).
            line_table: Vec<u8> = list,
        };

        /// A call stack.
        0x8A Stack {
            id: StackId = small,
            /// [`StackFlags`].
            flags: StackFlags = small,
            /// Return addresses, innermost first. Each one follows the call instruction.
            native: Vec<u64> = list,
            /// Innermost first.
            python: Vec<PythonFrame> = list,
            /// Which native frame runs which Python frames, innermost first.
            joins: Vec<Join> = list,
        };

        /// A setting at the start of the process: an environment variable that affects memory
        /// (`PYTORCH_CUDA_ALLOC_CONF`); with the name `import`, the source of an imported trace; [`BLOCK_STREAMS`] or
        /// [`BLOCK_REQUESTS`].
        0x8B Setting {
            name: String = list,
            value: String = list,
        };

        /// The function names of a return address, stored on a machine that has the library. No names: the library has
        /// none for the address.
        0x8C Names {
            /// Id of a [`Definition::Module`].
            module: u32 = small,
            /// The return address, less the module's base.
            address: u64 = word,
            /// Innermost first: several if functions were inlined.
            names: Vec<NativeName> = list,
        };

        /// The calls of a stack run a node of PyTorch's backward pass. `forward` is the stack of the forward operation
        /// that made the node. Follows the definition of `stack`, and precedes the first event with its id.
        0x8D Forward {
            stack: StackId = small,
            forward: StackId = word,
        };
    }
}

/// The name and position of a function. Strings are ids of [`Definition::Text`]; 0: not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NativeName {
    /// Demangled.
    pub function: u32,
    pub file: u32,
    /// 0: not known.
    pub line: u32,
}

impl Definition {
    /// Decodes a definition from its code, the small field of word 1 and the words after it, which may have any values.
    /// `None`: unknown or invalid.
    pub(crate) fn decode(code: u8, small: u64, words: &[u64]) -> Option<Definition> {
        Definition::get(code, &mut Get::new(small, words))
    }

    /// The `minor` of a [`Definition::Code`] that is a native function.
    pub const NAMED_NATIVE: u8 = 0;
}

/// A frame of a Python function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PythonFrame {
    /// Id of a [`Definition::Code`].
    pub code: u32,
    /// Byte offset of the instruction in the code object; negative: the function has not started.
    pub last_instruction: i32,
}

/// The native frame `native[native]` runs the Python frames from `python[python]` up to those of the next join. They
/// precede it in the merged list, and follow the native frame before it. Python frames before the first join are placed
/// with it: see [`crate::stack_order::order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Join {
    pub python: u32,
    /// [`Join::BEYOND`]: the native frame is outside the captured ones.
    pub native: u32,
}

impl Join {
    /// The Python frames follow all captured native frames.
    pub const BEYOND: u32 = u32::MAX;
}

scalar_ids! {
    /// Bits that say which frames a stack lacks, and why.
    pub struct StackFlags(pub u8);
}

impl StackFlags {
    /// The process has no Python interpreter, or the thread has no Python state.
    pub const NO_PYTHON_THREAD: StackFlags = StackFlags(1);
    /// A thread that Python knows, but with no Python function on it.
    pub const NO_PYTHON_FRAMES: StackFlags = StackFlags(1 << 1);
    /// Python frames are not captured: by setting, or because this Python version cannot be read (a note says why).
    pub const PYTHON_OFF: StackFlags = StackFlags(1 << 2);
    /// Native frames are not captured, by setting.
    pub const NATIVE_OFF: StackFlags = StackFlags(1 << 3);
    /// Outer native frames are missing: the stack is deeper than the limit, or unwinding failed.
    pub const NATIVE_CUT: StackFlags = StackFlags(1 << 4);
    /// Outer Python frames are missing.
    pub const PYTHON_CUT: StackFlags = StackFlags(1 << 5);
    /// Stands for all stacks that were captured after the limit on the number of stacks.
    pub const TOO_MANY: StackFlags = StackFlags(1 << 6);

    pub fn has(self, flag: StackFlags) -> bool {
        self.0 & flag.0 != 0
    }

    pub fn add(&mut self, flag: StackFlags) {
        self.0 |= flag.0;
    }
}

numbered_enum! {
    /// How a pool came to exist in the process.
    pub enum PoolOrigin {
        Default = 0,
        Created = 1,
        Imported = 2,
    }
}

fn halves(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

impl Element for PythonFrame {
    fn word(&self, _: usize) -> u64 {
        halves(self.code, self.last_instruction as u32)
    }

    fn of(words: &[u64]) -> PythonFrame {
        PythonFrame { code: (words[0] >> 32) as u32, last_instruction: words[0] as i32 }
    }
}

impl Element for Join {
    fn word(&self, _: usize) -> u64 {
        halves(self.python, self.native)
    }

    fn of(words: &[u64]) -> Join {
        Join { python: (words[0] >> 32) as u32, native: words[0] as u32 }
    }
}

impl Element for NativeName {
    const WORDS: usize = 2;

    fn word(&self, index: usize) -> u64 {
        match index {
            0 => halves(self.function, self.file),
            _ => u64::from(self.line),
        }
    }

    fn of(words: &[u64]) -> NativeName {
        let texts = words[0];
        NativeName { function: (texts >> 32) as u32, file: texts as u32, line: words[1] as u32 }
    }
}
