//! libvramtrace.so: stands between any CUDA program and its driver.
//!
//! A call's journey is the reading order: [`entry`] -> [`hooks`] -> [`cap`] -> driver ->
//! [`ledger`] -> [`capture`] -> [`recorder`].

pub mod cap;
pub mod ledger;
pub mod lock;
pub mod table;
pub mod vmm;
