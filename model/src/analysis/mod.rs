//! Analyses of recorded traces. Input: opened traces and their replays ([`crate::replay`]). Output:
//! plain values that `report/` and `cli/` print: holders of memory, leaks, causes of an
//! out-of-memory, fragmentation, predictions for other allocator settings, roles, outliers among
//! ranks, and consistency checks. Sizes are bytes; times are ns since the start of the trace.

mod diagnosis;
pub mod engine_use;
mod engines;
pub mod fits;
mod memory;
pub mod parallel;
mod process;
pub mod roles;
mod runs;
pub mod steps;
mod verdict;
pub mod verify;

pub use diagnosis::{frag, leaks, oom, whatif};
pub use memory::*;
pub use process::{Collect, Ending, NamedHoldings, Process, RolesOf, Wanted, read_all};
pub use runs::ranks::{MergedLeak, merge_leaks, outliers};
pub use runs::{diff, ranks};
pub use verdict::{Verdict, VerdictKind};
