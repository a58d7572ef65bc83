//! Tells the compiler which paths are rare. By itself it takes each side of a branch for as likely as the other: behind a few
//! of them it takes a call's main path for rare, and inlines nothing there.

/// The path that calls this is rare. (Rust 1.95 has `core::hint::cold_path`.)
#[cold]
#[inline(never)]
pub fn rare() {}
