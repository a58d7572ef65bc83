//! Facts about processes, for people and for programs.

mod hints;
pub mod holders;
pub mod json;
mod layout;
pub mod leaks;
mod overview;
mod process;
#[cfg(test)]
mod tests;
pub mod whatif;
mod words;

pub use hints::hints;
pub use overview::overview;
pub use process::{Shown, details};
