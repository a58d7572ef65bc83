//! Memory that the driver takes for itself: its part of what nvidia-smi shows for a process, by cause, and by the line whose
//! call made it do so.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
use serde::Serialize;
use vramtrace_format::{DriverCause, SiteId};

use super::classifier::{NamedStack, StackClassifier};
use super::moment::Level;
use crate::replay::{DeviceState, InUse, Originator};
use crate::symbols::demangle;
use crate::trace::Definitions;

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
        let of = |cause: DriverCause| {
            i64::try_from(self.parts.driver_own[cause as usize]).unwrap_or(i64::MAX)
        };
        let named = DriverCause::ALL.into_iter().map(|cause| (cause.name(), of(cause)));
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
        parts.driver_own[DriverCause::LocalMemory as usize] = limit_bytes;
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

/// Memory that the driver took for one cause, by calls from one line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct TakenBy {
    pub bytes: u64,
    /// As in `driver_bytes`.
    pub cause: &'static str,
    /// The function of the call that took the most of it. `needed_for` and the frames are of the same call.
    pub api: String,
    /// The kernel, variable or file.
    pub needed_for: Option<String>,
    pub library: Option<String>,
    #[serde(flatten)]
    pub stack: NamedStack,
}

/// The name of a holder of memory that the driver took: `graphs: train.py:41 capture`.
pub fn with_cause(cause: Option<DriverCause>, name: String) -> String {
    match cause {
        Some(cause) => format!("{}: {name}", cause.words()),
        None => name,
    }
}

/// Memory that the driver took on a device, by cause and line, the `top` largest first. Without a `classifier`
/// (no stacks were recorded), by cause and call.
pub fn taken_by(
    device: &DeviceState,
    definitions: &Definitions,
    classifier: Option<&StackClassifier>,
    top: usize,
) -> Vec<TakenBy> {
    let mut all: Vec<(Originator, u64)> = Vec::new();
    let mut known: FxHashMap<_, usize> = FxHashMap::default();
    for (maker, bytes) in device.driver_own.makers() {
        let line = classifier.map(|classifier| classifier.holder_key(maker.stack, Level::Driver));
        // With a line, calls differ by the line; without, by their site.
        let site = if line.is_none() { maker.site } else { SiteId(0) };
        match known.entry((maker.cause, line, site)) {
            Entry::Occupied(at) => {
                let (_, taken) = &mut all[*at.get()];
                *taken = taken.saturating_add(bytes);
            }
            Entry::Vacant(slot) => {
                slot.insert(all.len());
                all.push((maker, bytes));
            }
        }
    }
    all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let named = |(of, bytes): (Originator, u64)| {
        let (library, stack) = classifier.map_or_else(Default::default, |classifier| {
            let key_frames = classifier.key_frames(of.stack);
            let library = classifier.library_name(&key_frames).map(str::to_string);
            (library, classifier.named_by(of.stack, &key_frames))
        });
        TakenBy {
            bytes,
            cause: of.cause.name(),
            api: definitions.site_api_name(of.site),
            needed_for: definitions.text(of.name).map(demangle),
            library,
            stack,
        }
    };
    all.into_iter().take(top).map(named).collect()
}
