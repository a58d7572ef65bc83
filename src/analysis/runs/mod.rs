//! Several processes or runs beside each other: ranks, the odd one out, what differs.

mod bound;
pub mod diff;
mod leaks;
mod outliers;
pub mod ranks;

pub use bound::Bound;
pub use leaks::{MergedLeak, merge as merge_leaks};
pub use outliers::outliers;
