//! Looks at what is live as a whole, for whoever explains a refusal.

use super::{DEVICES, Entry, Ledger, device_index};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vramtrace_format::DeviceId;

/// Devices on which somebody waits for the next allocation. Read at each of them, written seldom.
pub(super) struct Awaited([AtomicBool; DEVICES]);

impl Default for Awaited {
    fn default() -> Awaited {
        Awaited(std::array::from_fn(|_| AtomicBool::new(false)))
    }
}

impl Awaited {
    #[inline]
    pub fn came(&self, entry: &Entry) {
        let awaited = &self.0[device_index(entry.device)];
        if awaited.load(Relaxed) && !entry.kind.is_host() {
            awaited.store(false, Relaxed);
        }
    }
}

impl Ledger {
    /// From here on [`Ledger::has_come`] says whether anything was given on the device.
    pub fn await_next(&self, device: DeviceId) {
        self.awaited.0[device_index(device)].store(true, Relaxed);
    }

    pub fn has_come(&self, device: DeviceId) -> bool {
        !self.awaited.0[device_index(device)].load(Relaxed)
    }

    /// Visits what is live on a device. Each shard's lock is held while its entries are copied,
    /// none while `visit` runs.
    pub fn visit(&self, device: DeviceId, mut visit: impl FnMut(&Entry)) {
        let mut copies = Vec::new();
        for shard in &self.shards {
            copies.clear();
            {
                let inner = shard.lock();
                let here = inner.entries.iter().map(|slot| slot.entry());
                copies.extend(here.filter(|entry| entry.device == device));
            }
            copies.iter().for_each(&mut visit);
        }
    }
}
