//! The sum from a process's allocations to the memory that nvidia-smi shows for it.

use vramtrace_format::{Cause, Kind};

use crate::replay::{BytesByCause, DeviceState};

/// The moment of the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The last event: NVML's last figure plus the changes that were recorded since.
    Now,
    /// NVML's last figure: the device's contexts were destroyed since.
    LastSample,
}

/// `live - managed + context + unattributed = process`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reconciled {
    pub basis: Basis,
    /// Time of NVML's figure, ns since the start of the trace.
    pub sampled_ns: u64,
    pub live_bytes: u64,
    pub managed_bytes: u64,
    pub context_bytes: u64,
    /// Kernels, heaps, and memory that libraries took without the driver's API. Negative where NVML
    /// shows less than the recorded allocations.
    pub unattributed_bytes: i64,
    /// The part of `unattributed_bytes` that cuCtxSetLimit took: local memory of a larger stack, heaps.
    pub limit_bytes: u64,
    /// The parts of `unattributed_bytes` with a known cause, at index `Cause as usize`.
    pub driver_bytes: BytesByCause,
    /// The trace has the causes. Older traces have only what cuCtxSetLimit took.
    pub has_causes: bool,
    pub process_bytes: u64,
}

impl Reconciled {
    /// The part of `unattributed_bytes` without a known cause. Negative where NVML shows less than the
    /// sum of the known causes.
    pub fn unknown_bytes(&self) -> i64 {
        let named = self.driver_bytes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let rest = i128::from(self.unattributed_bytes) - i128::from(named);
        rest.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

/// The sum of a device. `None`: the trace has no figure of NVML.
pub fn reconcile(device: &DeviceState) -> Option<Reconciled> {
    let at = device.sample?;
    let unattributed_bytes = at.unattributed()?;
    let limit_bytes = device.limit_bytes.min(unattributed_bytes.max(0) as u64);
    let has_causes = device.driver_own.has_causes();
    let driver_bytes = |by_cause: &BytesByCause| {
        let mut bytes = *by_cause;
        if !has_causes {
            bytes[Cause::LocalMemory as usize] = limit_bytes;
        }
        bytes
    };
    if (device.contexts > 0 || device.contexts_seen == 0)
        && let Some(process_bytes) = device.process_bytes()
    {
        return Some(Reconciled {
            basis: Basis::Now,
            sampled_ns: at.time_ns,
            live_bytes: device.live_bytes,
            managed_bytes: device.kind(Kind::Managed).live_bytes,
            context_bytes: device.context_bytes,
            unattributed_bytes,
            limit_bytes,
            driver_bytes: driver_bytes(device.driver_own.by_cause()),
            has_causes,
            process_bytes,
        });
    }
    Some(Reconciled {
        basis: Basis::LastSample,
        sampled_ns: at.time_ns,
        live_bytes: at.live_bytes,
        managed_bytes: at.managed_bytes,
        context_bytes: at.sample.context_bytes,
        unattributed_bytes,
        // The limits of destroyed contexts are not kept.
        limit_bytes: 0,
        driver_bytes: at.driver_own,
        has_causes,
        process_bytes: at.sample.process_bytes.filter(|bytes| *bytes > 0)?,
    })
}
