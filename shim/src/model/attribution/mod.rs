//! Memory that the driver takes beside the program's allocations: how much of it no call explains,
//! and which call made it grow.

pub mod driver_internal;
pub mod unattributed;
