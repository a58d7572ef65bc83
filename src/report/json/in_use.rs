//! The memory of a process on one device at one moment.

use serde::Serialize;

use crate::replay::InUse;

/// `allocated + free_in_cache + beside_cache + contexts + driver + unattributed` is what nvidia-smi shows. Where
/// that is not known, with `managed` it is what was recorded.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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

impl InUseFacts {
    pub fn of(of: &InUse) -> InUseFacts {
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
