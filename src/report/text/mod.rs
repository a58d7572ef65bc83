//! Reports for people.

pub mod frag;
mod heatmap;
mod hints;
pub mod holders;
pub mod layout;
pub mod leaks;
pub mod merged;
pub mod oom;
mod options;
mod overview;
pub mod phases;
mod process;
mod sum;
mod torch;
pub mod whatif;

pub use hints::{hints, overview_hints};
pub use options::ReportOptions;
pub use overview::overview;
pub use process::details;
