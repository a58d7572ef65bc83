//! Reports as JSON, for programs. Keys may be added, none is renamed or removed.

pub mod damage;
pub mod diff;
pub mod fits;
pub mod frag;
pub mod holders;
pub mod leaks;
pub mod oom;
pub mod phases;
pub mod process;
pub mod ps;
pub mod ranks;
pub mod run;
#[cfg(test)]
mod schemas;
mod torch;
pub mod tree;
pub mod verify;
pub mod whatif;
