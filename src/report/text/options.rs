//! Options of the report on a process.

use crate::analysis::Moment;

/// What the report on a process contains.
#[derive(Clone, Copy, Debug)]
pub struct ReportOptions {
    /// The most rows of each table: largest live allocations, last refusals, holders.
    pub top: usize,
    /// All tables; otherwise only what fits one screen.
    pub full: bool,
    /// The moment up to which the trace was replayed.
    pub moment: Moment,
}
