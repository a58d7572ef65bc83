//! Reports for programs: one file a schema. Keys may be added, none is renamed or removed.

pub mod damage;
pub mod diff;
mod driver_own;
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
mod sleeps;
mod stack;
mod torch;
pub mod tree;
pub mod verify;
pub mod whatif;

/// A figure that is absent where it is 0.
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}
