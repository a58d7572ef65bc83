//! The atomics of the sources that `models/` checks under every interleaving of threads: there the same
//! sources are compiled with atomics that a model checker controls.

pub use core::hint::spin_loop;
pub use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
