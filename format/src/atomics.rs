//! The atomics of what `models/` checks: there the same sources are compiled over atomics that a model
//! checker controls.

pub use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
