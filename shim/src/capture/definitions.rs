//! Where definitions of stacks, code and libraries go.

use vramtrace_format::Definition;

/// Where a definition stands in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefinitionLocation {
    /// The byte of the file.
    At(u64),
    /// Among the first, which were kept until the file opened.
    Early,
}

/// Takes definitions, in the order in which they are given.
pub trait DefinitionSink {
    /// Whether definitions are written, now or when the file opens.
    fn is_recording(&self) -> bool;
    /// Writes a definition. `None`: nothing is recorded.
    fn define_located(&self, definition: &Definition) -> Option<DefinitionLocation>;
}
