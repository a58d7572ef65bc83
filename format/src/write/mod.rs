//! Writing a trace: appends records to mapped windows.

pub mod writer;
