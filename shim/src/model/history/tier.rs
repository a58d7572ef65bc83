//! A tier of the history: a row of bins, and the one that is being filled.

use super::bins::{Bin, Row};
use crate::runtime::fallible::TryPush;

/// Rows of a bin that closes, before those that stay are chosen: then the others make room.
const ROWS: usize = 512;

pub(super) struct Tier {
    width_ns: u64,
    /// Most bins.
    most: usize,
    /// Bins are joined when there are too many; in other tiers the oldest goes.
    joins: bool,
    pub(super) bins: Vec<Bin>,
    /// The bin that is being filled.
    pub(super) now: Bin,
    /// It ends with this sample.
    pub(super) closing: bool,
}

impl Tier {
    pub(super) fn new(width_ns: u64, most: usize, joins: bool) -> Tier {
        let (bins, now) = (Vec::new(), Bin::default());
        Tier { width_ns, most, joins, bins, now, closing: false }
    }

    /// The sums of a sample have been read; its stacks are added next.
    pub(super) fn sampled(&mut self, sample: &Bin) {
        self.now.add(sample);
        self.closing = sample.until_ns.saturating_sub(self.now.from_ns) >= self.width_ns;
    }

    /// The row of a stack, in a bin that closes.
    pub(super) fn offer(&mut self, row: Row, most_rows: usize) {
        self.now.push(row);
        if self.now.rows.len() >= ROWS {
            self.now.choose(most_rows);
        }
    }

    /// All stacks of the sample have been added.
    pub(super) fn end_sample(&mut self, most_rows: usize) {
        if !std::mem::take(&mut self.closing) {
            return;
        }
        self.now.choose(most_rows);
        // Without host memory there is no bin.
        let _ = self.now.copy().and_then(|bin| self.bins.try_push(bin));
        let Bin { until_ns, devices, rows, phases, .. } = &mut self.now;
        devices.clear();
        rows.clear();
        phases.clear();
        (self.now.from_ns, self.now.samples) = (*until_ns, 0);
        if self.joins && self.bins.len() >= self.most {
            self.join_two(most_rows);
        } else if self.bins.len() > self.most {
            self.bins.remove(0);
        }
    }

    /// Joins the two neighbours that are shortest together. Later bins are as long.
    fn join_two(&mut self, most_rows: usize) {
        let length = |at: usize| self.bins[at + 1].until_ns.saturating_sub(self.bins[at].from_ns);
        let Some(at) = (0..self.bins.len() - 1).min_by_key(|at| length(*at)) else { return };
        self.width_ns = self.width_ns.max(length(at));
        let next = self.bins.remove(at + 1);
        self.bins[at].join(&next, most_rows);
    }
}
