//! Sources of the recorder, compiled over loom's atomics: `cargo test --release` in this directory runs
//! each model under every order of its threads' steps (within the bounds of the C11 memory model that
//! loom covers).
//!
//! | model | source |
//! |---|---|
//! | lock | `shim/src/runtime/lock.rs` |
//! | budget of a process, count of a group's member | `shim/src/model/cap/counting.rs` |
//! | page of a group, a member's requests | `format/src/pages/group.rs`, `shim/src/model/cap/group_share.rs` |
//! | room in a window | `format/src/write/room.rs` |
//! | stacks and their numbers | `shim/src/capture/stack_interner.rs`, behind that lock, into such windows |
//!
//! What these sources import and no model runs (frames of stacks, libraries of a process) stands here as
//! the types alone.

#[cfg(test)]
mod tests;

// The sources of the shim name the format so.
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

/// A window of a line: small enough for every order.
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
