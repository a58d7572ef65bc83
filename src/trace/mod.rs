//! Trace files: finds and opens one, or all of a run, and reads their definitions, their tail and their
//! summary. Also writes the traces of `vramtrace import`.

mod compressed;
mod copy;
mod definitions;
mod file;
mod find;
mod holes;
mod name;
mod own;
mod process;
mod runs;
mod sites;
mod stacks;
mod summary;
mod tail;
mod tail_place;
mod write;

pub use compressed::is_compressed_trace;
pub use definitions::{
    Definitions, DeviceInfo, IMPORT, IMPORT_TIMES, NO_TIMES, PoolInfo, Site, TORCH_VERSION,
    ThreadInfo,
};
pub use file::{DamageFound, OpenError, Trace};
pub use find::{EXTENSION, LoadedTraces, TraceError, is_trace, load};
pub use name::process_name;
pub use process::{host_name, is_this_host};
pub use stacks::{Address, Code, Module, Stack, Stacks};
pub use summary::{DeviceSummary, EndSummary, LastTotals};
pub use tail::merge;
pub use write::{TraceWriter, WriterMemory};
