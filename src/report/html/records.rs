//! Writes what has ended as records of columns.

use std::io::Write;

use vramtrace_format::{DeviceId, Space};

use super::columns::{Columns, FrameKind, address, bytes, zigzag};
use crate::analysis::roles::Role;
use crate::replay::Key;

#[derive(Clone, Copy, Debug)]
pub struct Open {
    pub from: u64,
    /// When it was made: with its key it names an allocation.
    pub time_ns: u64,
    pub size: u64,
    pub share: u64,
    pub owner: u32,
    pub lane: u64,
    pub role: Role,
    pub phase: u32,
    /// From when on it is a framework's segment; 0: it is none.
    pub segment: u64,
    /// Bytes of a block without memory below them.
    pub paused: u64,
    /// It goes on from a record that ended.
    pub continues: bool,
    /// The owner that made it.
    pub maker: u32,
    /// It was unmapped and may come back.
    pub slept: bool,
}

impl Open {
    /// The same from another moment on.
    pub fn again(self, from: u64) -> Open {
        let segment = if self.segment > 0 { from } else { 0 };
        Open { from, segment, continues: true, ..self }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct OpenMapping {
    pub from: u64,
    pub size: u64,
    pub object: u64,
    pub device: DeviceId,
    pub segment: u64,
    /// Whose it is while nothing is mapped there.
    pub asleep: Option<u32>,
}

pub struct Records<W: Write> {
    pub columns: Columns<W>,
    /// How many were written.
    pub blocks: u64,
    pub memory: u64,
    last_end: [u64; 3],
    last_address: [u64; 3],
}

impl<W: Write> Records<W> {
    pub fn new(out: W) -> Records<W> {
        let columns = Columns::new(out);
        Records { columns, blocks: 0, memory: 0, last_end: [0; 3], last_address: [0; 3] }
    }

    /// `end`: `None` where it is live at the end.
    fn end_of(&mut self, frame: usize, from: u64, end: Option<u64>) -> [u64; 2] {
        match end {
            None => [0, from],
            Some(end) => {
                let last = std::mem::replace(&mut self.last_end[frame], end);
                [zigzag(last, end) + 1, end - from]
            }
        }
    }

    fn address(&mut self, frame: usize, now: u64) -> u64 {
        address(std::mem::replace(&mut self.last_address[frame], now), now)
    }

    fn write_block(&mut self, number: u64, open: Open, end: Option<u64>) {
        let [since, life] = self.end_of(0, open.from, end);
        let at = self.address(0, number);
        let (owner, role, phase) = (open.owner.into(), open.role.index() as u64, open.phase.into());
        let paused = paused(&open);
        let values = [since, life, bytes(open.size), owner, at, open.lane, role, phase, paused];
        self.columns.push(FrameKind::Blocks, &values);
        self.blocks += 1;
    }

    fn write_memory(&mut self, key: Key, open: Open, end: Option<u64>) {
        let [since, life] = self.end_of(1, open.from, end);
        // Other spaces have numbers in place of addresses.
        let number = if key.space == Space::Device { key.number } else { 0 };
        let at = self.address(1, number);
        let (owner, role, phase) = (open.owner.into(), open.role.index() as u64, open.phase.into());
        let segment = match open.segment {
            0 => 0,
            from => from - open.from + 1,
        };
        let (size, share) = (bytes(open.size), bytes(open.share));
        let paused = paused(&open);
        let values = [since, life, size, owner, at, open.lane, role, phase, paused, share, segment];
        self.columns.push(FrameKind::Memory, &values);
        self.memory += 1;
    }

    pub fn write(&mut self, key: Key, open: Open, end: Option<u64>) {
        match key.space {
            Space::Block => self.write_block(key.number, open, end),
            _ => self.write_memory(key, open, end),
        }
    }

    pub fn write_mapping(&mut self, start: u64, open: OpenMapping, end: Option<u64>) {
        let [since, life] = self.end_of(2, open.from, end);
        let at = self.address(2, start);
        let segment = match open.segment {
            0 => 0,
            from => from - open.from + 1,
        };
        let owner = open.asleep.map_or(0, |owner| u64::from(owner) + 1);
        let values = [since, life, bytes(open.size), at, open.device.0.into(), segment, owner];
        self.columns.push(FrameKind::Mappings, &values);
    }
}

fn paused(open: &Open) -> u64 {
    bytes(open.paused).min(u64::MAX / 2) << 1 | u64::from(open.continues)
}

/// How a block is named.
pub fn block(number: u64) -> Key {
    Key { space: Space::Block, number }
}
