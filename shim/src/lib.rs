//! libvramtrace.so: the library that is interposed between a CUDA program and its driver.
//!
//! Rooms import downwards only, in this order: [`hooks`] (what happens at each call, and the state
//! of the process), [`trace_writer`], [`capture`], [`interpose`], [`model`], [`driver`],
//! [`config`], [`runtime`].

// Listed in shim/clippy.toml, with their replacements. Tests, and code that builds the text of a
// message, are exempt.
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
// Each reason states what makes one operation sound.
#![cfg_attr(not(test), deny(clippy::multiple_unsafe_ops_per_block))]

pub mod capture;
pub mod config;
pub mod driver;
pub mod hooks;
pub mod interpose;
pub mod model;
pub mod runtime;
pub mod trace_writer;

// Miri and the sanitizers check each block of the heap only where their own allocator gave it.
#[cfg(not(any(miri, sanitized)))]
#[global_allocator]
static HEAP: runtime::heap::Heap = runtime::heap::Heap::empty();
