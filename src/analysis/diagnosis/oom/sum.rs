//! The used memory of a device by purpose. The parts add up to the byte.

use serde::{Serialize, Serializer};
use vramtrace_format::{Cause, Kind, RefusedBy};

use super::Oom;
use crate::replay::DeviceState;

/// The purpose of a part of the sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsedPart {
    /// Blocks of PyTorch's cache.
    Tensors,
    /// The free part of its segments.
    TorchCache,
    /// Driver memory that this library requested. `None`: not known from the stacks.
    Library(Option<String>),
    /// Unused parts of pages, and reserves of pools and graphs.
    Rounding,
    /// Contexts.
    Context,
    /// Local memory of a larger stack, heaps (cuCtxSetLimit).
    Limits,
    /// Memory that the driver took for itself, by the kind of the call after which it appeared.
    Driver(Cause),
    /// The rest of NVML's figure. Negative where NVML shows less than the other parts.
    Unattributed,
    /// What the cap counted in addition: requests of other threads under way, the unused part of a step of
    /// managed memory.
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

/// One device at one moment: the memory that nvidia-smi shows for the process, and managed memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UsedSum {
    /// Bytes that the process had in use: the sum of the parts.
    #[serde(rename = "used_bytes")]
    pub bytes: u64,
    #[serde(rename = "used", serialize_with = "part_facts")]
    #[cfg_attr(test, schemars(with = "Vec<PartFacts>"))]
    pub parts: Vec<(UsedPart, i64)>,
    /// Managed memory: included in the sum, but not in the figure of nvidia-smi.
    #[serde(rename = "managed_bytes")]
    pub managed: u64,
    /// NVML had a figure: the sum includes what only NVML shows.
    #[serde(skip)]
    pub knows_process: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PartFacts<'p> {
    /// `tensors`, `torch_cache`, `library`, `rounding`, `context`, `limits`, `unattributed`, ...
    what: &'static str,
    /// May be negative: `rounding`, `unattributed`.
    bytes: i64,
    library: Option<&'p str>,
}

fn part_facts<S: Serializer>(parts: &[(UsedPart, i64)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(parts.iter().map(|(part, bytes)| {
        let library = match part {
            UsedPart::Library(name) => name.as_deref(),
            _ => None,
        };
        PartFacts { what: part.name(), bytes: *bytes, library }
    }))
}

/// The largest part: a damaged file may hold any number, and the sum of all parts must not overflow.
const MOST: u64 = 1 << 50;

impl UsedSum {
    /// `libraries`: driver memory that is no segment of a cache, by the library that requested it.
    pub fn of(device: &DeviceState, oom: &Oom, libraries: Vec<(Option<String>, u64)>) -> UsedSum {
        let number = |bytes: u64| bytes.min(MOST) as i64;
        let cache = &device.cache;
        // No sum of driver memory includes blocks whose memory was not recorded, or is unmapped.
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
        // Each was measured at another time. Their sum must not exceed what NVML shows now.
        let mut left = beyond.max(0);
        for (what, bytes) in named_by_the_driver(device) {
            let bytes = number(bytes).min(left);
            left -= bytes;
            parts.push((what, bytes));
        }
        parts.push((UsedPart::Unattributed, if beyond < 0 { beyond } else { left }));
        let counted = oom.refusal.map(|at| at.refused).filter(|it| it.by == RefusedBy::Cap);
        // What the cap counted beyond the parts is a separate part.
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

/// The known parts of the memory that only NVML shows.
fn named_by_the_driver(device: &DeviceState) -> Vec<(UsedPart, u64)> {
    let own = &device.driver_own;
    let causes = Cause::ALL.into_iter().map(|cause| (UsedPart::Driver(cause), own.of(cause)));
    let by_cause = own.of(Cause::LocalMemory).saturating_add(own.of(Cause::Heap));
    causes.chain([(UsedPart::Limits, device.limit_bytes.saturating_sub(by_cause))]).collect()
}

fn sum(parts: &[(UsedPart, i64)]) -> i64 {
    parts.iter().map(|(_, bytes)| *bytes).fold(0, i64::saturating_add)
}
