//! The use of a device's memory, from sums only: cheap enough for every refusal.
#![allow(clippy::disallowed_methods)] // texts of one message, given back with it

use crate::oom::held::Paused;
use crate::oom::sources::Sources;
use std::borrow::Cow;
use vramtrace_format::{CacheBytes, Cause, DeviceId};

/// The driver's own memory besides contexts, in the order of the message.
const CAUSES: [(Cause, &str); 6] = [
    (Cause::Modules, "modules"),
    (Cause::LocalMemory, "local memory"),
    (Cause::Heap, "kernels' heap"),
    (Cause::Streams, "streams"),
    (Cause::Graphs, "graphs"),
    (Cause::Sharing, "sharing"),
];

pub type Part = (Cow<'static, str>, u64);

/// The sums at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Everything that counts as this process's.
    pub used: u64,
    /// Allocations.
    pub live: u64,
    context: u64,
    causes: [u64; CAUSES.len()],
    /// The driver's own memory of other causes.
    drivers_other: u64,
    /// The framework's own totals, where it says some.
    pub cache: Option<CacheBytes>,
}

impl Sums {
    pub fn now(p: Sources, device: DeviceId, cache: Option<CacheBytes>) -> Sums {
        let mut taken = p.card.driver_internal(device);
        // The growth by cuCtxSetLimit is known even without NVML's figure.
        let local = &mut taken[Cause::LocalMemory as usize];
        *local = p.contexts.growth_on(device).max(*local);
        let context = p.contexts.bytes_on(device).saturating_add(taken[Cause::Context as usize]);
        let causes = CAUSES.map(|(cause, _)| taken[cause as usize]);
        let known = causes.iter().fold(context, |sum, bytes| sum.saturating_add(*bytes));
        let live = p.ledger.live(device);
        Sums {
            used: p.cap.counted(device, live),
            live,
            context,
            causes,
            drivers_other: p.cap.outside(device).saturating_sub(known),
            cache,
        }
    }

    /// Free bytes inside the framework's segments, as it says.
    pub fn free_inside(&self) -> Option<u64> {
        self.cache.map(|cache| cache.free())
    }

    /// The parts that add up to the use. `named`: allocations of known libraries, without the
    /// framework's. The remainder is called unattributed.
    pub fn parts(&self, named: Vec<(String, u64)>, paused: Paused) -> Vec<Part> {
        let mut left = self.live;
        let mut parts: Vec<Part> = Vec::new();
        if let Some(CacheBytes { allocated, reserved }) = self.cache {
            // Unmapped memory of blocks is not in use.
            let allocated = allocated.saturating_sub(paused.blocks);
            let reserved = reserved.saturating_sub(paused.segments);
            parts.push(("tensors".into(), allocated));
            parts.push(("torch cache".into(), reserved.saturating_sub(allocated)));
            left = left.saturating_sub(reserved);
        }
        parts.push(("context".into(), self.context));
        let causes = CAUSES.iter().zip(self.causes);
        parts.extend(causes.map(|((_, name), bytes)| ((*name).into(), bytes)));
        parts.push(("driver's other".into(), self.drivers_other));
        for (title, bytes) in named {
            let bytes = bytes.min(left);
            left -= bytes;
            parts.push((title.into(), bytes));
        }
        let rest = if self.cache.is_some() { "other allocations" } else { "allocations" };
        parts.push((rest.into(), left));
        let sum = parts.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        parts.push(("others".into(), self.used.saturating_sub(sum)));
        parts.retain(|(_, bytes)| *bytes > 0);
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_and_what_is_unknown_is_called_so() {
        let sums = Sums { used: 1000, live: 700, context: 200, ..Sums::default() };
        let named = vec![("cuBLAS".to_string(), 100), ("NCCL".to_string(), 5000)];
        let expected: Vec<Part> = vec![
            ("context".into(), 200),
            ("cuBLAS".into(), 100),
            ("NCCL".into(), 600),
            ("others".into(), 100),
        ];
        assert_eq!(sums.parts(named, Paused::default()), expected, "never more than there is");
        let cache = Some(CacheBytes { allocated: 300, reserved: 400 });
        let mut sums = Sums { cache, causes: [7, 0, 0, 0, 0, 0], ..sums };
        sums.drivers_other = 3;
        let expected: Vec<Part> = vec![
            ("tensors".into(), 300),
            ("torch cache".into(), 100),
            ("context".into(), 200),
            ("modules".into(), 7),
            ("driver's other".into(), 3),
            ("other allocations".into(), 300),
            ("others".into(), 90),
        ];
        assert_eq!(sums.parts(Vec::new(), Paused::default()), expected);
        let asleep = sums.parts(Vec::new(), Paused { blocks: 200, segments: 250 });
        assert_eq!(asleep[..2], [("tensors".into(), 100), ("torch cache".into(), 50)]);
        assert_eq!(asleep[5], ("other allocations".into(), 550));
        assert_eq!(sums.free_inside(), Some(100));
    }
}
