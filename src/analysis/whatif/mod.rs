//! What other settings of PyTorch's allocator would have done with one recorded run.
//!
//! [`Recorded`] takes the requests out of a trace in one pass; [`predict`] replays them under each
//! setting and capacity, and ranks what came of it.

mod predict;
mod recorded;
mod sharing;

pub use predict::{
    Capacity, GRID, Hopeless, LARGEST_DEVICE, Origin, Prediction, Setting, capacities_of, predict,
};
pub use recorded::{InForce, Recorded, RecordedOoms, why_no_blocks};

#[cfg(test)]
mod tests;
