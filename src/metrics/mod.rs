//! What `vramtrace metrics` exports and what `vramtrace events` reports: figures of all recorded processes of this
//! node.
//!
//! ```text
//! live pages ─┐
//! passes over traces (passes.rs) ─┼─> figures (collect.rs) ─> bounded series (limits.rs) ─> text (text.rs) ─> server.rs
//! NVML (cards.rs) ─┘            └─> changes.rs
//! ```
//!
//! A scrape reads live pages, and takes what the threads of `passes.rs` and `cards.rs` found last.

pub mod address;
pub mod cards;
pub mod changes;
mod collect;
mod counters;
mod families;
mod labels;
mod limits;
pub mod passes;
mod series;
pub mod server;
mod sources;
mod text;

pub use sources::Sources;
pub use text::Format;
