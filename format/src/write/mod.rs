//! Writes a trace: appends records to mapped windows.

mod room;
pub mod writer;
