//! Finds the windows of a file: examines its slots in order, and guesses the windows with a damaged header.

use std::ops::Range;

use super::damage::{Damage, DamageKind};
use super::found::Window;
use super::scan::{Findings, Scan};
use super::tail::header_words;
use crate::header::HEADER_BYTES;
use crate::record::code;
use crate::window::{
    LINE, SLOT, WINDOW_HEADER, WINDOW_MAGIC, WindowHeader, WindowKind, slot_offset,
};

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
    // Of the next windows of each kind.
    let mut sequences = [0; 3];
    while let Some(slot) = next(from) {
        let offset = slot_offset(slot);
        let (position, guessed, empty) = (offset, false, 0);
        let window = |header| Window { header, offset, position, guessed, empty };
        let (found, taken, kind) = match classify_slot(bytes, slot, tag) {
            Slot::Window(header) => (Some(window(header)), header.slots, None),
            Slot::Unmarked(header) => {
                (Some(window(header)), header.slots, Some(DamageKind::WindowHeader))
            }
            Slot::Empty => (None, 1, None),
            Slot::Stray => (None, 1, Some(DamageKind::StrayWindow)),
            Slot::Broken { .. } => {
                let taken = broken(bytes, slot, slots, tag);
                let found = guess(bytes, slot, taken, tag, &sequences);
                (found, taken, Some(DamageKind::WindowHeader))
            }
        };
        let end = slot_offset(slot + u64::from(taken));
        if let Some(kind) = kind {
            let empty = found.filter(|_| end <= bytes.len() as u64).map(|window| window.empty);
            let all = (end.min(bytes.len() as u64) - offset) as usize;
            let bytes = empty.map_or(all, |empty| empty.max(WINDOW_HEADER)) as u64;
            note(damage, Damage { offset, bytes, kind });
        }
        if found.is_some() && end > bytes.len() as u64 {
            let offset = bytes.len() as u64;
            damage.push(Damage { offset, bytes: end - offset, kind: DamageKind::Cut });
        }
        from = slot + u64::from(taken);
        if let Some(WindowHeader { kind, sequence, .. }) = found.map(|window| window.header) {
            sequences[kind as usize] = sequence.saturating_add(1);
        }
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
    let Some((magic, fixed)) = header_words(&bytes[slot_offset(slot) as usize..]) else {
        // A truncated header of zeros is an empty slot, not damage.
        let rest = &bytes[slot_offset(slot) as usize..];
        let empty = rest.iter().all(|byte| *byte == 0);
        return if empty { Slot::Empty } else { Slot::Broken { marked: false } };
    };
    let at = slot_offset(slot) as usize;
    // Records begin right behind the header. Neither an erased window nor one whose writer was killed before it stored
    // the magic has records.
    let page = &bytes[at + WINDOW_HEADER..bytes.len().min(at + PAGE)];
    #[cfg(test)]
    super::examined::add(PAGE);
    match WindowHeader::from_words(&fixed) {
        _ if magic == 0 && page.iter().all(|byte| *byte == 0) => Slot::Empty,
        Some(header) if u64::from(header.slot) != slot || header.file != tag => Slot::Stray,
        Some(header) if magic == WINDOW_MAGIC => Slot::Window(header),
        Some(header) => Slot::Unmarked(header),
        None => Slot::Broken { marked: magic == WINDOW_MAGIC },
    }
}

/// The file tag in a valid window header at this slot, whatever its magic.
pub(super) fn any_window(bytes: &[u8], slot: u64) -> Option<u64> {
    let (_, fixed) = header_words(bytes.get(slot_offset(slot) as usize..)?)?;
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

/// Number of slots from this one on up to the next that is empty or holds a window, at most those of a window.
fn broken(bytes: &[u8], slot: u64, slots: u64, tag: u64) -> u16 {
    let is_broken =
        |slot| matches!(classify_slot(bytes, slot, tag), Slot::Broken { marked: false });
    let behind = (slot + 1..slots).take(usize::from(u16::MAX) - 1);
    1 + behind.take_while(|slot| is_broken(*slot)).count() as u16
}

/// Guesses a window with a damaged header, of so many slots. Its kind is that of its first intact record, and its
/// sequence number the next one of the kind. `None`: it has no intact record, and no part of it has.
fn guess(bytes: &[u8], slot: u64, taken: u16, tag: u64, sequences: &[u64; 3]) -> Option<Window> {
    let header = WindowHeader {
        kind: WindowKind::Events,
        slots: taken,
        sequence: 0,
        slot: u32::try_from(slot).ok()?,
        base_time_ns: 0,
        file: tag,
    };
    let offset = slot_offset(slot);
    let mut window = Window { header, offset, position: offset, guessed: true, empty: 0 };
    let mut scan = Scan::new(window.bytes(bytes), &window, 0, false);
    let first = scan.next(&mut Findings::default())?;
    // They are not searched again.
    window.empty = first.at / LINE * LINE;
    if first.kind >= code::FIRST_DEFINITION || first.kind == code::PART {
        window.header.kind = WindowKind::Definitions;
    }
    window.header.sequence = sequences[window.header.kind as usize];
    Some(window)
}
