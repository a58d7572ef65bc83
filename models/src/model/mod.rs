//! Replaces the recorder's module of this name.

pub mod cap;

/// A device's peaks.
#[path = "../../../shim/src/model/ledger/peaks.rs"]
pub mod peaks;
#[path = "../../../shim/src/model/pool_readers.rs"]
pub mod pool_readers;
#[path = "../../../shim/src/model/totals_due.rs"]
pub mod totals_due;
