//! Reads a trace: what was written whole is given, what is broken is told, nothing panics.

use crate::damage::{Damage, DamageKind};
use crate::definitions::{DefinitionCursor, Definitions};
use crate::error::Error;
use crate::events::{Cursor, Events};
use crate::header::{HEADER_BYTES, Header};
use crate::scan::Scan;
use crate::window::{SLOT, WINDOW_HEADER, WindowHeader, WindowKind, slot_offset};

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
            Err(Error::NotATrace) if first_window(bytes).is_some() => {
                damage.push(broken);
                (Header::default(), None)
            }
            Err(error) => return Err(error),
        };
        let windows = find_windows(bytes, tag, &mut damage);
        let (definitions, events): (Vec<_>, Vec<_>) =
            windows.into_iter().partition(|w| w.header.kind == WindowKind::Definitions);
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

    /// In file order, which is their sequence.
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

enum Slot {
    Window(WindowHeader),
    /// Punched out, or never begun.
    Empty,
    Stray,
    Broken,
}

fn look_at(bytes: &[u8], slot: u64, tag: Option<u64>) -> Slot {
    let at = slot_offset(slot) as usize;
    let Some(bytes) = bytes.get(at..at + WINDOW_HEADER) else { return Slot::Empty };
    let mut words = [0; WINDOW_HEADER / 8];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    match WindowHeader::from_words(&words) {
        Some(header) if u64::from(header.slot) != slot => Slot::Stray,
        Some(header) if tag.is_some_and(|tag| tag != header.file) => Slot::Stray,
        Some(header) => Slot::Window(header),
        // A kill between the header's words and its magic leaves no window either.
        None if words[0] == 0 => Slot::Empty,
        None => Slot::Broken,
    }
}

fn first_window(bytes: &[u8]) -> Option<WindowHeader> {
    match look_at(bytes, 0, None) {
        Slot::Window(header) => Some(header),
        _ => None,
    }
}

/// Walks the grid.
fn find_windows(bytes: &[u8], tag: Option<u64>, damage: &mut Vec<Damage>) -> Vec<Window> {
    let mut windows: Vec<Window> = Vec::new();
    let slots = bytes.len().saturating_sub(HEADER_BYTES).div_ceil(SLOT) as u64;
    let mut slot = 0;
    while slot < slots {
        let offset = slot_offset(slot);
        match look_at(bytes, slot, tag) {
            Slot::Window(header) => {
                let end = offset + header.bytes() as u64;
                if end > bytes.len() as u64 {
                    damage.push(Damage {
                        offset: bytes.len() as u64,
                        bytes: end - bytes.len() as u64,
                        kind: DamageKind::Cut,
                    });
                }
                windows.push(Window { header, offset, guessed: false });
                slot += u64::from(header.slots);
            }
            Slot::Empty => slot += 1,
            Slot::Stray => {
                note_slot(damage, offset, DamageKind::StrayWindow);
                slot += 1;
            }
            Slot::Broken => {
                // It reaches as far as no other window begins and nothing is empty.
                let mut end = slot + 1;
                while end < slots && matches!(look_at(bytes, end, tag), Slot::Broken) {
                    end += 1;
                }
                damage.push(Damage {
                    offset,
                    bytes: WINDOW_HEADER as u64,
                    kind: DamageKind::WindowHeader,
                });
                windows.extend(guess(bytes, slot, end, tag, &windows));
                slot = end;
            }
        }
    }
    windows
}

fn note_slot(damage: &mut Vec<Damage>, offset: u64, kind: DamageKind) {
    match damage.last_mut() {
        Some(last) if last.kind == kind && last.offset + last.bytes == offset => {
            last.bytes += SLOT as u64;
        }
        _ => damage.push(Damage { offset, bytes: SLOT as u64, kind }),
    }
}

/// A window whose header is broken: its kind is that of its first whole record, its sequence the
/// next one.
fn guess(bytes: &[u8], slot: u64, end: u64, tag: Option<u64>, before: &[Window]) -> Option<Window> {
    let offset = slot_offset(slot);
    let slots = u16::try_from(end - slot).ok()?;
    let until = bytes.len().min(slot_offset(end) as usize);
    let mut findings = Default::default();
    let mut scan = Scan::new(&bytes[offset as usize..until], offset, 0, false);
    let first = scan.next(&mut findings)?;
    let definitions = first.kind >= 0x80 || first.kind == crate::code::PART;
    let kind = if definitions { WindowKind::Definitions } else { WindowKind::Events };
    let previous = before.iter().rev().find(|window| window.header.kind == kind);
    let header = WindowHeader {
        kind,
        slots,
        sequence: previous.map_or(0, |window| window.header.sequence.saturating_add(1)),
        slot: slot as u32,
        base_time_ns: 0,
        file: tag.unwrap_or(0),
    };
    Some(Window { header, offset, guessed: true })
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
