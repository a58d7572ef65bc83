//! `holders --json`: schema `vramtrace.holders/1`.

use serde::Serialize;
use vramtrace_format::{Cause, DeviceId};

use super::is_zero;
use super::ranks::HeldFacts;
use super::stack::{
    FrameFacts, StackFacts, autograd_name, frame_facts, stack_facts, why_no_frames,
};
use crate::analysis::roles::{self, HeldByRole, Role, RoleHolder};
use crate::analysis::{
    GroupBy, Holder, Holdings, Moment, NamedHoldings, Process, StackClassifier, bytes_on,
};
use crate::replay::Peak;
use crate::report::wording::ordinal;
use crate::symbols::FREE_CACHE;

pub const SCHEMA: &str = "vramtrace.holders/1";

/// `vramtrace.holders/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HoldersReport {
    pub schema: &'static str,
    pub at: MomentFacts,
    /// `driver`, or `tensor`: blocks of PyTorch's cache in place of its segments.
    pub level: &'static str,
    /// Largest first.
    pub holders: Vec<HolderFacts>,
    /// Only of several processes: the holders, each once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<HeldFacts>,
    /// Peaks of which only the bytes are known: their events are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_known: Vec<NotKnownFacts>,
    /// Libraries whose symbols could not be read, and why.
    pub problems: Vec<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NotKnownFacts {
    pub pid: u32,
    pub device: Option<u8>,
    pub bytes: u64,
    pub seconds: f64,
}

/// The value of `not_known`.
pub fn not_known(process: &Process, holdings: &Holdings) -> Vec<NotKnownFacts> {
    let facts = |(device, peak): (&DeviceId, &Peak)| NotKnownFacts {
        pid: process.header.pid,
        device: ordinal(*device),
        bytes: peak.bytes,
        seconds: peak.time_ns as f64 / 1e9,
    };
    holdings.not_known.iter().map(facts).collect()
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MomentFacts {
    /// `peak`, `peak-allocated`, `end`, `oom`, `time`, `step` (its peak) or `step-end`.
    pub label: &'static str,
    /// Since the start of the trace; null where the moment differs between devices or processes.
    pub seconds: Option<f64>,
}

impl MomentFacts {
    /// `at_ns`: the moment on each device. `seconds` is set only if a time was requested or all moments
    /// are equal: each device has its own peak.
    pub fn of(moment: Moment, at_ns: impl IntoIterator<Item = u64>) -> MomentFacts {
        let asked = match moment {
            Moment::At(time_ns) | Moment::Event { time_ns, .. } => Some(time_ns),
            _ => None,
        };
        let mut all: Vec<u64> = at_ns.into_iter().collect();
        all.dedup();
        let only = match all[..] {
            [only] => Some(only),
            _ => None,
        };
        MomentFacts { label: moment.label(), seconds: asked.or(only).map(|ns| ns as f64 / 1e9) }
    }
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HolderFacts {
    pub bytes: u64,
    /// The standard error of `bytes`, which samples of blocks estimate; absent where they are exact.
    #[serde(skip_serializing_if = "is_zero")]
    pub error_bytes: u64,
    /// Allocations; of memory that the driver took, the calls' functions and names that it took it for.
    pub count: u64,
    /// Bytes without physical memory: it was unmapped and may be mapped again. Not in `bytes`.
    #[serde(skip_serializing_if = "is_zero")]
    pub paused_bytes: u64,
    /// The part of `bytes` that is physical memory without a mapping.
    #[serde(skip_serializing_if = "is_zero")]
    pub unmapped_bytes: u64,
    /// The call that mapped the memory again after it had been unmapped: its innermost frame outside
    /// of frameworks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brought_back_by: Option<FrameFacts>,
    /// The share of all held bytes of the device, 0 to 1.
    pub share: f64,
    /// Ordinal as the process saw it; null: not known.
    pub device: Option<u8>,
    pub library: Option<String>,
    /// Distinct stacks that are part of it. The frames are those of the largest.
    pub stacks: u64,
    /// Innermost first.
    #[serde(flatten)]
    pub stack: StackFacts,
    /// The name where no line of the program is known: a node of the autograd graph, or PyTorch's free
    /// cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub pid: u32,
    pub rank: Option<u32>,
    /// What the driver took the memory for, as in `driver_bytes` of a report; absent where it was allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_memory: Option<&'static str>,
    /// Only in a listing by role.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub role: Option<Role>,
    /// Why there are no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_frames: Option<&'static str>,
}

/// The holders by line of code. `device`: `None` for all devices.
pub fn facts(
    process: &Process,
    who: &NamedHoldings,
    holdings: &Holdings,
    device: Option<DeviceId>,
    top: usize,
) -> Vec<HolderFacts> {
    facts_by(process, who, holdings, device, GroupBy::Line, top)
}

/// As [`facts`], grouped by `by`.
pub fn facts_by(
    process: &Process,
    who: &NamedHoldings,
    holdings: &Holdings,
    device: Option<DeviceId>,
    by: GroupBy,
    top: usize,
) -> Vec<HolderFacts> {
    let classifier = StackClassifier::new(&who.symbols, &process.header);
    let all = classifier.holders(holdings, by);
    let wanted = all.iter().filter(|holder| device.is_none_or(|id| holder.device == id));
    let fact =
        |holder: &Holder| holder_facts(process, &classifier, holder, bytes_on(&all, holder.device));
    wanted.take(top).map(fact).collect()
}

/// The holders by role. The frames are those of the stack that holds the most of a role.
pub fn facts_by_role(
    process: &Process,
    who: &NamedHoldings,
    roles: &HeldByRole,
) -> Vec<HolderFacts> {
    let classifier = StackClassifier::new(&who.symbols, &process.header);
    let all = roles::holders(&classifier, roles, who.live.level);
    let fact = |of: &RoleHolder| {
        let facts =
            holder_facts(process, &classifier, &of.holder, roles.bytes_on(of.holder.device));
        HolderFacts { role: Some(of.role), ..facts }
    };
    all.iter().map(fact).collect()
}

/// One holder. `total`: the bytes that are held on the device.
fn holder_facts(
    process: &Process,
    classifier: &StackClassifier,
    holder: &Holder,
    total: u64,
) -> HolderFacts {
    let symbols = classifier.symbols;
    HolderFacts {
        bytes: holder.bytes,
        error_bytes: holder.error,
        count: holder.count,
        paused_bytes: holder.paused,
        unmapped_bytes: holder.unmapped,
        brought_back_by: holder
            .brought_back_by
            .and_then(|by| classifier.frame(by, classifier.roles(by).lead))
            .map(frame_facts),
        share: holder.bytes as f64 / total.max(1) as f64,
        device: ordinal(holder.device),
        library: holder.library.clone(),
        stacks: holder.stacks,
        stack: stack_facts(symbols, holder.stack, holder.lead, holder.caller),
        name: name(classifier, holder),
        pid: process.header.pid,
        rank: process.header.rank,
        driver_memory: holder.cause.map(Cause::name),
        role: None,
        no_frames: why_no_frames(symbols, holder.stack),
    }
}

/// The value of [`HolderFacts::name`].
fn name(classifier: &StackClassifier, holder: &Holder) -> Option<String> {
    if holder.stack == FREE_CACHE {
        return Some(classifier.frame(holder.stack, holder.lead)?.function.to_string());
    }
    autograd_name(classifier, holder.stack, holder.lead)
}
