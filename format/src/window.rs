//! Windows: the sections of the file. A window is filled in memory, then written to the file; event windows may be
//! erased later.
//!
//! The file is the header page, then slots of 256 KiB. A window takes one or more consecutive slots.

use crate::header::HEADER_BYTES;
use crate::record::word::Check;
use crate::scalar::numbered_enum;

/// Length of a slot, in bytes.
pub const SLOT: usize = 256 << 10;
/// Length of a line, in bytes. No record crosses a line boundary, so a reader can resynchronise at every line.
pub const LINE: usize = 64 << 10;
const _: () = assert!(SLOT.is_multiple_of(2 * LINE), "the middle of a window is the end of a line");
/// Length of a window's header, in bytes.
pub const WINDOW_HEADER: usize = 64;
/// The first word of a window: "vtwindow", little endian.
pub const WINDOW_MAGIC: u64 = u64::from_le_bytes(*b"vtwindow");

/// File offset of a slot, in bytes.
pub const fn slot_offset(slot: u64) -> u64 {
    HEADER_BYTES as u64 + slot * SLOT as u64
}

numbered_enum! {
    /// The kind of records that a window holds.
    pub enum WindowKind {
        /// Erased when the file reaches its limit.
        Events = 1,
        /// Never erased.
        Definitions = 2,
    }
}

/// The header of a window, without the magic and the count of published bytes. It is fixed when the window begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowHeader {
    pub kind: WindowKind,
    /// Length in slots.
    pub slots: u16,
    /// Number of the window among the windows of its kind, from 0.
    pub sequence: u64,
    /// Number of the window's first slot in the file.
    pub slot: u32,
    /// Approximate time of the oldest record, in ns since start. The 40-bit timestamps of the records are extended
    /// from it.
    pub base_time_ns: u64,
    /// First 8 bytes of the file's uuid ([`crate::Header::file_tag`]): a reader skips windows of other files.
    pub file: u64,
}

impl WindowHeader {
    /// Length of the window, in bytes.
    pub fn bytes(&self) -> usize {
        self.slots as usize * SLOT
    }

    /// Words 1 to 6 of the window. Word 6 is the check.
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

    /// Reads words 1 to 6 of a window. `None`: not a valid window header.
    pub(crate) fn from_words(fixed: &[u64; 6]) -> Option<WindowHeader> {
        if fixed[5] != window_check(fixed) {
            return None;
        }
        let kind = WindowKind::from_u8(fixed[0] as u8)?;
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
