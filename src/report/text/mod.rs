//! Reports as text, for people.

pub mod diff;
pub mod engine;
pub mod failed;
pub mod fits;
pub mod frag;
mod hints;
pub mod holders;
pub mod layout;
pub mod leaks;
pub mod oom;
mod overview;
pub mod phases;
mod process;
pub mod sampled;
mod sleeps;
pub mod stack;
pub mod steps;
mod sum;
mod torch;
pub mod whatif;

pub use hints::{hints, overview_hints};
pub use overview::{guests, overview};
pub use process::{ReportOptions, details};
