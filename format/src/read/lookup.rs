//! Reads single definitions of a trace by their file offset. Only the windows that hold them are read.

use super::definitions::{Pending, first_part};
use super::found::Window;
use super::scan::{Findings, Raw, Scan};
use super::tail::header_at;
use crate::header::HEADER_BYTES;
use crate::record::code;
use crate::record::definition::Definition;
use crate::window::{SLOT, WindowKind, slot_offset};

/// Greatest number of consecutive definition windows that are searched for the parts of one definition.
const MAX_WINDOWS: usize = 8;
/// Number of first definition windows in which a definition of unknown offset is searched.
const EARLY: usize = 2;
/// Greatest number of windows in the cache.
const KEPT: usize = 32;

/// Reads single definitions of a file. `read` fills the buffer with the file's bytes from an offset on, and returns
/// whether it succeeded.
pub struct Lookup<'a, R> {
    read: R,
    slots: &'a [u32],
    kept: Vec<(Window, Vec<u8>)>,
}

impl<'a, R: FnMut(u64, &mut [u8]) -> bool> Lookup<'a, R> {
    /// `slots`: the slots of the file's definition windows, by sequence number. Each window has one slot.
    pub fn new(slots: &'a [u32], read: R) -> Lookup<'a, R> {
        Lookup { read, slots, kept: Vec::new() }
    }

    /// The definition whose first record is at this file offset. `None`: there is none, or it cannot be read.
    pub fn at(&mut self, offset: u64) -> Option<Definition> {
        let in_grid = offset.checked_sub(HEADER_BYTES as u64)?;
        let slot = u32::try_from(in_grid / SLOT as u64).ok()?;
        let first = self.slots.iter().position(|one| *one == slot)?;
        let mut from = (in_grid % SLOT as u64) as usize;
        let mut pending = Pending::default();
        for index in first..self.slots.len().min(first + MAX_WINDOWS) {
            let (window, bytes) = self.window(index)?;
            let mut scan = Scan::new(bytes, window, from, true);
            while let Some(raw) = scan.next(&mut Findings::default()) {
                let here = window.offset + raw.at as u64;
                if pending.parts == 0 && here != offset {
                    return None;
                }
                if raw.kind == code::PART {
                    if first_part(&raw, here) == offset && pending.add(&raw)? {
                        return pending.definition(&raw);
                    }
                } else if pending.parts == 0 {
                    return raw.definition();
                }
            }
            from = 0;
        }
        None
    }

    /// Searches the first two definition windows of the file. `kind`: a code of [`crate::code`]. `id`: the low 32
    /// bits of the definition's small field. `None`: not found, or it cannot be read.
    pub fn early(&mut self, kind: u8, id: u32) -> Option<Definition> {
        for index in 0..self.slots.len().min(EARLY) {
            let (window, bytes) = self.window(index)?;
            let mut scan = Scan::new(bytes, window, 0, true);
            let found = std::iter::from_fn(|| scan.next(&mut Findings::default()))
                .find(|raw| starts(raw) == Some((kind, id)))
                .map(|raw| window.offset + raw.at as u64);
            if let Some(offset) = found {
                return self.at(offset);
            }
        }
        None
    }

    /// The definition window with this index in `slots`, from the cache or read. `None`: it cannot be read.
    fn window(&mut self, index: usize) -> Option<(&Window, &[u8])> {
        let offset = slot_offset(u64::from(self.slots[index]));
        let known = self.kept.iter().position(|(window, _)| window.offset == offset);
        let at = match known {
            Some(at) => at,
            None => {
                let mut bytes = vec![0; SLOT];
                if !(self.read)(offset, &mut bytes) {
                    return None;
                }
                let header = header_at(&bytes)?;
                if header.kind != WindowKind::Definitions {
                    return None;
                }
                if self.kept.len() == KEPT {
                    self.kept.remove(0);
                }
                let (position, guessed) = (offset, false);
                let window = Window { header, offset, position, guessed, empty: 0 };
                self.kept.push((window, bytes));
                self.kept.len() - 1
            }
        };
        let (window, bytes) = &self.kept[at];
        Some((window, bytes))
    }
}

/// Kind and id of the definition that begins with this record. `None`: the record is a later part.
fn starts(raw: &Raw) -> Option<(u8, u32)> {
    if raw.kind != code::PART {
        return Some((raw.kind, raw.small as u32));
    }
    let small = raw.words().nth(1)?;
    (raw.small >> 16 == 0).then_some((raw.small as u8, small as u32))
}
