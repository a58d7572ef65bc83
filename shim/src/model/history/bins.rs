//! A bin of the history: the figures of a part of the time.

use super::phases;
use crate::model::ledger::KINDS;
use crate::runtime::fallible::{TryPush, list_of, vec_of};
use crate::runtime::hash_table::NoMemory;
use vramtrace_format::{DeviceId, HistoryPhase, StackId};

pub(super) const TIERS: usize = 3;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) lowest: u64,
    /// At the highest sample of its device and level; 0 also where it is not known.
    pub(super) highest: u64,
    /// Of its lowest sample since the bin before.
    pub(super) grew: i64,
}

/// Sums of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) stacks: u64,
    pub(super) lowest: u64,
    pub(super) highest: u64,
    pub(super) grew: i64,
}

impl Sum {
    pub(super) fn add(&mut self, row: &Row) {
        self.stacks += 1;
        self.lowest = self.lowest.saturating_add(row.lowest);
        self.highest = self.highest.saturating_add(row.highest);
        self.grew = self.grew.saturating_add(row.grew);
    }

    pub(super) fn subtract(&mut self, row: &Row) {
        self.stacks = self.stacks.saturating_sub(1);
        self.lowest = self.lowest.saturating_sub(row.lowest);
        self.highest = self.highest.saturating_sub(row.highest);
        self.grew = self.grew.saturating_sub(row.grew);
    }
}

/// The memory of one level of a device in a bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OfLevel {
    pub(super) lowest: u64,
    pub(super) highest: u64,
    /// Allocations and frees since the start.
    pub(super) calls: [u64; 2],
    /// The stacks without a row.
    pub(super) others: Sum,
}

impl Default for OfLevel {
    fn default() -> OfLevel {
        OfLevel { lowest: u64::MAX, highest: 0, calls: [0; 2], others: Sum::default() }
    }
}

/// A device in a bin.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfDevice {
    pub(super) device: DeviceId,
    pub(super) peak: u64,
    pub(super) refused: [u64; 2],
    pub(super) levels: [OfLevel; LEVELS],
    /// At the highest sample of the driver's memory.
    pub(super) kinds: [u64; KINDS],
}

impl OfDevice {
    pub(super) fn new(device: DeviceId) -> OfDevice {
        OfDevice {
            device,
            peak: 0,
            refused: [0; 2],
            levels: [OfLevel::default(); LEVELS],
            kinds: [0; KINDS],
        }
    }
}

#[derive(Debug)]
pub(super) struct Bin {
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
    pub(super) samples: u32,
    pub(super) devices: Vec<OfDevice>,
    /// In ascending order of their keys.
    pub(super) rows: Vec<Row>,
    /// Of each device those with the highest peaks, highest first.
    pub(super) phases: Vec<HistoryPhase>,
}

impl Bin {
    pub(super) fn row(&self, key: Key) -> Option<&Row> {
        let at = self.rows.binary_search_by_key(&key, |row| row.key).ok()?;
        Some(&self.rows[at])
    }

    /// One bin of this one and the next. Sums of different stacks cannot be compared, so the others' lowest are the
    /// lower of both.
    pub(super) fn join(&self, next: &Bin, most: usize) -> Result<Bin, NoMemory> {
        let mut devices: Vec<OfDevice> = vec_of(self.devices.len() + next.devices.len())?;
        for of in &self.devices {
            devices.try_push(*of)?;
        }
        // Of which bin the highest sample is, by device and level.
        let mut higher: Vec<(DeviceId, [bool; LEVELS])> = vec_of(next.devices.len())?;
        for later in &next.devices {
            let Some(of) = devices.iter_mut().find(|of| of.device == later.device) else {
                devices.try_push(*later)?;
                higher.try_push((later.device, [true; LEVELS]))?;
                continue;
            };
            let mut is_later = [false; LEVELS];
            for (level, is_later) in is_later.iter_mut().enumerate() {
                let (sum, add) = (&mut of.levels[level], &later.levels[level]);
                *is_later = add.highest > sum.highest;
                if *is_later {
                    (sum.highest, sum.others.highest) = (add.highest, add.others.highest);
                }
                sum.lowest = sum.lowest.min(add.lowest);
                sum.calls = add.calls;
                sum.others.stacks = sum.others.stacks.max(add.others.stacks);
                sum.others.lowest = sum.others.lowest.min(add.others.lowest);
                sum.others.grew = sum.others.grew.saturating_add(add.others.grew);
            }
            if is_later[0] {
                of.kinds = later.kinds;
            }
            of.peak = of.peak.max(later.peak);
            of.refused = later.refused;
            higher.try_push((of.device, is_later))?;
        }
        let is_later = |key: Key| {
            let of = higher.iter().find(|(device, _)| *device == key.device());
            of.is_some_and(|(_, levels)| levels[key.level()])
        };
        let mut rows: Vec<Row> = vec_of(self.rows.len() + next.rows.len())?;
        let (mut before, mut after) = (self.rows.as_slice(), next.rows.as_slice());
        loop {
            let row = match (before.first(), after.first()) {
                (Some(a), Some(b)) if a.key == b.key => {
                    (before, after) = (&before[1..], &after[1..]);
                    let highest = if is_later(a.key) { b.highest } else { a.highest };
                    let grew = a.grew.saturating_add(b.grew);
                    Row { key: a.key, lowest: a.lowest.min(b.lowest), highest, grew }
                }
                (Some(a), b) if b.is_none_or(|b| a.key < b.key) => {
                    before = &before[1..];
                    Row { highest: if is_later(a.key) { 0 } else { a.highest }, ..*a }
                }
                (_, Some(b)) => {
                    after = &after[1..];
                    Row { highest: if is_later(b.key) { b.highest } else { 0 }, ..*b }
                }
                _ => break,
            };
            rows.try_push(row)?;
        }
        let (from_ns, until_ns) = (self.from_ns, next.until_ns);
        let samples = self.samples.saturating_add(next.samples);
        let mut phases = list_of(self.phases.len(), self.phases.iter().copied())?;
        next.phases.iter().for_each(|row| phases::add(&mut phases, *row));
        phases::choose(&mut phases);
        let mut bin = Bin { from_ns, until_ns, samples, devices, rows, phases };
        bin.choose(most)?;
        Ok(bin)
    }

    /// Keeps, of each level, as many of the largest rows and of those that grew most. The rest is added to the others.
    pub(super) fn choose(&mut self, most: usize) -> Result<(), NoMemory> {
        let mut ranks: Vec<u64> = vec_of(self.rows.len())?;
        // By level and order: the least rank that stays, and how many rows of exactly this rank do.
        let mut least = [[(1, usize::MAX); 2]; LEVELS];
        for (level, least) in least.iter_mut().enumerate() {
            for (by, least) in least.iter_mut().enumerate() {
                ranks.clear();
                for row in self.rows.iter().filter(|row| row.key.level() == level) {
                    ranks.try_push(rank(row, by))?;
                }
                if ranks.len() > most {
                    let (above, at, _) = ranks.select_nth_unstable_by(most - 1, |a, b| b.cmp(a));
                    let larger = above.iter().filter(|rank| **rank > *at).count();
                    *least = (*at, most - larger);
                }
            }
        }
        let devices = &mut self.devices;
        self.rows.retain(|row| {
            let level = row.key.level();
            let mut stays = false;
            for (by, (at, left)) in least[level].iter_mut().enumerate() {
                let rank = rank(row, by);
                let fits = rank > *at || rank == *at && *left > 0;
                *left -= usize::from(rank == *at && *left > 0);
                stays |= rank > 0 && fits;
            }
            let of = devices.iter_mut().find(|of| of.device == row.key.device());
            if let Some(of) = of.filter(|_| !stays) {
                of.levels[level].others.add(row);
            }
            stays
        });
        Ok(())
    }
}

/// What rows are ranked by: 0 bytes, 1 growth.
pub(super) fn rank(row: &Row, by: usize) -> u64 {
    match by {
        0 => row.highest.max(row.lowest),
        _ => row.grew.max(0) as u64,
    }
}
