//! libvramtrace.so: stands between any CUDA program and its driver.
//!
//! A call's journey is the reading order: [`entry`] -> [`hooks`] -> [`cap`] -> driver ->
//! [`ledger`] -> [`capture`] -> [`recorder`].

pub mod caches;
pub mod cap;
pub mod capture;
pub mod captures;
pub mod config;
pub mod contexts;
pub mod devices;
pub mod entry;
pub mod graphs;
pub mod heap;
pub mod hooks;
pub mod kernels;
pub mod ledger;
pub mod lock;
pub mod observe;
pub mod pools;
pub mod postmortem;
pub mod private;
pub mod process;
pub mod recorder;
pub mod routes;
pub mod say;
pub mod seen;
pub mod striped;
pub mod table;
pub mod vmm;

#[global_allocator]
static HEAP: heap::Heap = heap::Heap::new();
