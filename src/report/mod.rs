//! Facts about processes: [`text`] for people, [`json`] for programs. What both say in the same
//! words stands here.

pub mod html;
pub mod json;
mod leak_evidence;
pub mod names;
pub mod oom;
mod segments;
#[cfg(test)]
mod tests;
pub mod text;
pub mod whatif;
pub mod wording;
