//! Finds the windows of a file: examines its slots in order, and guesses the windows with a damaged header.

use std::ops::Range;

use super::damage::{Damage, DamageKind};
use super::found::Window;
use super::scan::{Findings, Scan};
use crate::header::HEADER_BYTES;
use crate::record::code;
use crate::window::{SLOT, WINDOW_HEADER, WINDOW_MAGIC, WindowHeader, WindowKind, slot_offset};

/// Finds the windows in file order, and adds damage. `data`: the ranges of the file that hold data. `tag`: the file tag
/// of the header page; `None`: the header page is damaged.
pub(super) fn find_windows(
    bytes: &[u8],
    data: &[Range<u64>],
    tag: Option<u64>,
    damage: &mut Vec<Damage>,
) -> Vec<Window> {
    let slots = bytes.len().saturating_sub(HEADER_BYTES).div_ceil(SLOT) as u64;
    let next = |slot| next_data(data, slot).filter(|slot| *slot < slots);
    // Without a header page, the first valid window gives the file tag.
    let first_tag =
        || std::iter::successors(next(0), |slot| next(slot + 1)).find_map(|s| any_window(bytes, s));
    let tag = tag.or_else(first_tag).unwrap_or(0);
    let mut windows: Vec<Window> = Vec::new();
    let mut from = 0;
    while let Some(slot) = next(from) {
        let offset = slot_offset(slot);
        let window = |header| Window { header, offset, position: offset, guessed: false };
        let (found, kind) = match classify_slot(bytes, slot, tag) {
            Slot::Window(header) => (Some(window(header)), None),
            Slot::Unmarked(header) => (Some(window(header)), Some(DamageKind::WindowHeader)),
            Slot::Empty => (None, None),
            Slot::Stray => (None, Some(DamageKind::StrayWindow)),
            Slot::Broken { .. } => {
                (guess(bytes, slot, slots, tag, &windows), Some(DamageKind::WindowHeader))
            }
        };
        let end = found.map_or(slot_offset(slot + 1), |w| offset + w.header.bytes() as u64);
        if let Some(kind) = kind {
            let header_only = found.is_some() && end <= bytes.len() as u64;
            let bytes = if header_only {
                WINDOW_HEADER as u64
            } else {
                end.min(bytes.len() as u64) - offset
            };
            note(damage, Damage { offset, bytes, kind });
        }
        if found.is_some() && end > bytes.len() as u64 {
            let offset = bytes.len() as u64;
            damage.push(Damage { offset, bytes: end - offset, kind: DamageKind::Cut });
        }
        from = slot + found.map_or(1, |window| u64::from(window.header.slots));
        windows.extend(found);
    }
    windows
}

/// The first slot at or after this one that holds data.
fn next_data(data: &[Range<u64>], slot: u64) -> Option<u64> {
    let offset = slot_offset(slot);
    let range = &data.get(data.partition_point(|range| range.end <= offset)..)?.first()?;
    let inside = range.start.saturating_sub(HEADER_BYTES as u64) / SLOT as u64;
    Some(slot.max(inside))
}

/// Bytes at the start of a slot in which the first records are expected: the memory page of the header.
const PAGE: usize = 4096;

/// The content of a slot.
enum Slot {
    Window(WindowHeader),
    /// The window header is valid except for the magic.
    Unmarked(WindowHeader),
    /// Erased, or never used.
    Empty,
    /// The window of another slot or file.
    Stray,
    /// The window header is damaged.
    Broken {
        /// The magic is right.
        marked: bool,
    },
}

fn classify_slot(bytes: &[u8], slot: u64, tag: u64) -> Slot {
    let Some((magic, fixed)) = header_words(bytes, slot) else {
        // A truncated header of zeros is an empty slot, not damage.
        let rest = &bytes[slot_offset(slot) as usize..];
        let empty = rest.iter().all(|byte| *byte == 0);
        return if empty { Slot::Empty } else { Slot::Broken { marked: false } };
    };
    let at = slot_offset(slot) as usize;
    // Records begin right behind the header. Neither an erased window nor one whose writer was killed before it stored
    // the magic has records.
    let page = &bytes[at + WINDOW_HEADER..bytes.len().min(at + PAGE)];
    match WindowHeader::from_words(&fixed) {
        _ if magic == 0 && page.iter().all(|byte| *byte == 0) => Slot::Empty,
        Some(header) if u64::from(header.slot) != slot || header.file != tag => Slot::Stray,
        Some(header) if magic == WINDOW_MAGIC => Slot::Window(header),
        Some(header) => Slot::Unmarked(header),
        None => Slot::Broken { marked: magic == WINDOW_MAGIC },
    }
}

/// Magic and words 1 to 6 of the window header at a slot. `None`: the file ends before them.
fn header_words(bytes: &[u8], slot: u64) -> Option<(u64, [u64; 6])> {
    let at = slot_offset(slot) as usize;
    let bytes = bytes.get(at..at + WINDOW_HEADER)?;
    let mut words = [0; 7];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    let [magic, fixed @ ..] = words;
    Some((magic, fixed))
}

/// The file tag in a valid window header at this slot, whatever its magic.
pub(super) fn any_window(bytes: &[u8], slot: u64) -> Option<u64> {
    let (_, fixed) = header_words(bytes, slot)?;
    let header = WindowHeader::from_words(&fixed)?;
    (u64::from(header.slot) == slot).then_some(header.file)
}

/// Adds damage. Merges it with the last one if they are adjacent and of the same kind.
fn note(damage: &mut Vec<Damage>, more: Damage) {
    match damage.last_mut() {
        Some(last) if last.kind == more.kind && last.offset + last.bytes == more.offset => {
            last.bytes += more.bytes;
        }
        _ => damage.push(more),
    }
}

/// Guesses a window with a damaged header. It extends to the next slot that is empty or holds a window. Its kind is
/// that of its first intact record, and its sequence number the next one of the kind. `None`: it has no intact
/// record.
fn guess(bytes: &[u8], slot: u64, slots: u64, tag: u64, before: &[Window]) -> Option<Window> {
    let mut end = slot + 1;
    while end < slots && matches!(classify_slot(bytes, end, tag), Slot::Broken { marked: false }) {
        end += 1;
    }
    let header = WindowHeader {
        kind: WindowKind::Events,
        slots: u16::try_from(end - slot).unwrap_or(u16::MAX),
        sequence: 0,
        slot: u32::try_from(slot).ok()?,
        base_time_ns: 0,
        file: tag,
    };
    let offset = slot_offset(slot);
    let mut window = Window { header, offset, position: offset, guessed: true };
    let mut scan = Scan::new(window.bytes(bytes), &window, 0, false);
    let first = scan.next(&mut Findings::default())?;
    if first.kind >= code::FIRST_DEFINITION || first.kind == code::PART {
        window.header.kind = WindowKind::Definitions;
    }
    let previous = before.iter().rev().find(|other| other.header.kind == window.header.kind);
    window.header.sequence = previous.map_or(0, |w| w.header.sequence.saturating_add(1));
    Some(window)
}
