//! A window as it was found in a file.

use crate::window::WindowHeader;

/// A window found in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    pub header: WindowHeader,
    /// Byte offset in the file.
    pub offset: u64,
    /// Where it comes in the order of its kind: as `offset`, but where it took the place of an
    /// erased one, behind all that came before it.
    pub position: u64,
    /// Its header was broken, and this one is a guess: `base_time_ns` is unknown (0).
    pub guessed: bool,
}

impl Window {
    /// Its bytes, as far as the file goes.
    pub(super) fn bytes<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        let start = self.offset as usize;
        &file[start..file.len().min(start + self.header.bytes())]
    }

    /// Will nothing be written there any more? `bytes`: its own.
    pub(super) fn is_complete(&self, bytes: &[u8]) -> bool {
        published(bytes) >= self.header.bytes() as u64
    }
}

/// Published bytes of a window, from its header.
fn published(window_bytes: &[u8]) -> u64 {
    window_bytes.get(56..64).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}
