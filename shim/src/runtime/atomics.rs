//! The atomics of what `models/` checks under every order of its threads' steps: there the same sources
//! are compiled over atomics that a model checker controls.

pub use core::hint::spin_loop;
pub use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
