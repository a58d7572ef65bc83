//! Reports for programs: one file a schema. Keys may be added, none is renamed or removed.

pub mod damage;
mod driver_own;
pub mod frag;
pub mod holders;
pub mod leaks;
pub mod oom;
pub mod phases;
pub mod process;
mod sleeps;
mod stack;
mod torch;
pub mod tree;
pub mod whatif;

/// A figure that is absent where it is 0.
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}
