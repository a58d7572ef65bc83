//! `report --html`: a run as one page that needs no network, no server and no other file.
//!
//! The page is a program (`web/`, built into `assets/page.html`) and data. The data is a document of
//! facts, the same that the commands print as JSON, and for each process a stream of columns
//! (`columns`): every block with its beginning, end, size, address and owner. The page sums them up
//! for any moment by the rules of [`crate::analysis::Holdings`].
//!
//! ```text
//! trace -> recorder (an Observer) -> columns -> deflate -> base64 -> <script type="...">
//! ```
//!
//! Memory is bounded by the live set: a block is written when it is freed. If a run has more blocks
//! than [`LIMIT`], the page has the small ones as sums over time, and says so.

mod columns;
mod document;
mod phases;
mod recorded;
mod recorder;
mod records;
mod second_pass;
mod sleeping;
mod tables;
#[cfg(test)]
mod tests;

pub use document::{PageRun, write};
pub use second_pass::COLLECT;

/// The number of allocations of one process from which small ones are summed up.
pub const LIMIT: u64 = 1_500_000;
