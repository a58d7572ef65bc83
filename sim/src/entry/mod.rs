//! How calls arrive: the exported functions, and look-ups of functions by name.

pub mod resolve;
pub mod table;
