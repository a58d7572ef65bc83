//! Reports for programs: one file a schema. Keys may be added, none is renamed or removed.

pub mod damage;
mod driver_own;
pub mod frag;
pub mod holders;
pub mod leaks;
pub mod oom;
pub mod phases;
pub mod process;
pub mod run;
mod stack;
mod torch;
pub mod whatif;
