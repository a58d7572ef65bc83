//! The atomics of the source files that `models/` checks. `models/` compiles the same files with the atomics of a model
//! checker.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
