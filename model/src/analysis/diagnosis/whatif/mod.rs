//! Predicts the memory that a recorded run would take under other settings of PyTorch's allocator.
//!
//! [`Recorded`] reads the requests from a trace in one pass. [`predict`] replays them under each setting
//! and capacity, and ranks the results.

mod caveats;
mod obstacles;
mod predict;
mod recorded;
mod stream_pools;

pub use obstacles::{NOT_OF_A_MOMENT, NOT_OF_SAMPLES, why_no_blocks};
pub use predict::{
    AtCapacity, Capacity, GRID, LARGEST_DEVICE, NoFit, Origin, Prediction, Setting, capacities_of,
    predict,
};
pub use recorded::{InForce, Recorded, RequestSource};

#[cfg(test)]
mod stream_pool_tests;
#[cfg(test)]
mod tests;
