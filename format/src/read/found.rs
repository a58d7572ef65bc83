//! A window that was found in a file.

use crate::record::wire::word_of;
use crate::window::WindowHeader;

/// A window found in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    pub header: WindowHeader,
    /// Byte offset in the file.
    pub offset: u64,
    /// Sort key in the order of writing, in bytes: equal to `offset`, or greater if the window took the slots of an
    /// erased one. It is then at least the end of the preceding window.
    pub position: u64,
    /// The header was damaged and is guessed: `base_time_ns` is 0.
    pub guessed: bool,
    /// Bytes from its start in which no record is: whole lines of a guessed window.
    pub(super) empty: usize,
}

impl Window {
    /// The bytes of the window, up to the end of the file.
    pub(super) fn bytes<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        let start = self.offset as usize;
        &file[start..file.len().min(start + self.header.bytes())]
    }

    /// Whether every byte is published, so that nothing more is written. `bytes`: those of the window.
    pub(super) fn is_complete(&self, bytes: &[u8]) -> bool {
        word_of(bytes, 7) >= self.header.bytes() as u64
    }
}
