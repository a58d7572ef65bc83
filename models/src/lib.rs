//! Sources of the recorder, compiled with loom's atomics. `cargo test --release` in this directory runs
//! each model under every interleaving of its threads (as far as loom covers the C11 memory model).
//!
//! | model | source |
//! |---|---|
//! | lock | `shim/src/runtime/lock.rs` |
//! | budget of a process, count of a group's member | `shim/src/model/cap/counting.rs` |
//! | orders for other limits | `shim/src/model/cap/orders.rs` |
//! | a device's peaks, and a kind's bytes at the last | `shim/src/model/ledger/peaks.rs` |
//! | a request that totals are written, and calls that pass until then | `shim/src/model/totals_due.rs` |
//! | threads that read a pool's figures, and the pool's destruction | `shim/src/model/pool_readers.rs` |
//! | page of a group, a member's requests | `format/src/pages/group.rs`, `shim/src/model/cap/group_share.rs` |
//! | room in a window | `format/src/write/room.rs` |
//! | window of short records, ends of what allows it | `shim/src/trace_writer/short_window.rs` |
//! | stacks and their numbers | `shim/src/capture/stack_interner.rs`, behind that lock, into such windows |
//!
//! Imports of these sources that no model runs (frames of stacks, libraries of a process) are replaced by
//! types without functions.

#[cfg(test)]
mod tests;

// The shim's sources import the format crate by this name.
extern crate self as vramtrace_format;
pub use pages::{group, member};
pub use plain_format::{Definition, Join, PythonFrame, StackFlags, StackId};

mod atomics {
    pub use crate::runtime::atomics::{AtomicU64, Ordering};
    pub use std::sync::atomic::compiler_fence;
}

pub mod capture;
pub mod runtime;

pub mod model;
pub mod pages;

#[path = "../../format/src/proc.rs"]
pub mod proc;
#[path = "../../format/src/uuid.rs"]
pub mod uuid;

/// A window of one line, small enough to check every interleaving.
pub mod window {
    pub const LINE: usize = 64 + 32;
    pub const WINDOW_HEADER: usize = 64;
}

mod record {
    pub mod word {
        pub const MAX_WORDS: usize = 255;
    }
}

#[path = "../../format/src/write/room.rs"]
pub mod room;

#[path = "../../shim/src/trace_writer/short_window.rs"]
pub mod short_window;
