//! Reports on traces: [`text`] for people, [`json`] for programs, [`html`] for a browser. The files
//! beside these folders hold what several of them use.

pub mod html;
pub mod json;
pub mod names;
pub mod oom;
mod segments;
pub mod shell;
#[cfg(test)]
mod tests;
pub mod text;
mod verdict;
pub mod wording;

pub use verdict::{WordedVerdict, holder_line};
