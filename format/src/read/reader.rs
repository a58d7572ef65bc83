//! Reads a trace: returns intact records and reports damage. It does not panic, whatever the file holds.

use std::ops::Range;

use super::damage::{Damage, DamageKind};
use super::definitions::Definitions;
use super::events::{Cursor, Events};
use super::found::Window;
use super::grid::{any_window, find_windows};
use crate::error::Error;
use crate::header::{HEADER_BYTES, Header};
use crate::window::{SLOT, WindowKind};

/// A reader of a trace file in memory. The process may still be writing the file.
///
/// Opening reads the header page and the window headers only. The reader borrows the bytes. When the file has grown,
/// create a new reader over the longer bytes and continue from a [`Cursor`].
#[derive(Clone, Debug)]
pub struct TraceReader<'a> {
    bytes: &'a [u8],
    header: Header,
    windows: Vec<Window>,
    runs: Vec<Run>,
    damage: Vec<Damage>,
}

/// Event windows with consecutive sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index of the first window in [`TraceReader::event_windows`]. `count`: number of windows.
    pub first: usize,
    pub count: usize,
    /// Approximate time of the first event, in ns since start.
    pub from_ns: u64,
    /// Events before it are missing: erased or damaged. The live allocations at its start are then known from its first
    /// complete checkpoint.
    pub after_gap: bool,
}

impl<'a> TraceReader<'a> {
    /// Opens a trace. Fails only if the file is too short, is not a trace, or has a newer major version.
    pub fn new(bytes: &'a [u8]) -> Result<TraceReader<'a>, Error> {
        TraceReader::sparse(bytes, std::slice::from_ref(&(0..bytes.len() as u64)))
    }

    /// As [`TraceReader::new`], for a sparse file. `data`: the ranges that hold data, in ascending order, as `lseek`
    /// with `SEEK_DATA` and `SEEK_HOLE` finds them. The other bytes are not read: nearly all of the file of a run of
    /// weeks is holes, and reading them takes long and fills the page cache.
    pub fn sparse(bytes: &'a [u8], data: &[Range<u64>]) -> Result<TraceReader<'a>, Error> {
        let mut damage = Vec::new();
        let page = bytes.first_chunk::<HEADER_BYTES>();
        let page = page.ok_or(Error::TooShort { bytes: bytes.len() as u64 })?;
        let broken = Damage { offset: 0, bytes: HEADER_BYTES as u64, kind: DamageKind::Header };
        let (tag, header) = match Header::from_page(page) {
            Ok((header, sound)) => (Some(header.file_tag()).filter(|_| sound), header),
            // The first bytes are damaged, but the windows are readable.
            Err(Error::NotATrace) if any_window(bytes, 0).is_some() => (None, Header::default()),
            Err(error) => return Err(error),
        };
        if tag.is_none() {
            damage.push(broken);
        }
        let windows = find_windows(bytes, data, tag, &mut damage);
        let (mut definitions, mut events): (Vec<_>, Vec<_>) =
            windows.into_iter().partition(|w| w.header.kind == WindowKind::Definitions);
        events.sort_by_key(|window| window.header.sequence);
        definitions.sort_by_key(|window| window.header.sequence);
        let runs = find_runs(&events);
        // Positions grow with the sequence numbers, also where slots were reused.
        let mut end = 0;
        for window in &mut events {
            window.position = window.offset.max(end);
            end = window.position.saturating_add(window.header.bytes() as u64);
        }
        // With other damage, gaps are expected: they are not reported again.
        if tag.is_some() && damage.is_empty() {
            damage.extend(missing_definitions(&definitions));
            damage.extend(missing_events(&header, &events, &runs, definitions.len()));
        }
        let windows = events.into_iter().chain(definitions).collect();
        Ok(TraceReader { bytes, header, windows, runs, damage })
    }

    /// The header page; its fields may be wrong if it is damaged.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Damage of the header page and of window headers, and missing windows. [`Events::damage`] and
    /// [`Definitions::damage`] report damaged records.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// The event windows, by sequence number. In a file with a size limit, a later window may have taken the slots
    /// of an erased one, so offsets may decrease.
    pub fn event_windows(&self) -> &[Window] {
        let events = self.runs.last().map_or(0, |run| run.first + run.count);
        &self.windows[..events]
    }

    /// The definition windows, by sequence number.
    pub fn definition_windows(&self) -> &[Window] {
        &self.windows[self.event_windows().len()..]
    }

    /// Bytes of the definition windows, also of what is not written yet.
    pub fn definition_bytes(&self) -> u64 {
        self.definition_windows().iter().map(|window| window.header.bytes() as u64).sum()
    }

    /// The runs of event windows without a gap. A trace from which nothing was erased has one.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Whether the event window of a cursor is in the file: no event after the cursor was erased.
    pub fn can_resume(&self, cursor: Cursor) -> bool {
        let windows = self.event_windows();
        let first = windows.partition_point(|window| window.header.sequence < cursor.sequence);
        windows.get(first).is_some_and(|window| {
            window.header.sequence == cursor.sequence && cursor.at <= window.header.bytes() as u64
        })
    }

    /// The places after a cursor where events are missing between two windows, as [`Window::position`].
    pub fn gaps_after(&self, cursor: Cursor) -> impl Iterator<Item = u64> {
        let gaps = self.runs.iter().filter(|run| run.after_gap);
        let windows = gaps.filter_map(|run| self.event_windows().get(run.first));
        let after = windows.filter(move |window| window.header.sequence > cursor.sequence);
        after.map(|window| window.position)
    }

    /// Time from which on every event is in the file, in ns since start. 0: from the start.
    pub fn history_from_ns(&self) -> u64 {
        self.runs.last().filter(|run| run.after_gap).map_or(0, |run| run.from_ns)
    }

    /// All definitions of the file.
    pub fn definitions(&self) -> Definitions<'_> {
        Definitions::new(self.bytes, self.definition_windows())
    }

    /// All events of a file whose writer has ended, across gaps (see [`TraceReader::runs`]).
    pub fn events(&self) -> Events<'_> {
        self.events_from(Cursor::default())
    }

    /// The events of one run.
    pub fn events_of(&self, run: &Run) -> Events<'_> {
        let windows = self.event_windows();
        let last = windows.len().min(run.first + run.count);
        Events::new(self.bytes, &windows[run.first.min(last)..last], Cursor::default(), false)
    }

    /// The events after a cursor, of a file whose writer has ended.
    pub fn events_from(&self, cursor: Cursor) -> Events<'_> {
        Events::new(self.bytes, self.event_windows(), cursor, false)
    }

    /// The events after a cursor, up to the first record that is not published yet, of a file whose writer is running.
    /// Continue from [`Events::cursor`].
    pub fn tail(&self, cursor: Cursor) -> Events<'_> {
        Events::new(self.bytes, self.event_windows(), cursor, true)
    }
}

/// Definition windows are never erased: a gap in their sequence numbers means that the file was truncated.
fn missing_definitions(definitions: &[Window]) -> Option<Damage> {
    let mut expected = 0;
    let behind_gap = definitions.iter().find(|window| {
        let gap = window.header.sequence > expected && !window.guessed;
        expected = window.header.sequence.saturating_add(1);
        gap
    })?;
    Some(Damage { offset: behind_gap.offset, bytes: 0, kind: DamageKind::DefinitionsMissing })
}

/// Event windows are erased when the file reaches its limit. A gap in a smaller file means that it was truncated.
fn missing_events(
    header: &Header,
    events: &[Window],
    runs: &[Run],
    definitions: usize,
) -> Option<Damage> {
    let behind_gap = events.get(runs.iter().find(|run| run.after_gap)?.first)?;
    let largest = events.iter().map(|window| window.header.bytes() as u64).max()?;
    let begun = events.last()?.header.sequence.saturating_add(1).saturating_mul(largest);
    let most = begun.saturating_add((HEADER_BYTES + definitions * SLOT) as u64);
    let erased = header.max_bytes.is_some_and(|limit| most > limit);
    let place = Damage { offset: behind_gap.offset, bytes: 0, kind: DamageKind::EventsMissing };
    (!erased).then_some(place)
}

/// Splits windows, sorted by sequence number, at the gaps.
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
