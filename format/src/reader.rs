//! Reads a trace: what was written whole is given, what is broken is told, nothing panics.

use std::ops::Range;

use crate::code;
use crate::damage::{Damage, DamageKind};
use crate::definitions::{DefinitionCursor, Definitions};
use crate::error::Error;
use crate::events::{Cursor, Events};
use crate::header::{HEADER_BYTES, Header};
use crate::scan::{Findings, Scan};

use crate::window::{SLOT, WINDOW_HEADER, WINDOW_MAGIC, WindowHeader, WindowKind, slot_offset};

/// A trace file in memory, finished or as far as it has been written.
///
/// Opening it looks at the header page and at the windows' headers only. It borrows the bytes; of
/// a file that grows, make a new reader over the longer bytes and go on from a [`Cursor`].
#[derive(Clone, Debug)]
pub struct TraceReader<'a> {
    bytes: &'a [u8],
    header: Header,
    windows: Vec<Window>,
    runs: Vec<Run>,
    damage: Vec<Damage>,
}

/// A window found in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    pub header: WindowHeader,
    /// Byte offset in the file.
    pub offset: u64,
    /// Its header was broken, and this one is a guess: `base_time_ns` is unknown (0).
    pub guessed: bool,
}

/// Event windows that follow each other without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index of the first window in [`TraceReader::event_windows`], and how many.
    pub first: usize,
    pub count: usize,
    /// About when its first event happened.
    pub from_ns: u64,
    /// Events before it are missing: punched out, or lost to damage. What was live at its start
    /// comes from the first whole checkpoint in it.
    pub after_gap: bool,
}

impl<'a> TraceReader<'a> {
    pub fn new(bytes: &'a [u8]) -> Result<TraceReader<'a>, Error> {
        TraceReader::sparse(bytes, std::slice::from_ref(&(0..bytes.len() as u64)))
    }

    /// As [`TraceReader::new`], for a file of which only these ranges hold data, in ascending
    /// order (as `lseek` with `SEEK_DATA` and `SEEK_HOLE` finds them). The rest is not looked at: of
    /// a run of weeks nearly all is punched, and touching each hole takes long and fills the page
    /// cache.
    pub fn sparse(bytes: &'a [u8], data: &[Range<u64>]) -> Result<TraceReader<'a>, Error> {
        let mut damage = Vec::new();
        let page = bytes.first_chunk::<HEADER_BYTES>();
        let page = page.ok_or(Error::TooShort { bytes: bytes.len() as u64 })?;
        let broken = Damage { offset: 0, bytes: HEADER_BYTES as u64, kind: DamageKind::Header };
        let (header, tag) = match Header::from_page(page) {
            Ok((header, true)) => {
                let tag = header.file_tag();
                (header, Some(tag))
            }
            Ok((header, false)) => {
                damage.push(broken);
                (header, None)
            }
            // A trace whose first bytes are broken still has its windows.
            Err(Error::NotATrace) if any_window(bytes, 0).is_some() => {
                damage.push(broken);
                (Header::default(), None)
            }
            Err(error) => return Err(error),
        };
        let windows = find_windows(bytes, data, tag, &mut damage);
        let (mut definitions, mut events): (Vec<_>, Vec<_>) =
            windows.into_iter().partition(|w| w.header.kind == WindowKind::Definitions);
        events.sort_by_key(|window| window.header.sequence);
        definitions.sort_by_key(|window| window.header.sequence);
        let runs = find_runs(&events);
        let windows = events.into_iter().chain(definitions).collect();
        Ok(TraceReader { bytes, header, windows, runs, damage })
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What was broken in the header page and in window headers. Broken records are told by
    /// [`Events::damage`] and [`Definitions::damage`], which meet them.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// In their sequence, which is also their order in the file.
    pub fn event_windows(&self) -> &[Window] {
        let events = self.runs.last().map_or(0, |run| run.first + run.count);
        &self.windows[..events]
    }

    pub fn definition_windows(&self) -> &[Window] {
        &self.windows[self.event_windows().len()..]
    }

    /// Stretches of events without a gap. One in a trace that was never punched.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// From when on every event is there. 0: from the start.
    pub fn history_from_ns(&self) -> u64 {
        self.runs.last().filter(|run| run.after_gap).map_or(0, |run| run.from_ns)
    }

    /// All definitions of the file.
    pub fn definitions(&self) -> Definitions<'_> {
        self.definitions_from(DefinitionCursor::default())
    }

    /// Those after a place reached before, to the end: the writer has ended.
    pub fn definitions_from(&self, cursor: DefinitionCursor) -> Definitions<'_> {
        Definitions::new(self.bytes, self.definition_windows(), cursor, false)
    }

    /// Those after a place reached before, up to the first that is not published yet: the writer
    /// lives. [`Definitions::cursor`] is then where to go on.
    pub fn tail_definitions(&self, cursor: DefinitionCursor) -> Definitions<'_> {
        Definitions::new(self.bytes, self.definition_windows(), cursor, true)
    }

    /// Every event of a file whose writer has ended, across gaps (see [`TraceReader::runs`]).
    pub fn events(&self) -> Events<'_> {
        self.events_from(Cursor::default())
    }

    /// The events of one run.
    pub fn events_of(&self, run: &Run) -> Events<'_> {
        let windows = self.event_windows();
        let last = windows.len().min(run.first + run.count);
        Events::new(self.bytes, &windows[run.first.min(last)..last], Cursor::default(), false)
    }

    /// Those after a place reached before, to the end: the writer has ended.
    pub fn events_from(&self, cursor: Cursor) -> Events<'_> {
        Events::new(self.bytes, self.event_windows(), cursor, false)
    }

    /// Those after a place reached before, up to the first that is not published yet: the writer
    /// lives. [`Events::cursor`] is then where to go on.
    pub fn tail(&self, cursor: Cursor) -> Events<'_> {
        Events::new(self.bytes, self.event_windows(), cursor, true)
    }
}

/// The bytes of a window, as far as the file goes.
pub(crate) fn window_bytes<'a>(bytes: &'a [u8], window: &Window) -> &'a [u8] {
    let start = window.offset as usize;
    &bytes[start..bytes.len().min(start + window.header.bytes())]
}

/// Walks the grid.
fn find_windows(
    bytes: &[u8],
    data: &[Range<u64>],
    tag: Option<u64>,
    damage: &mut Vec<Damage>,
) -> Vec<Window> {
    let slots = bytes.len().saturating_sub(HEADER_BYTES).div_ceil(SLOT) as u64;
    let next = |slot| next_data(data, slot).filter(|slot| *slot < slots);
    // With a broken header page the first sound window tells to which file the others belong.
    let first_tag =
        || std::iter::successors(next(0), |slot| next(slot + 1)).find_map(|s| any_window(bytes, s));
    let tag = tag.or_else(first_tag).unwrap_or(0);
    let mut windows: Vec<Window> = Vec::new();
    let mut from = 0;
    while let Some(slot) = next(from) {
        let offset = slot_offset(slot);
        let (found, kind) = match look_at(bytes, slot, tag) {
            Slot::Window(header) => (Some(Window { header, offset, guessed: false }), None),
            Slot::Unmarked(header) => {
                (Some(Window { header, offset, guessed: false }), Some(DamageKind::WindowHeader))
            }
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

/// The first slot from this one on that holds data.
fn next_data(data: &[Range<u64>], slot: u64) -> Option<u64> {
    let offset = slot_offset(slot);
    let range = &data.get(data.partition_point(|range| range.end <= offset)..)?.first()?;
    let inside = range.start.saturating_sub(HEADER_BYTES as u64) / SLOT as u64;
    Some(slot.max(inside))
}

/// How far behind a slot's begin its first records are looked for: the page that the header is on.
const PAGE: usize = 4096;

/// What begins at a slot.
enum Slot {
    Window(WindowHeader),
    /// All is sound but the magic.
    Unmarked(WindowHeader),
    /// Punched out, or never begun.
    Empty,
    Stray,
    Broken {
        /// At least the magic is right.
        marked: bool,
    },
}

fn look_at(bytes: &[u8], slot: u64, tag: u64) -> Slot {
    let Some((magic, fixed)) = header_words(bytes, slot) else {
        // A cut header is no window, and no damage as long as nothing was in it.
        let rest = &bytes[slot_offset(slot) as usize..];
        let empty = rest.iter().all(|byte| *byte == 0);
        return if empty { Slot::Empty } else { Slot::Broken { marked: false } };
    };
    let at = slot_offset(slot) as usize;
    // Records begin right behind the header. A writer that was killed before it stored the magic
    // had put none there; a punched window has none either.
    let page = &bytes[at + WINDOW_HEADER..bytes.len().min(at + PAGE)];
    match WindowHeader::from_words(&fixed) {
        _ if magic == 0 && page.iter().all(|byte| *byte == 0) => Slot::Empty,
        Some(header) if u64::from(header.slot) != slot || header.file != tag => Slot::Stray,
        Some(header) if magic == WINDOW_MAGIC => Slot::Window(header),
        Some(header) => Slot::Unmarked(header),
        None => Slot::Broken { marked: magic == WINDOW_MAGIC },
    }
}

/// Magic and fixed words of the window header at a slot.
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

/// The file's tag, from a sound window at this slot.
fn any_window(bytes: &[u8], slot: u64) -> Option<u64> {
    let (_, fixed) = header_words(bytes, slot)?;
    let header = WindowHeader::from_words(&fixed)?;
    (u64::from(header.slot) == slot).then_some(header.file)
}

/// Adds damage, joined with the one before where they touch.
fn note(damage: &mut Vec<Damage>, more: Damage) {
    match damage.last_mut() {
        Some(last) if last.kind == more.kind && last.offset + last.bytes == more.offset => {
            last.bytes += more.bytes;
        }
        _ => damage.push(more),
    }
}

/// A window whose header is broken: it reaches up to where another begins or nothing was written;
/// its kind is that of its first whole record, its sequence the next one.
fn guess(bytes: &[u8], slot: u64, slots: u64, tag: u64, before: &[Window]) -> Option<Window> {
    let mut end = slot + 1;
    while end < slots && matches!(look_at(bytes, end, tag), Slot::Broken { marked: false }) {
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
    let mut window = Window { header, offset: slot_offset(slot), guessed: true };
    let mut scan = Scan::new(window_bytes(bytes, &window), &window, 0, false);
    let first = scan.next(&mut Findings::default())?;
    if first.kind >= code::FIRST_DEFINITION || first.kind == code::PART {
        window.header.kind = WindowKind::Definitions;
    }
    let previous = before.iter().rev().find(|other| other.header.kind == window.header.kind);
    window.header.sequence = previous.map_or(0, |w| w.header.sequence.saturating_add(1));
    Some(window)
}

fn find_runs(events: &[Window]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut expected = 0;
    for (index, window) in events.iter().enumerate() {
        let gap = window.header.sequence != expected;
        match runs.last_mut() {
            Some(run) if !gap => run.count += 1,
            _ => runs.push(Run {
                first: index,
                count: 1,
                from_ns: window.header.base_time_ns,
                after_gap: gap,
            }),
        }
        expected = window.header.sequence.saturating_add(1);
    }
    runs
}

/// Published bytes of a window, from its header.
pub(crate) fn published(window_bytes: &[u8]) -> u64 {
    window_bytes.get(56..64).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}
