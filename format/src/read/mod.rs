//! Reads a trace: finds the windows of a file and returns the intact records in them.

pub mod damage;
pub mod definitions;
pub mod events;
#[cfg(test)]
mod examined;
pub mod found;
mod grid;
pub mod lookup;
pub mod reader;
mod scan;
pub mod tail;
