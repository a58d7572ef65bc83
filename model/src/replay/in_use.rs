//! The memory that a process has on one device at one moment, split once. Every view that shows a sum of the
//! device's memory takes it from here. Sizes are bytes.
//!
//! ```text
//! in nvidia-smi = live allocations - managed + contexts + unattributed
//! by the cap    = in nvidia-smi + managed
//! recorded      = live allocations + contexts        (the headline where NVML has no figure)
//! ```

use std::collections::BTreeMap;

use serde::Serialize;
use vramtrace_format::DriverCause;

use super::driver_own::{BytesByCause, sum};

/// What a framework's cache has, without memory that is unmapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheInUse {
    /// Blocks on memory that the trace has.
    pub allocated: u64,
    /// Segments.
    pub reserved: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(into = "InUseFacts")]
pub struct InUse {
    /// Live allocations of the driver's calls, managed memory among them.
    pub live: u64,
    pub managed: u64,
    pub contexts: u64,
    /// NVML's figure less allocations and contexts. `None`: the trace has no figure of NVML.
    pub unattributed: Option<i64>,
    /// What the driver took for itself, by cause: parts of `unattributed`.
    pub driver_own: BytesByCause,
    /// `None`: there is no such cache, or its part is not known.
    pub cache: Option<CacheInUse>,
}

/// `allocated + free_in_cache + beside_cache + contexts + driver + unattributed` is what nvidia-smi shows. Where
/// that is not known, with `managed` it is what was recorded.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct InUseFacts {
    pub headline_bytes: u64,
    /// Null: NVML has no figure of the process; the headline is what was recorded.
    pub in_nvidia_smi_bytes: Option<u64>,
    /// In live tensors; without a framework's cache, in live allocations.
    pub allocated_bytes: u64,
    pub free_in_cache_bytes: u64,
    /// Allocations outside of a framework's cache.
    pub beside_cache_bytes: u64,
    pub contexts_bytes: u64,
    /// What the driver is known to have taken for itself.
    pub driver_bytes: u64,
    /// The rest of NVML's figure, negative where NVML shows less than was recorded.
    pub unattributed_bytes: i64,
    /// nvidia-smi leaves managed memory out, a cap counts it.
    pub managed_bytes: u64,
    /// What a cap compares with its limit.
    pub counted_by_cap_bytes: u64,
}

impl From<InUse> for InUseFacts {
    fn from(of: InUse) -> InUseFacts {
        InUseFacts {
            headline_bytes: of.headline(),
            in_nvidia_smi_bytes: of.in_nvidia_smi(),
            allocated_bytes: of.allocated(),
            free_in_cache_bytes: of.free_in_cache(),
            beside_cache_bytes: of.beside_cache(),
            contexts_bytes: of.contexts,
            driver_bytes: of.taken_by_driver(),
            unattributed_bytes: of.of_unknown_cause(),
            managed_bytes: of.managed,
            counted_by_cap_bytes: of.counted_by_cap(),
        }
    }
}

impl InUse {
    /// Live allocations without managed memory.
    fn unmanaged(&self) -> u64 {
        self.live.saturating_sub(self.managed)
    }

    /// The bytes that nvidia-smi shows for the process. `None`: NVML has no figure of it.
    pub fn in_nvidia_smi(&self) -> Option<u64> {
        // Damaged files may have any number here.
        let known = i128::from(self.live) - i128::from(self.managed) + i128::from(self.contexts);
        let bytes = known + i128::from(self.unattributed?);
        u64::try_from(bytes).ok().filter(|bytes| *bytes > 0)
    }

    /// What nvidia-smi shows; where that is not known, what was recorded, managed memory and contexts among it.
    pub fn headline(&self) -> u64 {
        self.in_nvidia_smi().unwrap_or(self.live.saturating_add(self.contexts))
    }

    /// What a cap compares with its limit, but for steps of managed memory and requests under way.
    pub fn counted_by_cap(&self) -> u64 {
        self.in_nvidia_smi().map_or(self.headline(), |bytes| bytes.saturating_add(self.managed))
    }

    /// Bytes in live tensors; without a framework's cache, in live allocations.
    pub fn allocated(&self) -> u64 {
        self.cache.map_or(self.unmanaged(), |cache| cache.allocated)
    }

    /// Bytes of a framework's cache in no block.
    pub fn free_in_cache(&self) -> u64 {
        self.cache.map_or(0, |cache| cache.reserved.saturating_sub(cache.allocated))
    }

    /// Recorded allocations outside of a framework's cache.
    pub fn beside_cache(&self) -> u64 {
        self.cache.map_or(0, |cache| self.unmanaged().saturating_sub(cache.reserved))
    }

    /// What calls made the driver take for itself.
    pub fn named_bytes(&self) -> u64 {
        sum(&self.driver_own)
    }

    /// `unattributed` by cause. Bytes without a known cause are `unknown`: negative where NVML shows less than the known ones.
    pub fn driver_bytes_by_name(&self) -> BTreeMap<&'static str, i64> {
        let of =
            |cause: DriverCause| i64::try_from(self.driver_own[cause as usize]).unwrap_or(i64::MAX);
        let named = DriverCause::ALL.into_iter().map(|cause| (cause.name(), of(cause)));
        let sum = i64::try_from(self.named_bytes()).unwrap_or(i64::MAX);
        let unknown = self.unattributed.unwrap_or(0).saturating_sub(sum);
        named.chain([("unknown", unknown)]).collect()
    }

    /// What the driver is known to have taken for itself, at most what is unattributed.
    pub fn taken_by_driver(&self) -> u64 {
        self.named_bytes().min(self.unattributed.unwrap_or(0).max(0) as u64)
    }

    /// The rest of NVML's figure. Negative where NVML shows less than the recorded allocations.
    pub fn of_unknown_cause(&self) -> i64 {
        self.unattributed.unwrap_or(0).saturating_sub_unsigned(self.taken_by_driver())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_to_the_headline() {
        let mut own = BytesByCause::default();
        own[0] = 30;
        let with_cache = InUse {
            live: 1000,
            managed: 100,
            contexts: 500,
            unattributed: Some(90),
            driver_own: own,
            cache: Some(CacheInUse { allocated: 600, reserved: 800 }),
        };
        let negative = InUse { unattributed: Some(-40), ..with_cache };
        let without_nvml = InUse { unattributed: None, ..with_cache };
        let without_cache = InUse { cache: None, ..with_cache };
        for (of, headline) in
            [(with_cache, 1490), (negative, 1360), (without_nvml, 1500), (without_cache, 1490)]
        {
            let parts = of.allocated() + of.free_in_cache() + of.beside_cache() + of.contexts;
            let rest = of.taken_by_driver() as i64 + of.of_unknown_cause();
            let managed = if of.in_nvidia_smi().is_none() { of.managed } else { 0 };
            assert_eq!(of.headline(), headline);
            assert_eq!((parts + managed) as i64 + rest, headline as i64, "{of:?}");
        }
        assert_eq!((with_cache.counted_by_cap(), without_nvml.counted_by_cap()), (1590, 1500));
        assert_eq!(without_nvml.in_nvidia_smi(), None);
    }

    #[test]
    fn damaged_figures_do_not_overflow() {
        let all = InUse {
            live: u64::MAX,
            managed: 1,
            contexts: u64::MAX,
            unattributed: Some(i64::MIN),
            driver_own: [u64::MAX; vramtrace_format::DriverCause::COUNT],
            cache: Some(CacheInUse { allocated: u64::MAX, reserved: 0 }),
        };
        assert_eq!(all.in_nvidia_smi(), None);
        assert_eq!((all.headline(), all.free_in_cache()), (u64::MAX, 0));
        assert_eq!((all.taken_by_driver(), all.of_unknown_cause()), (0, i64::MIN));
    }
}
