//! Replaces the recorder's module of this name.

pub mod cap;
