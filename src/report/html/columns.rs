//! The stream of one process: frames, each of several columns of variable-length numbers.
//!
//! A frame is its kind (one byte), the number of its records, and for each column its length in bytes
//! and its bytes. A number is in LEB128. A difference that may be negative is zigzag-coded first.
//! `web/src/data/stream.ts` reads the stream.
//!
//! An *ordinal* is the number, from 1, of an event that changed something. Moment n is the state after
//! event n. Moment 0 is the state before the first event.
//!
//! | kind | columns |
//! |---|---|
//! | 1 ticks | time since the last event in units of 64 ns |
//! | 2 blocks | end, life, size, owner, address, role, phase, paused |
//! | 3 memory | the same; then share (as a size), segment |
//! | 4 mappings | end, life, size, address, device, segment, owner + 1 if it is asleep, else 0 |
//! | 5 sums | ordinals since the last record, device * 16 + field, difference from the field's last value |
//!
//! - *end*: the difference from the end of the last record of this kind, zigzag-coded, plus 1. 0: it is
//!   live at the end of the trace.
//! - *life*: ordinals from beginning to end. If it is live at the end: the ordinal of its beginning.
//! - *size*: `size / 512 * 2`, or `size * 2 + 1` if 512 does not divide it.
//! - *address*: the difference from the last address of this kind, zigzag-coded: in units of 512 bytes,
//!   times 2; or in bytes, times 2, plus 1, if 512 does not divide both addresses.
//! - *segment*: ordinals from its beginning until it became a framework's segment, plus 1. 0: it is none.
//! - *paused*: the bytes without physical memory, as a size, times 2; plus 1 if the record continues
//!   another one. If memory falls asleep or changes its owner, its record ends and another continues it.

use std::io::{self, Write};

/// The kind of the records in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    Ticks = 1,
    Blocks = 2,
    Memory = 3,
    Mappings = 4,
    Sums = 5,
}

/// The number of columns of each kind.
const COLUMNS: [(FrameKind, usize); 5] = [
    (FrameKind::Ticks, 1),
    (FrameKind::Blocks, 8),
    (FrameKind::Memory, 10),
    (FrameKind::Mappings, 7),
    (FrameKind::Sums, 3),
];

/// Maximum number of records of a frame.
const RECORDS: usize = 16_384;

/// The writer of a stream: collects a frame of each kind, and writes it when it is full.
#[derive(Debug)]
pub(super) struct Columns<W: Write> {
    out: W,
    frames: Vec<Filling>,
    /// The first error of writing. [`Columns::finish`] returns it.
    failed: Option<io::Error>,
}

/// A frame that is not yet written.
#[derive(Debug)]
struct Filling {
    kind: FrameKind,
    records: usize,
    columns: Vec<Vec<u8>>,
}

impl<W: Write> Columns<W> {
    pub(super) fn new(out: W) -> Columns<W> {
        let fill =
            |(kind, columns)| Filling { kind, records: 0, columns: vec![Vec::new(); columns] };
        Columns { out, frames: COLUMNS.map(fill).into(), failed: None }
    }

    /// Adds a record: one value per column.
    pub(super) fn push(&mut self, kind: FrameKind, values: &[u64]) {
        let frame = &mut self.frames[kind as usize - 1];
        debug_assert_eq!(values.len(), frame.columns.len());
        for (column, value) in frame.columns.iter_mut().zip(values) {
            number(column, *value);
        }
        frame.records += 1;
        if frame.records == RECORDS {
            let written = frame.write(&mut self.out);
            self.failed = self.failed.take().or(written.err());
        }
    }

    /// Writes the remaining frames.
    pub(super) fn finish(mut self) -> io::Result<W> {
        for frame in &mut self.frames {
            let written = frame.write(&mut self.out);
            self.failed = self.failed.take().or(written.err());
        }
        self.failed.map_or(Ok(self.out), Err)
    }
}

impl Filling {
    /// Writes the frame if it has records, and empties it.
    fn write(&mut self, out: &mut impl Write) -> io::Result<()> {
        if self.records == 0 {
            return Ok(());
        }
        let mut head = vec![self.kind as u8];
        number(&mut head, self.records as u64);
        out.write_all(&head)?;
        for column in &mut self.columns {
            head.clear();
            number(&mut head, column.len() as u64);
            out.write_all(&head)?;
            out.write_all(column)?;
            column.clear();
        }
        self.records = 0;
        Ok(())
    }
}

/// Appends a number in LEB128.
fn number(column: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        column.push(value as u8 | 0x80);
        value >>= 7;
    }
    column.push(value as u8);
}

/// A difference, zigzag-coded: a small difference of either sign becomes a small number.
pub(super) fn zigzag(before: u64, now: u64) -> u64 {
    let difference = now.wrapping_sub(before) as i64;
    ((difference << 1) ^ (difference >> 63)) as u64
}

/// The code of a size in bytes. Most sizes are multiples of 512.
pub(super) fn bytes(value: u64) -> u64 {
    match value % 512 {
        0 => value / 512 * 2,
        // No request is that large, but a damaged file may contain any number.
        _ => value.min(u64::MAX / 2) * 2 + 1,
    }
}

/// The code of the difference of two addresses, in units of 512 bytes if both are multiples.
pub(super) fn address(before: u64, now: u64) -> u64 {
    match (before | now) % 512 {
        0 => zigzag(before / 512, now / 512) << 1,
        _ => zigzag(before, now) << 1 | 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_differences_are_short() {
        let encoded = |value| {
            let mut column = Vec::new();
            number(&mut column, value);
            column
        };
        assert_eq!(encoded(0), [0]);
        assert_eq!(encoded(300), [0xac, 2]);
        assert_eq!(encoded(u64::MAX).len(), 10);
        assert_eq!([zigzag(5, 5), zigzag(5, 6), zigzag(6, 5)], [0, 2, 1]);
        assert_eq!(zigzag(0, u64::MAX), 1, "it wraps around");
        assert_eq!([bytes(0), bytes(1024), bytes(513)], [0, 4, 1027]);
        assert_eq!([address(512, 1536), address(512, 1)], [8, zigzag(512, 1) << 1 | 1]);
    }

    #[test]
    fn frames_are_written_when_they_are_full() {
        let mut columns = Columns::new(Vec::new());
        for n in 0..RECORDS as u64 + 1 {
            columns.push(FrameKind::Ticks, &[n % 3]);
        }
        let first = columns.out.len();
        assert_eq!(columns.out[0], FrameKind::Ticks as u8);
        let all = columns.finish().unwrap();
        assert_eq!(all[first..], [1, 1, 1, (RECORDS % 3) as u8]);
    }
}
