//! What the recorder's sources find under this name.

pub mod cap;
