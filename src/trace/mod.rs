//! Trace files: finds and opens one, or all of a run, with their tails. Also writes the traces of `vramtrace import`.
//! What is in an opened trace: [`vramtrace_model::trace`].

mod compressed;
mod copy;
mod find;
mod holes;
mod open;
mod own;
mod process;
mod runs;
mod tail;
mod tail_place;
mod write;

pub use compressed::is_compressed_trace;
pub use copy::{append, copy_with};
pub use find::{EXTENSION, LoadedTraces, TraceError, is_trace, load};
pub use open::{OpenError, open, open_of};
pub use own::header_of;
pub use process::{host_name, is_this_host};
pub use tail::merge;
pub use vramtrace_model::trace::*;
pub use write::{TraceWriter, WriterMemory};
