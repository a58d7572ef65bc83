//! How a process is shown.

use crate::analysis::Moment;

/// What of a process is shown.
#[derive(Clone, Copy, Debug)]
pub struct ReportOptions {
    /// How many of the largest live allocations and of the last refusals.
    pub top: usize,
    /// All that is known; else what fits a screen.
    pub full: bool,
    /// The moment to which the process was read.
    pub moment: Moment,
}
