//! Trace files: opening one, or all of a run, and reading them through the replay. And writing
//! one that the recorder did not.

mod copy;
mod definitions;
mod file;
mod find;
mod holes;
mod stacks;
mod write;

pub use definitions::{
    Context, Definitions, Device, IMPORT, IMPORT_TIMES, NO_TIMES, Pool, Site, Thread,
};
pub use file::{DamageFound, Progress, Reading, Trace, Until};
pub use find::{Loaded, TraceError, load};
pub use stacks::{Address, Code, Module, Stack, Stacks};
pub use write::{TraceWriter, WriterMemory};
