//! What `vramtrace metrics` exports: figures of all recorded processes of this node.
//!
//! ```text
//! live pages ─┐
//! passes over traces (passes.rs) ─┼─> sources.rs ─> series by labels, bounded (series.rs) ─> text ─> server.rs
//! NVML (cards.rs) ─┘
//! ```
//!
//! A scrape reads live pages, and takes what the threads of `passes.rs` and `cards.rs` found last.

mod cards;
mod families;
mod passes;
mod series;
pub mod server;
mod sources;

pub use sources::Sources;
