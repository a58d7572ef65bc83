//! Walks all that is live, for the post-mortem of a refusal.

use super::{Entry, Ledger};
use crate::runtime::fallible::TryPush;
use std::sync::atomic::Ordering::Relaxed;
use vramtrace_format::{DeviceId, Kind};

impl Ledger {
    /// From now on [`Ledger::has_allocated`] returns whether anything was allocated on the device since.
    pub fn await_allocation(&self, device: DeviceId) {
        self.totals(device).awaits.store(true, Relaxed);
    }

    pub fn has_allocated(&self, device: DeviceId) -> bool {
        !self.totals(device).awaits.load(Relaxed)
    }

    /// Notes an allocation on a device whose next one is awaited.
    #[cold]
    #[inline(never)]
    pub(super) fn note_awaited(&self, device: DeviceId, kind: Kind) {
        if !kind.is_host() {
            self.totals(device).awaits.store(false, Relaxed);
        }
    }

    /// Visits what is live on a device. Each shard's lock is held while its entries are copied,
    /// none while `visit` runs.
    pub fn visit(&self, device: DeviceId, mut visit: impl FnMut(&Entry)) {
        let mut copies = Vec::new();
        for shard in &self.shards {
            copies.clear();
            {
                let inner = shard.lock();
                let here = inner.entries.iter().map(|slot| *slot.entry());
                // Without host memory for all entries, only some are visited.
                let mut here = here.filter(|entry| entry.device == device);
                let _ = here.try_for_each(|entry| copies.try_push(entry));
            }
            copies.iter().for_each(&mut visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model_test::Nothing;
    use super::*;
    use vramtrace_format::Kind;

    #[test]
    fn the_next_allocation_of_the_device_is_noted_once() {
        let (here, there) = (DeviceId(0), DeviceId(1));
        let ledger = Box::new(Ledger::default());
        let entry = |kind, device| Entry::new(kind, 512, 512, device);
        assert!(ledger.has_allocated(here), "nobody waits");
        ledger.await_allocation(here);
        ledger.insert(&Nothing, &entry(Kind::Device, there));
        ledger.insert(&Nothing, &entry(Kind::HostPinned, here));
        assert!(!ledger.has_allocated(here));
        ledger.insert_block(&Nothing, entry(Kind::Block, here));
        assert!(ledger.has_allocated(here));
        ledger.await_allocation(here);
        ledger.insert(&Nothing, &entry(Kind::Array, here));
        assert!(ledger.has_allocated(here));
    }

    #[test]
    fn a_visit_sees_what_is_live_on_the_device() {
        let ledger = Box::new(Ledger::default());
        for n in 1..2000u64 {
            let kind = if n % 2 == 0 { Kind::Block } else { Kind::Device };
            let device = DeviceId(u8::from(n % 5 == 0));
            let entry = Entry::new(kind, n << 9, n, device);
            match kind {
                Kind::Block => ledger.insert_block(&Nothing, entry),
                _ => _ = ledger.insert(&Nothing, &entry),
            }
        }
        let mut seen = 0;
        ledger.visit(DeviceId(0), |entry| seen += entry.size);
        assert_eq!(seen, (1..2000).filter(|n| n % 5 != 0).sum::<u64>());
    }
}
