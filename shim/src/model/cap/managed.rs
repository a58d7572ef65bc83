//! Bytes that the driver takes for managed memory: multiples of 128 MiB for all blocks together.
//!
//! Measured on an H200 (driver 580), in blocks of 64 MiB, each touched on the device; MiB that
//! cuMemGetInfo showed as used beside the context:
//!
//! | managed | 64 | 128 | 256 | 1,024 | 4,096 | 7,616 |
//! |---|---|---|---|---|---|---|
//! | used | 128 | 128 | 256 | 1,024 | 4,096 | 7,680 |
//!
//! Neither NVML's figure of the process nor any allocation call shows the unused rest of a step. Only
//! the cap counts it: the ledger and the report have pages.

use crate::runtime::lock::Lock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vramtrace_format::physical::{MIB, round_up};

const STEP: u64 = 128 * MIB;

fn steps(bytes: u64) -> u64 {
    round_up(bytes, STEP)
}

/// One device's managed memory, as pages.
///
/// A step counts in the budget, its pages are known here. Both change under one lock: a request
/// must not be granted on a step that another one asked for and did not get; and a caller that compares
/// the two (the observer, with NVML's figure) must not take the rest of a step for allocations, and
/// so the hidden bytes for fewer than they are.
#[derive(Default)]
pub struct Managed {
    pages: AtomicU64,
    changes: Lock<()>,
}

impl Managed {
    /// Adds pages: `take` is called with the bytes to count, and returns whether they are granted.
    pub fn add<E>(&self, pages: u64, take: impl FnOnce(u64) -> Result<(), E>) -> Result<(), E> {
        let _order = self.changes.lock();
        let before = self.pages.load(Relaxed);
        let after = before.saturating_add(pages);
        take(steps(after) - steps(before))?;
        self.pages.store(after, Relaxed);
        Ok(())
    }

    /// Removes pages; `charge` is called with the change of the counted bytes.
    pub fn remove(&self, pages: u64, charge: impl FnOnce(i64)) {
        let _order = self.changes.lock();
        let before = self.pages.load(Relaxed);
        let after = before.saturating_sub(pages);
        charge(steps(after) as i64 - steps(before) as i64);
        self.pages.store(after, Relaxed);
    }

    /// `look` is called with the bytes that count besides the pages: the rest of the last step.
    pub fn beside<T>(&self, look: impl FnOnce(u64) -> T) -> T {
        let _order = self.changes.lock();
        let now = self.pages.load(Relaxed);
        look(steps(now) - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cap::Budget;

    #[test]
    fn the_measured_steps() {
        let managed = Managed::default();
        let mut used = 0;
        for block in 1..=119u64 {
            let granted: Result<(), ()> = managed.add(64 * MIB, |bytes| {
                used += bytes as i64;
                Ok(())
            });
            assert!(granted.is_ok());
            let expected = match block {
                1 | 2 => 128,
                4 => 256,
                16 => 1024,
                64 => 4096,
                119 => 7680,
                _ => continue,
            };
            assert_eq!(used, expected * MIB as i64, "{block} blocks");
        }
        assert_eq!(managed.beside(|rest| rest), 64 * MIB);
        managed.remove(7616 * MIB, |change| assert_eq!(change, -used, "all of it comes back"));
        assert_eq!(managed.beside(|rest| rest), 0);
    }

    /// Blocks of 64 MiB under a cap of 8 GiB, judged by the driver's free memory: the context is
    /// 518 MiB in NVML's figure and 526.8 in the driver's.
    #[test]
    fn a_cap_is_filled_and_not_passed() {
        let (budget, managed) = (Budget::default(), Managed::default());
        let cap = 8192 * MIB;
        budget.set_limit(Some(cap));
        budget.charge(518 * MIB as i64);
        let mut blocks = 0;
        while let Ok(mut promise) = budget.reserve(64 * MIB, Some(&managed)) {
            promise.commit(64 * MIB as i64).unwrap();
            blocks += 1;
        }
        let used = steps(blocks * 64 * MIB) + 527 * MIB;
        assert!(used <= cap && used * 100 >= cap * 97, "{} MiB", used / MIB);
        assert_eq!(
            budget.counted(),
            518 * MIB + steps(blocks * 64 * MIB),
            "a refusal leaves nothing"
        );
        assert!(managed.add(64 * MIB, |_| Err(())).is_err());
        managed.remove(blocks * 64 * MIB, |change| {
            budget.charge(change);
        });
        assert_eq!(budget.counted(), 518 * MIB);
    }
}
