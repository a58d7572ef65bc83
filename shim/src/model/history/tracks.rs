//! Every stack that holds memory, with its lowest and highest samples in the current bin of each tier.

use super::bins::{Key, Row, TIERS};
use super::tier::Tier;
use crate::model::ledger::Held;
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
    /// Bytes in the sample `found`, and bytes and allocations at the device's highest peak.
    bytes: u64,
    at_peak: [u64; 2],
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
    pub(super) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds what a call site holds by a stack to a sample. Without host memory the stack is among the others.
    pub(super) fn find(&mut self, key: Key, held: &Held, sample: u32, tiers: &[Tier; TIERS]) {
        let Held { bytes, at_peak, .. } = *held;
        if let Some(track) = self.0.get_mut(key.0) {
            if track.found != sample {
                (track.found, track.bytes, track.at_peak) = (sample, 0, [0; 2]);
            }
            track.bytes = track.bytes.saturating_add(bytes);
            for (sum, more) in track.at_peak.iter_mut().zip(at_peak) {
                *sum = sum.saturating_add(more);
            }
            return;
        }
        if bytes == 0 && at_peak[0] == 0 || self.0.len() >= MOST {
            return;
        }
        let fresh = std::array::from_fn(|tier| InBin {
            // It held nothing in the samples before.
            lowest: if tiers[tier].has_samples() { 0 } else { u64::MAX },
            highest: 0,
            before: 0,
        });
        let added = sample.wrapping_sub(1);
        let track = Track { key: key.0, found: sample, added, bytes, at_peak, bins: fresh };
        let _ = self.0.insert(track);
    }

    /// Adds the sample to the bins of the stack in this slot. `at_peak` receives what it held at the peak, `close` its
    /// row for each bin that ends with the sample.
    /// False: it holds nothing any more, and the slot has another stack now, or none.
    pub(super) fn add(
        &mut self,
        index: usize,
        sample: u32,
        tiers: &[Tier; TIERS],
        mut at_peak: impl FnMut(Key, [u64; 2]),
        mut close: impl FnMut(usize, Row),
    ) -> bool {
        let Some(track) = self.0.at_mut(index).filter(|track| track.added != sample) else {
            return true;
        };
        track.added = sample;
        let key = Key(track.key);
        let is_found = track.found == sample;
        let bytes = if is_found { track.bytes } else { 0 };
        if is_found {
            at_peak(key, track.at_peak);
        }
        let mut is_idle = bytes == 0 && (!is_found || track.at_peak[0] == 0);
        for (at, (tier, bin)) in tiers.iter().zip(&mut track.bins).enumerate() {
            bin.lowest = bin.lowest.min(bytes);
            if tier.is_highest(key) {
                bin.highest = bytes;
            }
            is_idle &= bin.lowest == 0 && bin.highest == 0 && bin.before == 0;
            if tier.closes() {
                let (lowest, highest) = (bin.lowest, bin.highest);
                let grew = (lowest as i64).saturating_sub(bin.before as i64);
                close(at, Row { key, lowest, highest, grew });
                *bin = InBin { lowest: u64::MAX, highest: 0, before: lowest };
            }
        }
        if is_idle {
            self.0.clear_at(index, |_| ());
        }
        !is_idle
    }
}
