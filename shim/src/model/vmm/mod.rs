//! Physical memory of the virtual memory management API (cuMemCreate and related functions).
//!
//! Such memory is reference-counted by the driver: it lives while a handle, a mapping, a multicast bind
//! or a tile of a sparse array refers to it, and these end in any order. This module keeps the same
//! count. It calls neither driver, ledger nor file; changes for them are returned as [`Dropped`] and [`Settled`].
//!
//! A reference is dropped *before* the driver's call ([`Object::begin_drop`]) and settled after it
//! ([`Object::settle`]); otherwise another thread could be given the handle or the address first. An
//! object is announced as freed when its last reference is dropped. Its bytes leave the cap's count
//! only when all calls that dropped a reference have returned.

mod objects;
mod state;
mod ties;

#[cfg(test)]
mod model_test;
#[cfg(test)]
mod tests;

pub use objects::{Object, What};
pub use state::{Dropped, Settled, State};
pub use ties::{Owner, Region};
pub use vramtrace_format::address_space::Mapping;

use crate::runtime::lock::Lock;

/// The process's objects. Ledger and file are updated under the lock, so that they get the changes in
/// this order. The driver is never called under it.
pub type Vmm = Lock<State>;
