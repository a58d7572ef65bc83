//! How calls arrive: the exported functions, and look-ups of functions by name.

pub mod export;
pub mod resolve;
pub mod table;
