//! Reports as JSON, for programs. Keys may be added, none is renamed or removed.

mod documents;
pub mod process;
pub mod ps;
pub mod run;
#[cfg(test)]
mod schemas;
mod torch;

pub use documents::*;
