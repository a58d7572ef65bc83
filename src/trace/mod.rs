//! Trace files: opening one, or all of a run, and reading them through the replay.

mod copy;
mod definitions;
mod file;
mod find;
mod holes;
mod stacks;

pub use definitions::{Context, Definitions, Device, Pool, Site, Thread};
pub use file::{DamageFound, Progress, Reading, Trace, Until};
pub use find::{Loaded, TraceError, load};
pub use stacks::{Address, Code, Module, Stack, Stacks};
