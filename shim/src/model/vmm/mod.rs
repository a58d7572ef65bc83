//! Physical memory of the virtual memory management API (cuMemCreate and related functions).
//!
//! Such memory is reference-counted by the driver: it lives while a handle, a mapping, a multicast bind
//! or a tile of a sparse array refers to it, and these end in any order. This module keeps the same
//! count. It does not depend on driver, ledger or file; changes for them are returned as a [`Change`].
//!
//! A reference is dropped *before* the driver's call (`Objects::begin_drop`) and settled after it
//! (`Objects::settle`); otherwise another thread could be given the handle or the address first. An
//! object is announced as freed when its last reference is dropped. Its bytes leave the cap's count
//! only when all calls that dropped a reference have returned.

mod objects;
mod reservations;
mod state;
mod ties;

#[cfg(test)]
mod model_test;
#[cfg(test)]
mod tests;

pub use objects::{Change, Object, What};
pub use state::{Dropped, Settled, State};
pub use ties::{Owner, Region};
pub use vramtrace_format::address_space::Mapping;

use crate::model::ledger::Removed;
use crate::runtime::lock::{Guard, Lock};

/// The process's objects. Ledger and file are updated under the lock, so that they get the changes in
/// this order. The driver is never called under it.
pub struct Vmm(Lock<State<Removed>>);

impl Default for Vmm {
    fn default() -> Self {
        Vmm::new()
    }
}

impl Vmm {
    pub fn new() -> Vmm {
        Vmm(Lock::new(State::default()))
    }

    pub fn lock(&self) -> Guard<'_, State<Removed>> {
        self.0.lock()
    }
}
