//! What the memory of a device was in use for, as a sum that adds up to the byte.

use vramtrace_format::{Cause, Kind, RefusedBy};

use super::Oom;
use crate::replay::DeviceState;

/// What a part of the sum is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsedPart {
    /// Blocks of PyTorch's cache, and what of its segments is in none.
    Tensors,
    TorchCache,
    /// Driver memory that this library asked for. `None`: the stacks do not tell.
    Library(Option<String>),
    /// Rest of pages, reserves of pools and graphs.
    Rounding,
    Context,
    /// Local memory of a larger stack, heaps (cuCtxSetLimit).
    Limits,
    /// What the driver took for itself, by the calls after which it showed.
    Driver(Cause),
    /// What NVML shows beyond all that. Negative where it shows less.
    Unattributed,
    /// What the cap counted beside: requests under way, the rest of a step of managed memory.
    Counted,
}

impl UsedPart {
    /// The name in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            UsedPart::Tensors => "tensors",
            UsedPart::TorchCache => "torch_cache",
            UsedPart::Library(_) => "library",
            UsedPart::Rounding => "rounding",
            UsedPart::Context => "context",
            UsedPart::Limits => "limits",
            UsedPart::Driver(Cause::Modules) => "modules",
            UsedPart::Driver(Cause::LocalMemory) => "local_memory",
            UsedPart::Driver(Cause::Heap) => "heap",
            UsedPart::Driver(Cause::Streams) => "streams",
            UsedPart::Driver(Cause::Graphs) => "graphs",
            UsedPart::Driver(Cause::Sharing) => "sharing",
            UsedPart::Driver(Cause::Context) => "context_later",
            UsedPart::Driver(Cause::Other) => "driver_other",
            UsedPart::Unattributed => "unattributed",
            UsedPart::Counted => "counted",
        }
    }
}

impl UsedPart {
    /// The library that it is of, if it is one's.
    pub fn library(&self) -> Option<&str> {
        match self {
            UsedPart::Library(name) => name.as_deref(),
            _ => None,
        }
    }
}

/// Of one device at one moment: all that nvidia-smi shows for the process, and managed memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedSum {
    /// The sum of the parts.
    pub bytes: u64,
    pub parts: Vec<(UsedPart, i64)>,
    /// Managed memory in it: nvidia-smi leaves it out.
    pub managed: u64,
    /// NVML had a figure: what only shows there is in the sum.
    pub knows_process: bool,
}

/// A file may claim any number: no part is more, so that the sum of all is a number, too.
const MOST: u64 = 1 << 50;

impl UsedSum {
    /// `libraries`: driver memory that is no segment of a cache, by who asked for it.
    pub fn of(device: &DeviceState, oom: &Oom, libraries: Vec<(Option<String>, u64)>) -> UsedSum {
        let number = |bytes: u64| bytes.min(MOST) as i64;
        let cache = &device.cache;
        // Blocks on memory that no call showed are in no sum of driver memory.
        // Nor is what was unmapped below them.
        let tensors = cache.resident().saturating_sub(cache.outside);
        let mut parts = vec![
            (UsedPart::Tensors, number(tensors)),
            (UsedPart::TorchCache, number(cache.reserved_resident().saturating_sub(tensors))),
        ];
        parts.extend(libraries.into_iter().map(|(name, it)| (UsedPart::Library(name), number(it))));
        let named = sum(&parts);
        parts.push((UsedPart::Rounding, number(device.live_bytes).saturating_sub(named)));
        parts.push((UsedPart::Context, number(device.context_bytes)));
        let measured = device.sample.and_then(|at| at.unattributed());
        let beyond = measured.unwrap_or(0).clamp(-(MOST as i64), MOST as i64);
        // They were measured one at a time. Together they are at most what NVML shows.
        let mut left = beyond.max(0);
        for (what, bytes) in named_by_the_driver(device) {
            let bytes = number(bytes).min(left);
            left -= bytes;
            parts.push((what, bytes));
        }
        parts.push((UsedPart::Unattributed, if beyond < 0 { beyond } else { left }));
        let counted = oom.refusal.map(|at| at.refused).filter(|it| it.by == RefusedBy::Cap);
        // The cap counted at least this much: the difference is a part of its own.
        let least = counted.map_or(0, |refused| number(refused.counted));
        let beside = least.saturating_sub(sum(&parts)).max(0);
        parts.push((UsedPart::Counted, beside));
        parts.retain(|(_, bytes)| *bytes != 0);
        UsedSum {
            bytes: sum(&parts).max(0) as u64,
            managed: device.kind(Kind::Managed).live_bytes,
            knows_process: measured.is_some(),
            parts,
        }
    }
}

/// What is known of that which only NVML shows.
fn named_by_the_driver(device: &DeviceState) -> Vec<(UsedPart, u64)> {
    let own = &device.driver_own;
    let causes = Cause::ALL.into_iter().map(|cause| (UsedPart::Driver(cause), own.of(cause)));
    let by_cause = own.of(Cause::LocalMemory).saturating_add(own.of(Cause::Heap));
    causes.chain([(UsedPart::Limits, device.limit_bytes.saturating_sub(by_cause))]).collect()
}

fn sum(parts: &[(UsedPart, i64)]) -> i64 {
    parts.iter().map(|(_, bytes)| *bytes).fold(0, i64::saturating_add)
}
