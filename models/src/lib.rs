//! Sources of the recorder, compiled over loom's atomics: `cargo test --release` in this directory runs
//! each model under every order of its threads' steps (within the bounds of the C11 memory model that
//! loom covers).
//!
//! | model | source |
//! |---|---|
//! | lock | `shim/src/runtime/lock.rs` |
//! | budget of a process, count of a group's member | `shim/src/model/cap/counting.rs` |
//! | room in a window | `format/src/write/room.rs` |
//!
//! The stack interner has no atomics of its own: it lies behind that lock.

#[cfg(test)]
mod tests;

mod atomics {
    pub use loom::sync::atomic::{AtomicU64, Ordering};
    pub use std::sync::atomic::compiler_fence;
}

pub mod runtime;

#[path = "../../shim/src/model/cap/counting.rs"]
pub mod counting;

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
