//! Windows: the pieces of the file that are filled in memory, written, and (events only) erased
//! again.
//!
//! The file is the header page, then a grid of slots; a window takes some slots in a row.

use crate::header::HEADER_BYTES;
use crate::record::word::Check;

/// Unit of the grid.
pub const SLOT: usize = 256 << 10;
/// No record crosses a line, and every line starts with a record: readers resynchronise there.
pub const LINE: usize = 64 << 10;
/// Bytes of a window's own header.
pub const WINDOW_HEADER: usize = 64;
/// "vtwindow", little endian.
pub const WINDOW_MAGIC: u64 = u64::from_le_bytes(*b"vtwindow");

/// File offset of a slot.
pub const fn slot_offset(slot: u64) -> u64 {
    HEADER_BYTES as u64 + slot * SLOT as u64
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WindowKind {
    Events = 1,
    /// Never erased.
    Definitions = 2,
}

/// The header of a window. Everything but the published count is fixed when the window begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowHeader {
    pub kind: WindowKind,
    /// Length in slots.
    pub slots: u16,
    /// Counts the windows of one kind from 0.
    pub sequence: u64,
    /// First slot of the window in the grid.
    pub slot: u32,
    /// About the time of the oldest record, ns since start: 40-bit stamps are unwrapped from here.
    pub base_time_ns: u64,
    /// First 8 bytes of the file's uuid: windows of other files are recognised and skipped.
    pub file: u64,
}

impl WindowHeader {
    pub fn bytes(&self) -> usize {
        self.slots as usize * SLOT
    }

    /// The fixed words after the magic: word 1 to 6, the last being the check.
    pub(crate) fn words(&self) -> [u64; 6] {
        let head = self.kind as u64 | u64::from(self.slots) << 16 | u64::from(self.slot) << 32;
        let mut words = [head, self.sequence, self.base_time_ns, self.file, 0, 0];
        words[5] = window_check(&words);
        words
    }

    /// The start value of the checks of this window's records.
    pub fn check(&self) -> Check {
        Check::of_file(self.file)
    }

    /// Reads words 1 to 6 of a window. `None`: not a sound window header.
    pub(crate) fn from_words(fixed: &[u64; 6]) -> Option<WindowHeader> {
        if fixed[5] != window_check(fixed) {
            return None;
        }
        let kind = match fixed[0] as u8 {
            1 => WindowKind::Events,
            2 => WindowKind::Definitions,
            _ => return None,
        };
        let slots = (fixed[0] >> 16) as u16;
        (slots > 0).then_some(WindowHeader {
            kind,
            slots,
            slot: (fixed[0] >> 32) as u32,
            sequence: fixed[1],
            base_time_ns: fixed[2],
            file: fixed[3],
        })
    }
}

fn window_check(words: &[u64; 6]) -> u64 {
    words[..5].iter().fold(Check::new().word(WINDOW_MAGIC), |sum, word| sum.word(*word)).sum64()
}
