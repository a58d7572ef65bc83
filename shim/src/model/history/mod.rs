//! The history of a process that runs for long: samples of the ledger, which a trace with a limit keeps when the events
//! of the time are erased.
//!
//! A sample is taken once a second at most, at the end of a call. It has the bytes of every stack. Samples are
//! thinned into bins, in three tiers: the whole time since the start in up to 176 bins, of which two become one when
//! there are too many; the last two hours in minutes; the last minute in seconds. A bin has the figures of each device,
//! and tells 64 stacks of each level apart that hold most, and as many that grew most; the rest is one sum. What
//! grew is told by the lowest sample of a stack in a bin, so that memory that comes and goes is no growth.
//!
//! A sample is a bin of one moment: what is added to a bin is another one (`bins.rs`).
//!
//! A bin also has the phases of the program in which a device's memory was highest, four for a device (`phases.rs`).
//!
//! Samples take at most one 200th of the time.
//!
//! The history is written to the trace as a copy of all bins, from time to time (`copy.rs`;
//! `trace_writer/history.rs`). Memory: 96 bytes for each of at most 32,768 stacks, and up to 5 MiB of bins.

mod bins;
mod copy;
mod over_time;
mod phases;
mod sampler;
mod tier;
mod tracks;

#[cfg(test)]
mod tests;

pub use over_time::OverTime;
pub use phases::Phases;
pub use sampler::History;
