//! The order in which threads open and close IPC handles: the opens of a handle are counted in the
//! ledger's entry.

use crate::runtime::lock::{Guard, Lock};

pub struct Imports(Lock<()>);

impl Default for Imports {
    fn default() -> Imports {
        Imports(Lock::new(()))
    }
}

impl Imports {
    /// One at a time, until the guard is dropped.
    pub fn order(&self) -> Guard<'_, ()> {
        self.0.lock()
    }
}
