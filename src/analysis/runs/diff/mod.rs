//! Compares two runs, or two moments of one run: the changes by role, by library and by line.
//!
//! The input is a [`Usage`] of each: the bytes of its devices at one moment, by lines with the names of
//! file and function. These names are the same in other runs, so a saved usage serves as a baseline.
//! Memory in use is compared; the free part of a framework's segments is listed separately.

mod compare;
mod usage;

pub use compare::{Change, Difference, LineChange, compare};
pub use usage::{LineName, LineUse, PlaceUse, Usage};
