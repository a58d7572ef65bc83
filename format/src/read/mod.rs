//! Reading a trace: finds the windows of a file and gives what is whole in them.

pub mod damage;
pub mod definitions;
pub mod events;
pub mod found;
mod grid;
pub mod lookup;
pub mod reader;
mod scan;
pub mod tail;
