//! A tier of the history: a row of bins, and the one that is being filled.

use super::best::Best;
use super::bins::{Bin, Key, LEVELS, OfDevice, Row, rank};
use super::phases;
use crate::model::ledger::KINDS;
use crate::runtime::fallible::{MakeRoom, TryPush, list_of};
use crate::runtime::hash_table::NoMemory;
use vramtrace_format::{DeviceId, HistoryPhase};

/// The sums of a device in one sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) device: DeviceId,
    pub(super) peak: u64,
    pub(super) refused: [u64; 2],
    pub(super) bytes: [u64; LEVELS],
    pub(super) calls: [[u64; 2]; LEVELS],
    pub(super) kinds: [u64; KINDS],
}

pub(super) struct Tier {
    width_ns: u64,
    /// Most bins.
    most: usize,
    /// Bins are joined when there are too many; in other tiers the oldest goes.
    joins: bool,
    pub(super) bins: Vec<Bin>,
    /// The bin that is being filled.
    from_ns: u64,
    samples: u32,
    devices: Vec<OfDevice>,
    phases: Vec<HistoryPhase>,
    /// Devices and levels whose sums are higher in this sample than before in the bin.
    higher: Vec<(DeviceId, [bool; LEVELS])>,
    /// The bin ends with this sample.
    closing: bool,
    /// By level and rank.
    best: [[Best<Row>; 2]; LEVELS],
}

impl Tier {
    pub(super) fn new(width_ns: u64, most: usize, joins: bool) -> Tier {
        Tier {
            width_ns,
            most,
            joins,
            bins: Vec::new(),
            from_ns: 0,
            samples: 0,
            devices: Vec::new(),
            phases: Vec::new(),
            higher: Vec::new(),
            closing: false,
            best: Default::default(),
        }
    }

    /// Whether the bin that is being filled has samples before this one.
    pub(super) fn has_samples(&self) -> bool {
        self.samples > 0
    }

    /// Whether this is the highest sample so far of the stack's device and level.
    pub(super) fn is_highest(&self, key: Key) -> bool {
        let of = self.higher.iter().find(|(device, _)| *device == key.device());
        of.is_some_and(|(_, levels)| levels[key.level()])
    }

    pub(super) fn closes(&self) -> bool {
        self.closing
    }

    /// A sample begins: the peaks up to here belong to the bin.
    pub(super) fn began(&mut self, sums: &[Sample]) {
        for sum in sums {
            let known = self.devices.iter_mut().find(|of| of.device == sum.device);
            match known {
                Some(of) => of.peak = of.peak.max(sum.peak),
                // Without host memory the device has no figures in this bin.
                None => {
                    let of = OfDevice { peak: sum.peak, ..OfDevice::new(sum.device) };
                    let _ = self.devices.try_push(of);
                }
            }
        }
    }

    /// What is known of a phase since the sample before.
    pub(super) fn add_phase(&mut self, row: HistoryPhase) {
        phases::add(&mut self.phases, row);
    }

    /// The sums of a sample have been read; its stacks are added next.
    pub(super) fn sampled(&mut self, now_ns: u64, sums: &[Sample]) {
        self.higher.clear();
        for sum in sums {
            let known = self.devices.iter_mut().find(|of| of.device == sum.device);
            let Some(of) = known else { continue };
            let mut is_higher = [false; LEVELS];
            for (level, is_higher) in is_higher.iter_mut().enumerate() {
                let (known, bytes) = (&mut of.levels[level], sum.bytes[level]);
                *is_higher = self.samples == 0 || bytes > known.highest;
                known.lowest = known.lowest.min(bytes);
                known.highest = known.highest.max(bytes);
                known.calls = sum.calls[level];
            }
            if is_higher[0] {
                of.kinds = sum.kinds;
            }
            of.refused = sum.refused;
            let _ = self.higher.try_push((sum.device, is_higher));
        }
        self.closing = now_ns.saturating_sub(self.from_ns) >= self.width_ns;
    }

    /// The row of a stack, in a bin that closes.
    pub(super) fn offer(&mut self, row: Row, most: usize) {
        let level = row.key.level();
        if let Some(of) = self.devices.iter_mut().find(|of| of.device == row.key.device()) {
            of.levels[level].others.add(&row);
        }
        for (by, best) in self.best[level].iter_mut().enumerate() {
            best.offer(rank(&row, by), row, most);
        }
    }

    /// All stacks of the sample have been added.
    pub(super) fn end_sample(&mut self, now_ns: u64) {
        self.samples = self.samples.saturating_add(1);
        if !std::mem::take(&mut self.closing) {
            return;
        }
        // Without host memory there is no bin.
        let _ = self.close(now_ns);
        self.best.iter_mut().flatten().for_each(|best| best.clear());
        (self.from_ns, self.samples) = (now_ns, 0);
        self.devices.clear();
        self.phases.clear();
    }

    fn close(&mut self, now_ns: u64) -> Result<(), NoMemory> {
        let mut rows = Vec::new();
        for row in self.best.iter().flatten().flat_map(Best::iter) {
            rows.try_push(*row)?;
        }
        rows.sort_unstable_by_key(|row: &Row| row.key);
        rows.dedup_by_key(|row| row.key);
        for row in &rows {
            if let Some(of) = self.devices.iter_mut().find(|of| of.device == row.key.device()) {
                of.levels[row.key.level()].others.subtract(row);
            }
        }
        let devices = list_of(self.devices.len(), self.devices.iter().copied())?;
        phases::choose(&mut self.phases);
        let phases = list_of(self.phases.len(), self.phases.iter().copied())?;
        self.bins.make_room()?;
        if self.bins.len() >= self.most && !self.joins {
            self.bins.remove(0);
        }
        let (from_ns, until_ns, samples) = (self.from_ns, now_ns, self.samples);
        self.bins.try_push(Bin { from_ns, until_ns, samples, devices, rows, phases })
    }

    /// Whether bins must be joined.
    pub(super) fn is_full(&self) -> bool {
        self.joins && self.bins.len() >= self.most
    }

    /// Whether there is room for a while.
    pub(super) fn is_roomy(&self) -> bool {
        self.bins.len() <= self.most / 4 * 3
    }

    /// Whether the bin at this place and the next one are together no longer than a bin may be. `None`: there is no next
    /// one.
    pub(super) fn may_join(&self, at: usize) -> Option<bool> {
        let (bin, next) = (self.bins.get(at)?, self.bins.get(at + 1)?);
        Some(next.until_ns.saturating_sub(bin.from_ns) <= self.width_ns)
    }

    /// Joins the bin at this place with the next one.
    pub(super) fn join_at(&mut self, at: usize, most_rows: usize) -> Result<(), NoMemory> {
        let joined = self.bins[at].join(&self.bins[at + 1], most_rows)?;
        self.bins.remove(at + 1);
        self.bins[at] = joined;
        Ok(())
    }

    /// Bins may be twice as long. False: they may be as long as time is.
    pub(super) fn widen(&mut self) -> bool {
        self.width_ns = self.width_ns.saturating_mul(2);
        self.width_ns < u64::MAX
    }
}
