//! A bin of the history: the figures of a part of the time.

use super::phases;
use crate::model::ledger::KINDS;
use crate::runtime::fallible::{TryPush, list_of};
use crate::runtime::hash_table::NoMemory;
use std::cmp::Reverse;
use vramtrace_format::{DeviceId, HistoryLevel, HistoryPhase, StackId};

/// The driver's memory, and a framework's blocks.
pub(super) const LEVELS: usize = 2;

/// A stack on a device at a level. The highest bit is set, so that 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(pub(super) u64);

impl Key {
    pub(super) fn new(device: DeviceId, of_framework: bool, stack: StackId) -> Key {
        let level = u64::from(of_framework) << 40;
        Key(1 << 63 | level | u64::from(device.0) << 32 | u64::from(stack.0))
    }

    pub(super) fn stack(self) -> StackId {
        StackId(self.0 as u32)
    }

    pub(super) fn device(self) -> DeviceId {
        DeviceId((self.0 >> 32) as u8)
    }

    pub(super) fn level(self) -> usize {
        (self.0 >> 40 & 1) as usize
    }
}

/// A stack in a bin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) lowest: u64,
    /// At the highest sample of its device and level; 0 also where it is not known.
    pub(super) highest: u64,
    /// Of its lowest sample since the bin before.
    pub(super) grew: i64,
    /// Chosen by [`Bin::choose`].
    pub(super) stays: bool,
}

/// A device in a bin.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfDevice {
    pub(super) device: DeviceId,
    pub(super) peak: u64,
    pub(super) refused: [u64; 2],
    pub(super) levels: [HistoryLevel; LEVELS],
    /// At the highest sample of the driver's memory.
    pub(super) kinds: [u64; KINDS],
    /// The highest sample of a level came with what was added last.
    pub(super) rose: [bool; LEVELS],
}

impl OfDevice {
    pub(super) fn new(device: DeviceId) -> OfDevice {
        OfDevice {
            device,
            peak: 0,
            refused: [0; 2],
            levels: [false, true].map(|of_framework| HistoryLevel {
                device,
                of_framework,
                ..HistoryLevel::default()
            }),
            kinds: [0; KINDS],
            rose: [true; LEVELS],
        }
    }

    /// Sums of different stacks cannot be compared, so the others' lowest are the lower of both.
    fn add(&mut self, later: &OfDevice) {
        for (level, more) in later.levels.iter().enumerate() {
            let of = &mut self.levels[level];
            self.rose[level] = more.highest > of.highest;
            if self.rose[level] {
                (of.highest, of.other_highest) = (more.highest, more.other_highest);
            }
            of.lowest = of.lowest.min(more.lowest);
            (of.allocations, of.frees) = (more.allocations, more.frees);
            of.other_stacks = of.other_stacks.max(more.other_stacks);
            of.other_lowest = of.other_lowest.min(more.other_lowest);
            of.other_grew = of.other_grew.saturating_add(more.other_grew);
        }
        if self.rose[0] {
            self.kinds = later.kinds;
        }
        self.peak = self.peak.max(later.peak);
        self.refused = later.refused;
    }
}

/// Also a sample, which has no rows: its stacks are in [`super::tracks`].
#[derive(Debug, Default)]
pub(super) struct Bin {
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
    pub(super) samples: u32,
    pub(super) devices: Vec<OfDevice>,
    /// In ascending order of their keys, once they are chosen.
    pub(super) rows: Vec<Row>,
    /// Of each device those with the highest peaks, highest first, once they are chosen.
    pub(super) phases: Vec<HistoryPhase>,
}

impl Bin {
    pub(super) fn row(&self, key: Key) -> Option<&Row> {
        let at = self.rows.binary_search_by_key(&key, |row| row.key).ok()?;
        Some(&self.rows[at])
    }

    /// Whether the highest sample of the stack's device and level came with what was added last.
    pub(super) fn rose(&self, key: Key) -> bool {
        let of = self.devices.iter().find(|of| of.device == key.device());
        of.is_some_and(|of| of.rose[key.level()])
    }

    /// Adds a later bin, without its rows. Without host memory it lacks devices.
    pub(super) fn add(&mut self, later: &Bin) {
        self.devices.iter_mut().for_each(|of| of.rose = [false; LEVELS]);
        for more in &later.devices {
            match self.devices.iter_mut().find(|of| of.device == more.device) {
                Some(of) => of.add(more),
                None => {
                    let fresh = OfDevice { rose: [true; LEVELS], ..*more };
                    let _ = self.devices.try_push(fresh);
                }
            }
        }
        later.phases.iter().for_each(|row| phases::add(&mut self.phases, *row));
        self.samples = self.samples.saturating_add(later.samples);
        self.until_ns = later.until_ns;
    }

    /// Adds the bin that follows, with its rows.
    pub(super) fn join(&mut self, next: &Bin, most: usize) {
        self.add(next);
        let mut before = std::mem::take(&mut self.rows);
        before.iter_mut().filter(|row| self.rose(row.key)).for_each(|row| row.highest = 0);
        self.rows = before;
        for row in &next.rows {
            let highest = if self.rose(row.key) { row.highest } else { 0 };
            self.push(Row { highest, ..*row });
        }
        self.rows.sort_unstable_by_key(|row| row.key);
        self.rows.dedup_by(|other, row| {
            let is_same = other.key == row.key;
            if is_same {
                row.lowest = row.lowest.min(other.lowest);
                // One of both is 0.
                row.highest = row.highest.max(other.highest);
                row.grew = row.grew.saturating_add(other.grew);
            }
            is_same
        });
        self.choose(most);
        // Without host memory its lists stay as long as those of both.
        if let Ok(shorter) = self.copy() {
            *self = shorter;
        }
    }

    /// Adds the row of a stack. Without host memory it is among the others.
    pub(super) fn push(&mut self, row: Row) {
        if self.rows.try_push(row).is_err() {
            add_to_others(&mut self.devices, &row);
        }
    }

    /// Keeps, of each level, as many of the largest rows and of those that grew most, and a few phases of each device.
    pub(super) fn choose(&mut self, most: usize) {
        let ranks: [fn(&Row) -> u64; 2] =
            [|row| row.highest.max(row.lowest), |row| row.grew.max(0) as u64];
        self.rows.iter_mut().for_each(|row| row.stays = false);
        for rank in ranks {
            self.rows.sort_unstable_by_key(|row| (Reverse(rank(row)), row.key));
            let mut left = [most; LEVELS];
            for row in self.rows.iter_mut().filter(|row| rank(row) > 0) {
                let left = &mut left[row.key.level()];
                row.stays |= *left > 0;
                *left = left.saturating_sub(1);
            }
        }
        let gone = self.rows.iter().filter(|row| !row.stays);
        gone.for_each(|row| add_to_others(&mut self.devices, row));
        self.rows.retain(|row| row.stays);
        self.rows.sort_unstable_by_key(|row| row.key);
        phases::choose(&mut self.phases);
    }

    /// The same, in lists that are no longer than they must be.
    pub(super) fn copy(&self) -> Result<Bin, NoMemory> {
        Ok(Bin {
            devices: list_of(self.devices.len(), self.devices.iter().copied())?,
            rows: list_of(self.rows.len(), self.rows.iter().copied())?,
            phases: list_of(self.phases.len(), self.phases.iter().copied())?,
            ..*self
        })
    }
}

fn add_to_others(devices: &mut [OfDevice], row: &Row) {
    let Some(of) = devices.iter_mut().find(|of| of.device == row.key.device()) else { return };
    let of = &mut of.levels[row.key.level()];
    of.other_stacks += 1;
    of.other_lowest = of.other_lowest.saturating_add(row.lowest);
    of.other_highest = of.other_highest.saturating_add(row.highest);
    of.other_grew = of.other_grew.saturating_add(row.grew);
}
