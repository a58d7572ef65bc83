//! Memory that the driver takes beside the program's allocations: how much is not attributed to a call,
//! and which call made it grow. And the libraries that hand on the requests of others.

pub mod driver_internal;
pub mod patchers;
pub mod unattributed;
