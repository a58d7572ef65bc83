//! How a call arrives: exported functions, look-ups of functions, and the functions for the Python package.

pub mod exports;
pub mod lookups;
pub mod proc_address;
pub mod python_api;
pub mod python_usage;
