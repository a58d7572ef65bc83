//! Memory that the driver takes beside the program's allocations: how much is not attributed to a call,
//! and which call made it grow.

mod at_peak;
pub mod driver_internal;
pub mod unattributed;
