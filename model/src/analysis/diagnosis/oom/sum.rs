//! The used memory of a device by purpose. The parts add up to the byte.

use serde::Serialize;
use vramtrace_format::{DriverCause, Kind, RefusedBy};

use super::Oom;
use crate::replay::DeviceState;

/// The purpose of a part of the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
pub enum UsedPart {
    /// Blocks of PyTorch's cache.
    Tensors,
    /// The free part of its segments.
    TorchCache,
    /// Driver memory that a library requested.
    Library,
    /// Reserved by the driver's pools, and in no allocation.
    FreeInPools,
    /// Unused parts of pages, and reserves of graphs.
    Rounding,
    /// Contexts.
    Context,
    /// Memory that the driver took for itself, by the kind of the call after which it appeared.
    Driver(DriverCause),
    /// The rest of NVML's figure. Negative where NVML shows less than the other parts.
    Unattributed,
    /// What the cap counted in addition: requests of other threads under way, the unused part of a step of
    /// managed memory.
    Counted,
}

impl From<UsedPart> for &'static str {
    /// The name in JSON.
    fn from(part: UsedPart) -> &'static str {
        match part {
            UsedPart::Tensors => "tensors",
            UsedPart::TorchCache => "torch_cache",
            UsedPart::Library => "library",
            UsedPart::FreeInPools => "free_in_pools",
            UsedPart::Rounding => "rounding",
            UsedPart::Context => "context",
            UsedPart::Driver(DriverCause::Context) => "context_later",
            UsedPart::Driver(DriverCause::Other) => "driver_other",
            UsedPart::Driver(cause) => cause.name(),
            UsedPart::Unattributed => "unattributed",
            UsedPart::Counted => "counted",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Used {
    /// `tensors`, `torch_cache`, `library`, `rounding`, `context`, `limits`, `unattributed`, ...
    #[cfg_attr(feature = "schemas", schemars(with = "String"))]
    pub what: UsedPart,
    /// May be negative: `rounding`, `unattributed`.
    pub bytes: i64,
    /// Null: not known from the stacks, or another part.
    pub library: Option<String>,
}

/// One device at one moment: the memory that nvidia-smi shows for the process, and managed memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct UsedSum {
    /// Bytes that the process had in use: the sum of the parts.
    #[serde(rename = "used_bytes")]
    pub bytes: u64,
    #[serde(rename = "used")]
    pub parts: Vec<Used>,
    /// Managed memory: included in the sum, but not in the figure of nvidia-smi.
    #[serde(rename = "managed_bytes")]
    pub managed: u64,
    /// NVML had a figure: the sum includes what only NVML shows.
    #[serde(rename = "in_nvidia_smi")]
    pub knows_process: bool,
}

/// The largest part: a damaged file may hold any number, and the sum of all parts must not overflow.
const MAX_PART: u64 = 1 << 50;

impl UsedSum {
    /// `libraries`: driver memory that is no segment of a cache, by the library that requested it.
    pub fn of(device: &DeviceState, oom: &Oom, libraries: Vec<(Option<String>, u64)>) -> UsedSum {
        let number = |bytes: u64| bytes.min(MAX_PART) as i64;
        let cache = &device.cache;
        let tensors = device.in_blocks();
        let part = |what, bytes| Used { what, bytes, library: None };
        let mut parts = vec![
            part(UsedPart::Tensors, number(tensors)),
            part(UsedPart::TorchCache, number(cache.free_resident())),
        ];
        parts.extend(
            libraries
                .into_iter()
                .map(|(library, bytes)| Used { library, ..part(UsedPart::Library, number(bytes)) }),
        );
        parts.push(part(UsedPart::FreeInPools, number(device.free_in_pools())));
        let named = sum(&parts);
        parts.push(part(UsedPart::Rounding, number(device.live_bytes).saturating_sub(named)));
        parts.push(part(UsedPart::Context, number(device.context_bytes)));
        let measured = device.sample.and_then(|at| at.unattributed());
        let beyond = measured.unwrap_or(0).clamp(-(MAX_PART as i64), MAX_PART as i64);
        // Each was measured at another time. Their sum must not exceed what NVML shows now.
        let mut left = beyond.max(0);
        for cause in DriverCause::ALL {
            let bytes = number(device.driver_own.of(cause)).min(left);
            left -= bytes;
            parts.push(part(UsedPart::Driver(cause), bytes));
        }
        parts.push(part(UsedPart::Unattributed, if beyond < 0 { beyond } else { left }));
        let counted = oom.refusal.map(|at| at.refused).filter(|it| it.by == RefusedBy::Cap);
        // What the cap counted beyond the parts is a separate part.
        let least = counted.map_or(0, |refused| number(refused.counted));
        let beside = least.saturating_sub(sum(&parts)).max(0);
        parts.push(part(UsedPart::Counted, beside));
        parts.retain(|part| part.bytes != 0);
        UsedSum {
            bytes: sum(&parts).max(0) as u64,
            managed: device.kind(Kind::Managed).live_bytes,
            knows_process: measured.is_some(),
            parts,
        }
    }
}

fn sum(parts: &[Used]) -> i64 {
    parts.iter().map(|part| part.bytes).fold(0, i64::saturating_add)
}
