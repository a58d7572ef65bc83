//! Writes blocks, driver allocations and mappings as records of columns when they end.

use std::io::Write;

use vramtrace_format::{DeviceId, Space};

use super::columns::{Columns, FrameKind, address, bytes, zigzag};
use crate::analysis::roles::Role;
use crate::replay::Key;

/// A block or a driver allocation that has not ended, or the part of its life since the last record.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenRecord {
    /// The ordinal of the beginning.
    pub from: u64,
    /// When it was allocated. Key and time together identify an allocation.
    pub time_ns: u64,
    pub size: u64,
    /// The bytes that count in sums.
    pub share: u64,
    /// The index of the owner in [`super::recorded::Recorded::owners`].
    pub owner: u32,
    pub role: Role,
    pub phase: u32,
    /// The ordinal from which it is a framework's segment; 0: it is none.
    pub segment: u64,
    /// Bytes of a block without physical memory.
    pub paused: u64,
    /// It continues a record that was written.
    pub continues: bool,
    /// The owner that made it.
    pub maker: u32,
}

/// A mapping, or a range that is unmapped during a sleep.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenMapping {
    pub from: u64,
    pub size: u64,
    pub object: u64,
    pub device: DeviceId,
    pub segment: u64,
    /// The owner of a range that is unmapped during a sleep. `None`: the range is mapped.
    pub asleep: Option<u32>,
}

/// The writer of records.
pub(super) struct Records<W: Write> {
    pub columns: Columns<W>,
    /// Records of blocks, and of driver allocations, that were written.
    pub written: [u64; 2],
    /// By kind of record: blocks, memory, mappings.
    last_end: [u64; 3],
    last_address: [u64; 3],
}

impl<W: Write> Records<W> {
    pub(super) fn new(out: W) -> Records<W> {
        let columns = Columns::new(out);
        Records { columns, written: [0; 2], last_end: [0; 3], last_address: [0; 3] }
    }

    /// The first two columns of a record. `end`: `None` if it is live at the end of the trace.
    fn end_of(&mut self, frame: usize, from: u64, end: Option<u64>) -> [u64; 2] {
        match end {
            None => [0, from],
            Some(end) => {
                let last = std::mem::replace(&mut self.last_end[frame], end);
                [zigzag(last, end) + 1, end - from]
            }
        }
    }

    /// The address column: the difference from the last address of this kind of record.
    fn address(&mut self, frame: usize, now: u64) -> u64 {
        address(std::mem::replace(&mut self.last_address[frame], now), now)
    }

    /// Writes a block or a driver allocation.
    pub(super) fn write(&mut self, key: Key, open: OpenRecord, end: Option<u64>) {
        let (frame, kind, columns) = match key.space {
            Space::Block => (0, FrameKind::Blocks, 8),
            _ => (1, FrameKind::Memory, 10),
        };
        self.written[frame] += 1;
        // Keys of other spaces are no addresses.
        let is_address = matches!(key.space, Space::Block | Space::Device);
        let [since, life] = self.end_of(frame, open.from, end);
        let values = [
            since,
            life,
            bytes(open.size),
            open.owner.into(),
            self.address(frame, if is_address { key.number } else { 0 }),
            open.role.index() as u64,
            open.phase.into(),
            bytes(open.paused).min(u64::MAX / 2) << 1 | u64::from(open.continues),
            bytes(open.share),
            since_begin(open.segment, open.from),
        ];
        self.columns.push(kind, &values[..columns]);
    }

    /// Writes a mapping or a sleeping range.
    pub(super) fn write_mapping(&mut self, start: u64, open: OpenMapping, end: Option<u64>) {
        let [since, life] = self.end_of(2, open.from, end);
        let at = self.address(2, start);
        let segment = since_begin(open.segment, open.from);
        let owner = open.asleep.map_or(0, |owner| u64::from(owner) + 1);
        let values = [since, life, bytes(open.size), at, open.device.0.into(), segment, owner];
        self.columns.push(FrameKind::Mappings, &values);
    }
}

/// The column *segment*.
fn since_begin(segment: u64, from: u64) -> u64 {
    if segment == 0 { 0 } else { segment - from + 1 }
}
