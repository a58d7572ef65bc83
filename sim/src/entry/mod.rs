//! How calls arrive: the exported functions, and look-ups of functions by name.

pub(crate) mod export;
pub(crate) mod resolve;
pub(crate) mod table;
