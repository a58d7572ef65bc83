//! The features of the file systems that are used. Tests turn some off, to act as others.

#[derive(Clone, Copy, Debug)]
pub struct Means {
    /// A tail beside the trace, where a mapping there is safe.
    pub map: bool,
    /// A tail in memory, where there is none beside the trace.
    pub memory: bool,
    pub punch: bool,
}

impl Means {
    pub const ALL: Means = Means { map: true, memory: true, punch: true };
}
