//! The sum from a process's allocations to the memory that nvidia-smi shows for it.

use std::collections::BTreeMap;

use vramtrace_format::Cause;

use crate::replay::{DeviceState, InUse};

/// The moment of the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The last event: NVML's last figure plus the changes that were recorded since.
    Now,
    /// NVML's last figure: the device's contexts were destroyed since.
    LastSample,
}

/// `live - managed + contexts + unattributed = process`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reconciled {
    pub basis: Basis,
    /// Time of NVML's figure, ns since the start of the trace.
    pub sampled_ns: u64,
    /// The parts. Where the trace has no causes, what cuCtxSetLimit took is one.
    pub parts: InUse,
    /// Kernels, heaps, and memory that libraries took without the driver's API. Negative where NVML
    /// shows less than the recorded allocations.
    pub unattributed_bytes: i64,
    /// The part of `unattributed_bytes` that cuCtxSetLimit took: local memory of a larger stack, heaps.
    pub limit_bytes: u64,
    /// The trace has the causes. Older traces have only what cuCtxSetLimit took.
    pub has_causes: bool,
    pub process_bytes: u64,
}

impl Reconciled {
    /// Bytes by cause. Bytes without a known cause are `unknown`, which may be negative.
    pub fn driver_bytes_by_name(&self) -> BTreeMap<&'static str, i64> {
        let of =
            |cause: Cause| i64::try_from(self.parts.driver_own[cause as usize]).unwrap_or(i64::MAX);
        let named = Cause::ALL.into_iter().map(|cause| (cause.name(), of(cause)));
        named.chain([("unknown", self.unknown_bytes())]).collect()
    }

    /// The part of `unattributed_bytes` without a known cause. Negative where NVML shows less than the
    /// sum of the known causes.
    pub fn unknown_bytes(&self) -> i64 {
        let named =
            self.parts.driver_own.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let rest = i128::from(self.unattributed_bytes) - i128::from(named);
        rest.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

/// The sum of a device. `None`: the trace has no figure of NVML.
pub fn reconcile(device: &DeviceState) -> Option<Reconciled> {
    let at = device.sample?;
    let unattributed_bytes = at.unattributed()?;
    let has_contexts = device.contexts > 0 || device.contexts_seen == 0;
    let now = device.in_use();
    let (basis, mut parts) = match now.in_nvidia_smi().filter(|_| has_contexts) {
        Some(_) => (Basis::Now, now),
        None => (Basis::LastSample, at.in_use()),
    };
    // The limits of destroyed contexts are not kept.
    let most = if basis == Basis::Now { unattributed_bytes.max(0) as u64 } else { 0 };
    let limit_bytes = device.limit_bytes.min(most);
    let has_causes = device.driver_own.has_causes();
    if basis == Basis::Now && !has_causes {
        parts.driver_own[Cause::LocalMemory as usize] = limit_bytes;
    }
    let process_bytes = parts.in_nvidia_smi()?;
    let sampled_ns = at.time_ns;
    Some(Reconciled {
        basis,
        sampled_ns,
        parts,
        unattributed_bytes,
        limit_bytes,
        has_causes,
        process_bytes,
    })
}
