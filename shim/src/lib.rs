//! libvramtrace.so: stands between a CUDA program and its driver.
//!
//! Rooms import downwards only, in this order: [`hooks`] (what happens at each call, and the state
//! of the process), [`oom`], [`trace_writer`], [`capture`], [`interpose`], [`model`], [`driver`],
//! [`config`], [`runtime`].

pub mod capture;
pub mod config;
pub mod driver;
pub mod hooks;
pub mod interpose;
pub mod model;
pub mod oom;
pub mod runtime;
pub mod trace_writer;

#[global_allocator]
static HEAP: runtime::heap::Heap = runtime::heap::Heap::new();
