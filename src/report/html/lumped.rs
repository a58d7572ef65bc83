//! Small allocations that are not listed one by one: their sums by role over time.
//!
//! The role of an allocation is known only when it has ended. The sums are therefore kept in bins of
//! ordinals and written at the end. There are [`BINS`] bins at most: in a long run, a bin has several
//! ordinals.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use vramtrace_format::DeviceId;

use super::columns::{FrameKind, zigzag};
use super::records::Records;
use crate::analysis::roles::Role;
use crate::replay::Key;

/// The most bins per device.
const BINS: usize = 4096;
const ROLES: usize = Role::ALL.len();

/// The change of bytes and of the count of each role within a bin.
type Bin = [(i64, i64); ROLES];

/// Collects small allocations.
#[derive(Debug, Default)]
pub(super) struct Lumped {
    /// Allocations whose role is not yet known, by key and time of allocation.
    waiting: FxHashMap<(Key, u64), Waiting>,
    /// Base-2 logarithm of the ordinals in a bin.
    shift: u32,
    devices: BTreeMap<DeviceId, Vec<Bin>>,
}

/// An allocation whose role is not yet known.
#[derive(Debug)]
struct Waiting {
    device: DeviceId,
    bytes: u64,
    /// The ordinal of its allocation.
    from: u64,
    /// The ordinal of its free. `None`: it is live.
    end: Option<u64>,
}

impl Lumped {
    /// An allocation was made.
    pub(super) fn made(&mut self, of: (Key, u64), device: DeviceId, bytes: u64, from: u64) {
        self.waiting.insert(of, Waiting { device, bytes, from, end: None });
    }

    /// An allocation was freed.
    pub(super) fn freed(&mut self, of: (Key, u64), end: u64) {
        if let Some(waiting) = self.waiting.get_mut(&of) {
            waiting.end = Some(end);
        }
    }

    /// Events are missing: all live allocations end here, because their frees may be lost.
    pub(super) fn end_all(&mut self, end: u64) {
        for waiting in self.waiting.values_mut() {
            waiting.end.get_or_insert(end);
        }
    }

    /// The role of an allocation is now known: adds it to the bins.
    pub(super) fn set_role(&mut self, of: (Key, u64), role: Role) {
        let Some(Waiting { device, bytes, from, end }) = self.waiting.remove(&of) else { return };
        let bytes = bytes.min(1 << 60) as i64;
        self.add(device, from, role, bytes, 1);
        if let Some(end) = end {
            self.add(device, end, role, -bytes, -1);
        }
    }

    /// Adds a change at an ordinal. Doubles the width of the bins until the ordinal has one.
    fn add(&mut self, device: DeviceId, ordinal: u64, role: Role, bytes: i64, count: i64) {
        while ordinal >> self.shift >= BINS as u64 {
            self.shift += 1;
            for bins in self.devices.values_mut() {
                *bins = bins.chunks(2).map(sum).collect();
            }
        }
        let bins = self.devices.entry(device).or_default();
        let bin = (ordinal >> self.shift) as usize;
        if bins.len() <= bin {
            bins.resize(bin + 1, Bin::default());
        }
        let of = &mut bins[bin][role.index()];
        *of = (of.0.saturating_add(bytes), of.1.saturating_add(count));
    }

    /// Writes the changes of each bin that has some.
    pub(super) fn write<W: std::io::Write>(mut self, records: &mut Records<W>) {
        // The remaining allocations never got a role.
        let rest: Vec<(Key, u64)> = self.waiting.keys().copied().collect();
        for of in rest {
            self.set_role(of, Role::Unknown);
        }
        let last = self.devices.values().map(Vec::len).max().unwrap_or(0);
        let mut written = 0;
        for bin in 0..last {
            for (device, bins) in &self.devices {
                let changes = bins.get(bin).into_iter().flatten().enumerate();
                for (role, (bytes, count)) in changes.filter(|(_, change)| **change != (0, 0)) {
                    // A change takes effect at the first ordinal of its bin.
                    let ordinal = (bin as u64) << self.shift;
                    let which = u64::from(device.0) * 64 + role as u64;
                    let [bytes, count] = [*bytes, *count].map(|by| zigzag(0, by as u64));
                    records
                        .columns
                        .push(FrameKind::LumpedRoles, &[ordinal - written, which, bytes, count]);
                    written = ordinal;
                }
            }
        }
    }
}

/// The sum of several bins.
fn sum(bins: &[Bin]) -> Bin {
    let mut all = Bin::default();
    for bin in bins {
        for (sum, by) in all.iter_mut().zip(bin) {
            *sum = (sum.0.saturating_add(by.0), sum.1.saturating_add(by.1));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_hold_what_was_live_whatever_their_width() {
        let mut lumped = Lumped::default();
        let gpu = DeviceId(0);
        for n in 0..10_000u64 {
            let of = (Key::block(n), n);
            lumped.made(of, gpu, 512, n);
            if n % 2 == 0 {
                lumped.freed(of, n + 1);
            }
            lumped.set_role(of, if n % 4 < 2 { Role::Weights } else { Role::Temporary });
        }
        assert!(lumped.devices[&gpu].len() <= BINS && lumped.shift == 2, "{}", lumped.shift);
        let mut all = Bin::default();
        for bin in &lumped.devices[&gpu] {
            all = sum(&[all, *bin]);
        }
        assert_eq!(all[Role::Weights.index()], (2500 * 512, 2500));
        assert_eq!(all[Role::Temporary.index()], (2500 * 512, 2500));
        // Bins of 4 ordinals: two allocations per role, of which one is freed.
        assert_eq!(lumped.devices[&gpu][7][Role::Weights.index()], (512, 1));
    }
}
