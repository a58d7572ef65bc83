//! Reports as JSON, for programs. Keys may be added, none is renamed or removed.

pub mod damage;
pub mod diff;
mod driver_own;
mod engine;
pub mod event;
pub mod fits;
pub mod frag;
pub mod holders;
pub mod in_use;
pub mod leaks;
pub mod oom;
pub mod phases;
pub mod process;
pub mod ps;
pub mod ranks;
pub mod run;
mod sampled;
#[cfg(test)]
mod schemas;
mod sleeps;
pub mod steps;
mod torch;
pub mod tree;
pub mod verify;
pub mod whatif;
