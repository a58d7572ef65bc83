//! Orders for other limits: each is set once, and never after a later one.
//!
//! Threads apply orders at the same time, and each may be interrupted anywhere. So an order is read and
//! its limit set in one critical section: who reads later reads a later order. It is reported as applied
//! when its limit is in force and the device's figures were read, if no later order was set meanwhile.

use crate::runtime::lock::Lock;

/// For each device the number of the order whose limit was set last.
pub struct Orders<const DEVICES: usize>(Lock<[u64; DEVICES]>);

impl<const DEVICES: usize> Default for Orders<DEVICES> {
    fn default() -> Self {
        Orders(Lock::new([0; DEVICES]))
    }
}

impl<const DEVICES: usize> Orders<DEVICES> {
    /// Reads the order that was not applied yet, its number first, and sets its limit. Returns the number.
    pub fn set<L>(
        &self,
        device: usize,
        read: impl FnOnce() -> Option<(u64, L)>,
        set: impl FnOnce(L),
    ) -> Option<u64> {
        let mut last = self.0.lock();
        let (number, limit) = read()?;
        if last[device] != number {
            set(limit);
            last[device] = number;
        }
        Some(number)
    }

    /// Calls `report`, unless a later order was set since.
    pub fn applied(&self, device: usize, number: u64, report: impl FnOnce()) {
        let last = self.0.lock();
        if last[device] == number {
            report();
        }
    }
}
