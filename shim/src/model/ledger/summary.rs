//! The bytes that each stack holds, now and at each device's peak, for the summary at the trace's end
//! and for the live page. Takes one shard's lock at a time.

use super::Ledger;
use crate::runtime::fallible::list_of;
use crate::runtime::fallible_map::Map;
use vramtrace_format::summary::{is_held, keep_largest};
use vramtrace_format::{DeviceId, Event, Kind, StackId, StateHolder, SummaryMoment};

/// An epoch that has not begun: the sums are those of now.
const NOW: u32 = u32::MAX;

/// What one call site holds by one stack. There may be several of a stack.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub device: DeviceId,
    pub of_framework: bool,
    pub stack: StackId,
    pub bytes: u64,
    /// Allocations and frees since the start.
    pub calls: [u64; 2],
}

impl Ledger {
    /// Visits what each call site holds. The sums are not of one moment. A shard is locked meanwhile.
    pub fn each_held(&self, mut visit: impl FnMut(&Held)) {
        for shard in &self.shards {
            for slot in shard.lock().sites.slots.iter() {
                let (maker, totals) = (slot.maker(), slot.at(NOW));
                visit(&Held {
                    device: maker.device,
                    of_framework: maker.kind == Kind::Block,
                    stack: maker.stack,
                    bytes: slot.held().at(SummaryMoment::End, NOW)[0],
                    calls: [totals.allocations, totals.frees],
                });
            }
        }
    }

    /// Bytes of each kind, and the largest holders, of one device.
    pub fn summary(&self, device: DeviceId, emit: &mut dyn FnMut(&Event)) {
        let totals = self.totals(device);
        for kind in Kind::ALL.into_iter().filter(|kind| is_held(*kind)) {
            let (at_peak, live) = (totals.kind_at_peak(kind), self.live_of(device, kind));
            if at_peak != 0 || live != 0 {
                emit(&Event::StateKind { device, kind: kind as u8, at_peak, live });
            }
        }
        for moment in [SummaryMoment::Peak, SummaryMoment::End] {
            for of_framework in [false, true] {
                for holder in self.holders(device, moment, of_framework) {
                    emit(&Event::StateHolder(holder));
                }
            }
        }
    }

    /// The number of the device's highest peak so far.
    pub fn epoch(&self, device: DeviceId) -> u32 {
        self.totals(device).epoch()
    }

    /// The stacks that hold most of a device at a moment: of the driver's memory, or of a
    /// framework's blocks.
    pub fn holders(
        &self,
        device: DeviceId,
        moment: SummaryMoment,
        of_framework: bool,
    ) -> Vec<StateHolder> {
        let epoch = self.totals(device).epoch();
        let mut sums: Map<StackId, [u64; 2]> = Map::default();
        for shard in &self.shards {
            let inner = shard.lock();
            for slot in inner.sites.slots.iter() {
                let maker = slot.maker();
                if maker.device != device || (maker.kind == Kind::Block) != of_framework {
                    continue;
                }
                let [bytes, count] = slot.held().at(moment, epoch);
                if bytes == 0 {
                    continue;
                }
                // Without host memory for its sum a holder is left out.
                if let Ok(sum) = sums.get_or_insert(maker.stack, [0; 2]) {
                    *sum = [sum[0].saturating_add(bytes), sum[1].saturating_add(count)];
                }
            }
        }
        let holder = |(&stack, &[bytes, count]): (&StackId, &[u64; 2])| StateHolder {
            device,
            moment,
            of_framework,
            cause: None,
            stack,
            bytes,
            count,
        };
        let mut holders = list_of(sums.len(), sums.iter().map(holder)).unwrap_or_default();
        keep_largest(&mut holders);
        holders
    }
}

#[cfg(test)]
mod tests {
    use super::super::Entry;
    use super::super::model_test::Nothing;
    use super::*;
    use vramtrace_format::Space;
    use vramtrace_format::physical::MIB;

    fn entry(kind: Kind, key: u64, size: u64, stack: u32) -> Entry {
        let stack = StackId(stack);
        Entry {
            stack,
            site: vramtrace_format::SiteId(stack.0),
            ..Entry::new(kind, key, size, DeviceId(0))
        }
    }

    fn held(ledger: &Ledger, moment: SummaryMoment, of_framework: bool) -> Vec<(u32, u64, u64)> {
        let holders = ledger.holders(DeviceId(0), moment, of_framework);
        holders.iter().map(|holder| (holder.stack.0, holder.bytes / MIB, holder.count)).collect()
    }

    #[test]
    fn holders_at_the_peak_are_kept_while_memory_goes_and_comes() {
        let ledger = Box::new(Ledger::default());
        let put = |entry: Entry| ledger.insert(&Nothing, &entry);
        put(entry(Kind::Device, 1 << 40, 20 * MIB, 1));
        put(entry(Kind::Device, 2 << 40, 6 * MIB, 2));
        ledger.insert_block(&Nothing, entry(Kind::Block, 1 << 40, 4 * MIB, 3));
        ledger.insert_block(&Nothing, entry(Kind::Block, (1 << 40) + 4 * MIB, 4 * MIB, 3));
        ledger.remove(&Nothing, Space::Device, 2 << 40);
        put(entry(Kind::Array, 3, 2 * MIB, 4));
        ledger.remove_block(&Nothing, 1 << 40);
        let peak = SummaryMoment::Peak;
        assert_eq!(held(&ledger, peak, false), [(1, 20, 1), (2, 6, 1)]);
        assert_eq!(held(&ledger, peak, true), [(3, 4, 1)], "the first block is part of the peak");
        assert_eq!(held(&ledger, SummaryMoment::End, false), [(1, 20, 1), (4, 2, 1)]);
        assert_eq!(held(&ledger, SummaryMoment::End, true), [(3, 4, 1)]);
        let mut kinds = Vec::new();
        ledger.summary(DeviceId(0), &mut |event| {
            if let Event::StateKind { kind, at_peak, live, .. } = *event {
                kinds.push((kind, at_peak / MIB, live / MIB));
            }
        });
        assert_eq!(kinds, [(Kind::Device as u8, 26, 20), (Kind::Array as u8, 0, 2)]);
        // A new peak has its own figures.
        put(entry(Kind::Device, 4 << 40, 40 * MIB, 2));
        assert_eq!(held(&ledger, peak, false), [(2, 40, 1), (1, 20, 1), (4, 2, 1)]);
    }
}
