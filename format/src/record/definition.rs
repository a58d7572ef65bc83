//! Definitions: what ids stand for. In windows of their own that are never erased; published
//! before the id is handed out.

use crate::ids::{ContextId, DeviceId, PoolId, SiteId, StackId, ThreadId};
use crate::kind::Kind;

#[derive(Clone, Debug, PartialEq)]
pub enum Definition {
    /// An entry point of the shim's table.
    Api {
        id: u16,
        name: String,
    },
    Thread {
        id: ThreadId,
        tid: u32,
        name: String,
    },
    Device {
        id: DeviceId,
        uuid: [u8; 16],
        name: String,
        total_bytes: u64,
        mig: bool,
    },
    Context {
        id: ContextId,
        device: DeviceId,
        handle: u64,
        primary: bool,
    },
    Pool {
        id: PoolId,
        device: DeviceId,
        handle: u64,
        origin: PoolOrigin,
    },
    /// Where an allocation or a free came from. `stream` is the raw handle (0 legacy default,
    /// 1 legacy, 2 per-thread).
    Site {
        id: SiteId,
        api: u16,
        kind: Option<Kind>,
        device: DeviceId,
        context: ContextId,
        pool: PoolId,
        stream: u64,
    },
    /// A string that others name by its id: the text of a mark, the name of a function or of a file.
    Text {
        id: u32,
        text: String,
    },
    /// What was in force when the process began: a variable of its environment that says how
    /// memory is handled (`PYTORCH_CUDA_ALLOC_CONF`), or, under the name `import`, where an
    /// imported trace comes from.
    Setting {
        name: String,
        value: String,
    },
    /// A remark of the recorder in one line. Most are printed on stderr too.
    Note {
        text: String,
    },
    /// A program or library in memory. Its addresses are `start..end`; an address of the file is
    /// the address in memory less `base`. What was loaded later over the same addresses has a
    /// separate definition behind this one: a stack's addresses are those of the modules that
    /// are defined before the stack.
    Module {
        id: u32,
        /// As the loader knows it; `[vdso]` for the kernel's.
        path: String,
        /// Its GNU build-id; empty if it has none.
        build_id: Vec<u8>,
        base: u64,
        start: u64,
        end: u64,
    },
    /// A Python code object; or, in an imported trace, a native function by its name.
    Code {
        id: u32,
        /// The Y of CPython 3.Y: the form of the line table and the unit of instructions.
        /// [`Definition::NAMED_NATIVE`]: no Python; `first_line` is the line, 0 if not known.
        minor: u8,
        /// The qualified name where the version has it (3.11 on), else the plain one.
        name: String,
        file: String,
        first_line: i32,
        /// `co_lnotab` up to 3.9, `co_linetable` from 3.10 on, as it is in memory.
        line_table: Vec<u8>,
    },
    Stack {
        id: StackId,
        /// [`StackFlags`].
        flags: StackFlags,
        /// Return addresses, innermost first. The call is before each of them.
        native: Vec<u64>,
        /// Innermost first.
        python: Vec<PythonFrame>,
        /// Which native frame runs which Python frames; from the innermost out.
        joins: Vec<Join>,
    },
    /// What a return address is called, found where the library was at hand and kept for where it
    /// is not. No names: the library was asked and has none for it.
    Names {
        /// Of a [`Definition::Module`].
        module: u32,
        /// The return address, less the module's base.
        address: u64,
        /// Innermost first: several where functions were inlined.
        names: Vec<NativeName>,
    },
}

/// A function as it was named, by the ids of [`Definition::Text`]s; 0: not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NativeName {
    /// Demangled.
    pub function: u32,
    pub file: u32,
    /// 0: not known.
    pub line: u32,
}

impl Definition {
    /// The `minor` of a [`Definition::Code`] that is a native function.
    pub const NAMED_NATIVE: u8 = 0;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PythonFrame {
    /// Of a [`Definition::Code`].
    pub code: u32,
    /// Byte offset of the instruction in the code object; below 0: not begun.
    pub last_instruction: i32,
}

/// From `python[python]` up to the next join's, Python frames are run by the native frame
/// `native[native]`: they belong between it and the native frame before it. Python frames
/// before the first join have no known place: they belong above all native ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Join {
    pub python: u32,
    /// [`Join::BEYOND`]: behind the native frames that were kept.
    pub native: u32,
}

impl Join {
    pub const BEYOND: u32 = u32::MAX;
}

/// What a stack lacks, and why. Bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StackFlags(pub u8);

impl StackFlags {
    /// The thread (or the whole process) has no Python.
    pub const NO_PYTHON_THREAD: StackFlags = StackFlags(1);
    /// A thread that Python knows, but with no Python function on it.
    pub const NO_PYTHON_FRAMES: StackFlags = StackFlags(1 << 1);
    /// Python frames were not asked for, or this Python cannot be read (a note says why).
    pub const PYTHON_OFF: StackFlags = StackFlags(1 << 2);
    pub const NATIVE_OFF: StackFlags = StackFlags(1 << 3);
    /// Outer frames are missing: deeper than the limit, or the unwinding got stuck.
    pub const NATIVE_CUT: StackFlags = StackFlags(1 << 4);
    pub const PYTHON_CUT: StackFlags = StackFlags(1 << 5);
    /// Stands for every stack that came when there was no room for more.
    pub const TOO_MANY: StackFlags = StackFlags(1 << 6);

    pub fn has(self, flag: StackFlags) -> bool {
        self.0 & flag.0 != 0
    }

    pub fn add(&mut self, flag: StackFlags) {
        self.0 |= flag.0;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PoolOrigin {
    Default = 0,
    Created = 1,
    Imported = 2,
}
