//! The atomics of the sources that `models/` checks: there the same sources are compiled with atomics
//! that a model checker controls.

pub use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
