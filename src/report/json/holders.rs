//! `holders --json`: schema `vramtrace.holders/1`.

use serde::Serialize;
use vramtrace_format::DeviceId;

use super::run::HeldFacts;
use super::stack::{StackFacts, stack_facts, why_no_frames};
use crate::analysis::{
    GroupBy, Holder, Holdings, NamedHoldings, Process, StackClassifier, autograd, bytes_on,
};
use crate::replay::Peak;
use crate::report::wording::ordinal;
use crate::symbols::FREE_CACHE;

pub const SCHEMA: &str = "vramtrace.holders/1";

/// `vramtrace.holders/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
pub struct HoldersReport {
    pub schema: &'static str,
    pub at: MomentFacts,
    /// `driver`, or `tensor`: blocks of PyTorch's cache in place of its segments.
    pub level: &'static str,
    /// Largest first.
    pub holders: Vec<HolderFacts>,
    /// Of several processes: each holder once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<HeldFacts>,
    /// Peaks of which the trace has the height alone: their events are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_known: Vec<NotKnownFacts>,
    /// Libraries that gave no names, and why.
    pub problems: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct NotKnownFacts {
    pub pid: u32,
    pub device: Option<u8>,
    pub bytes: u64,
    pub seconds: f64,
}

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
pub struct MomentFacts {
    /// `peak`, `end` or `time`.
    pub label: &'static str,
    /// Since the start of the trace; null where devices or processes have moments of their own.
    pub seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct HolderFacts {
    pub bytes: u64,
    pub count: u64,
    /// Of what is held on the device, 0 to 1.
    pub share: f64,
    /// Ordinal as the process saw it; null: not known.
    pub device: Option<u8>,
    pub library: Option<String>,
    /// Different stacks that are part of it; the frames are those of the largest.
    pub stacks: u64,
    /// Innermost first.
    #[serde(flatten)]
    pub stack: StackFacts,
    /// Who it is where no line of the program is known: a step of backward, PyTorch's free cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub pid: u32,
    pub rank: Option<u32>,
    /// Why there are no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_frames: Option<&'static str>,
}

/// Of one device, or of all.
pub fn facts(
    process: &Process,
    who: &NamedHoldings,
    holdings: &Holdings,
    device: Option<DeviceId>,
    top: usize,
) -> Vec<HolderFacts> {
    facts_by(process, who, holdings, device, GroupBy::Line, top)
}

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
    let total = |device| bytes_on(&all, device).max(1);
    let wanted = all.iter().filter(|holder| device.is_none_or(|id| holder.device == id));
    let fact = |holder: &Holder| HolderFacts {
        bytes: holder.bytes,
        count: holder.count,
        share: holder.bytes as f64 / total(holder.device) as f64,
        device: ordinal(holder.device),
        library: holder.library.clone(),
        stacks: holder.stacks,
        stack: stack_facts(&who.symbols, holder.stack, holder.lead, holder.caller),
        name: name(&classifier, holder),
        pid: process.header.pid,
        rank: process.header.rank,
        no_frames: why_no_frames(&who.symbols, holder.stack),
    };
    wanted.take(top).map(fact).collect()
}

fn name(classifier: &StackClassifier, holder: &Holder) -> Option<String> {
    let function = &classifier.frame(holder.stack, holder.lead)?.function;
    let free = holder.stack == FREE_CACHE;
    (free || autograd::node(function).is_some()).then(|| autograd::spoken(function).into_owned())
}
