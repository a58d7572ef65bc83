//! Every stack that holds memory, with its lowest and highest samples in the current bin of each tier.

use super::bins::{Key, Row};
use super::sampler::TIERS;
use super::tier::Tier;
use crate::runtime::hash_table::{Slot, Table, spread};

/// Most stacks that are followed. Those beyond are among the others of a bin.
pub(super) const MOST: usize = 1 << 15;

/// The samples of a stack in the current bin of a tier.
#[derive(Clone, Copy)]
struct InBin {
    lowest: u64,
    /// Its bytes at the bin's highest sample.
    highest: u64,
    /// The lowest sample in the bin before.
    before: u64,
}

#[derive(Clone, Copy)]
pub(super) struct Track {
    /// 0: an empty slot.
    key: u64,
    /// The sample that found it last, and the one that was added to its bins last.
    found: u32,
    added: u32,
    /// In the sample `found`.
    bytes: u64,
    bins: [InBin; TIERS],
}

// SAFETY: plain numbers; key 0 is the empty slot.
unsafe impl Slot for Track {
    type Key = u64;

    fn is_empty(&self) -> bool {
        self.key == 0
    }

    fn key(&self) -> u64 {
        self.key
    }

    fn hash(key: u64) -> u64 {
        spread(key)
    }
}

#[derive(Default)]
pub(super) struct Tracks(Table<Track>);

impl Tracks {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds what a call site holds by a stack to a sample. Without host memory the stack is among the others.
    pub(super) fn find(&mut self, key: Key, bytes: u64, sample: u32, tiers: &[Tier; TIERS]) {
        if let Some(track) = self.0.get_mut(key.0) {
            let before = if track.found == sample { track.bytes } else { 0 };
            (track.found, track.bytes) = (sample, before.saturating_add(bytes));
        } else if bytes > 0 && self.0.len() < MOST {
            let bins = std::array::from_fn(|tier| InBin {
                // It held nothing in the samples before.
                lowest: if tiers[tier].now.samples > 0 { 0 } else { u64::MAX },
                highest: 0,
                before: 0,
            });
            let added = sample.wrapping_sub(1);
            let _ = self.0.insert(Track { key: key.0, found: sample, added, bytes, bins });
        }
    }

    /// Adds the sample to the bins of each stack, and its rows to the bins that end with the sample.
    pub(super) fn add(&mut self, sample: u32, tiers: &mut [Tier; TIERS], most_rows: usize) {
        let mut index = 0;
        while index < self.0.capacity() {
            let track = self.0.at_mut(index).filter(|track| track.added != sample);
            if track.is_some_and(|track| track.add(sample, tiers, most_rows)) {
                // The slot has another stack now, or none.
                self.0.clear_at(index, |_| ());
            } else {
                index += 1;
            }
        }
    }
}

impl Track {
    /// True: it holds nothing any more.
    fn add(&mut self, sample: u32, tiers: &mut [Tier; TIERS], most_rows: usize) -> bool {
        self.added = sample;
        let key = Key(self.key);
        let bytes = if self.found == sample { self.bytes } else { 0 };
        let mut is_idle = bytes == 0;
        for (tier, bin) in tiers.iter_mut().zip(&mut self.bins) {
            bin.lowest = bin.lowest.min(bytes);
            if tier.now.rose(key) {
                bin.highest = bytes;
            }
            is_idle &= bin.lowest == 0 && bin.highest == 0 && bin.before == 0;
            if tier.closing {
                let InBin { lowest, highest, before } = *bin;
                let grew = (lowest as i64).saturating_sub(before as i64);
                tier.offer(Row { key, lowest, highest, grew, stays: false }, most_rows);
                *bin = InBin { lowest: u64::MAX, highest: 0, before: lowest };
            }
        }
        is_idle
    }
}
