//! Facts about processes, for people and for programs.

pub mod frag;
mod hints;
pub mod holders;
pub mod json;
pub mod layout;
pub mod leaks;
pub mod oom;
mod overview;
pub mod phases;
mod picture;
mod process;
mod sum;
#[cfg(test)]
mod tests;
pub mod torch;
pub mod whatif;
mod words;

pub use hints::hints;
pub use overview::overview;
pub(crate) use picture::largest_lines;
pub use process::{Shown, details};
