//! Physical memory of the virtual memory management API (cuMemCreate and kin).
//!
//! Such memory is reference-counted by the driver: it lives while a handle, a mapping, a multicast
//! bind or a tile of a sparse array refers to it, and these go in any order. This module repeats
//! the count. It knows neither driver, ledger nor file; what changes for them is returned as a
//! [`Change`].
//!
//! A reference is taken away *before* the driver is asked (`Objects::begin_drop`) and settled
//! after its answer (`Objects::settle`): else another thread could be given the handle or the
//! address first. An object is announced as freed when its last reference goes, and its bytes may
//! be given back to the cap only when no call that took a reference away is still under way.

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

/// The process's objects. Ledger and file are updated while the lock is held, so that they see the
/// steps in this order; the driver never is.
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
