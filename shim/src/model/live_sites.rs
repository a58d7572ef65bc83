//! When the call sites of the live page are due again, and the libraries of stacks that were among the largest.

use crate::runtime::fallible::list_of;
use crate::runtime::fallible_map::Map;
use crate::runtime::lock::Lock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vramtrace_format::StackId;

const EVERY_NS: u64 = 100_000_000;
/// The sums may take 1 / PART of the time.
const PART: u64 = 100;
/// Stacks whose library is kept.
const NAMES_MOST: usize = 1024;

/// A stack. The flag: of a framework's blocks, for which another library may be the requester than for
/// driver memory.
pub type Which = (StackId, bool);

pub struct LiveSites {
    due_ns: AtomicU64,
    libraries: Lock<Map<Which, String>>,
}

impl Default for LiveSites {
    fn default() -> LiveSites {
        LiveSites { due_ns: AtomicU64::new(0), libraries: Lock::new(Map::default()) }
    }
}

impl LiveSites {
    /// Whether the sums are due: true for one thread at a time, which calls [`LiveSites::made`].
    #[inline]
    pub fn take_due(&self, now_ns: u64) -> bool {
        let due_ns = self.due_ns.load(Relaxed);
        now_ns >= due_ns && self.due_ns.compare_exchange(due_ns, u64::MAX, Relaxed, Relaxed).is_ok()
    }

    /// The sums were made from `began_ns` to `now_ns`.
    pub fn made(&self, began_ns: u64, now_ns: u64) {
        let cost_ns = now_ns.saturating_sub(began_ns);
        let due_ns = began_ns.saturating_add(EVERY_NS.max(cost_ns.saturating_mul(PART)));
        self.due_ns.store(due_ns, Relaxed);
    }

    /// The library of a stack; empty if it is not known.
    pub fn library(&self, of: Which) -> String {
        self.libraries.lock().get(&of).cloned().unwrap_or_default()
    }

    /// Those of `stacks` whose library is not known yet.
    pub fn unknown(&self, stacks: &[Which]) -> Vec<Which> {
        let mut known = self.libraries.lock();
        if known.len() > NAMES_MOST {
            known.clear();
        }
        let new = stacks.iter().copied().filter(|stack| !known.contains_key(stack));
        list_of(stacks.len(), new).unwrap_or_default()
    }

    pub fn name(&self, found: impl IntoIterator<Item = (Which, String)>) {
        let mut known = self.libraries.lock();
        for (stack, library) in found {
            // Without memory it has no name.
            let _ = known.insert(stack, library);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_that_take_long_are_made_rarely() {
        let sites = LiveSites::default();
        assert!(sites.take_due(5));
        assert!(!sites.take_due(u64::MAX - 1), "a thread is at it");
        sites.made(5, 6);
        assert!(!sites.take_due(EVERY_NS) && sites.take_due(5 + EVERY_NS));
        sites.made(EVERY_NS, 3 * EVERY_NS);
        assert!(!sites.take_due(200 * EVERY_NS) && sites.take_due(201 * EVERY_NS));
    }
}
