//! Holders of memory: bytes by line, function, library or stack.

use std::cmp::Reverse;
use std::hash::Hash;

use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};
use vramtrace_format::{DeviceId, DriverCause, StackId};

use super::classifier::{KeyFrames, NamedStack, StackClassifier};
use super::holdings::{Holding, Holdings, Owner};
use crate::analysis::engines::Role;
use crate::facts::{self, ProcessId};
use crate::symbols::FREE_CACHE;

/// What two allocations have in common that belong to one holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupBy {
    /// The line that requested the memory, the program's line that called it, and the library.
    #[default]
    Line,
    Function,
    Library,
    Stack,
}

/// Memory of one device that stacks with the same line, function, library, frames or role hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Holder {
    pub bytes: u64,
    /// The standard error of `bytes`, which samples of blocks estimate; absent where they are exact.
    #[serde(skip_serializing_if = "facts::is_zero")]
    pub error_bytes: u64,
    /// Allocations; of memory that the driver took, the calls' functions and names that it took it for.
    pub count: u64,
    /// Bytes without physical memory: it was unmapped and may be mapped again. Not in `bytes`.
    #[serde(skip_serializing_if = "facts::is_zero")]
    pub paused_bytes: u64,
    /// The part of `bytes` that is physical memory without a mapping.
    #[serde(skip_serializing_if = "facts::is_zero")]
    pub unmapped_bytes: u64,
    /// The call that mapped the memory again after it had been unmapped: its innermost frame outside
    /// of frameworks.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "lead_frame")]
    #[cfg_attr(feature = "schemas", schemars(with = "Option<crate::symbols::Frame>"))]
    pub brought_back_by: Option<NamedStack>,
    /// The share of all held bytes of the device, 0 to 1.
    pub share: f64,
    /// Ordinal as the process saw it; null: not known.
    #[serde(with = "facts::Ordinal")]
    pub device: DeviceId,
    /// The library that requested the memory: `cuBLAS`, `PyTorch`, the program's name. Null: not known from the stack.
    pub library: Option<String>,
    /// Distinct stacks that are part of it. The frames are those of the largest.
    pub stacks: u64,
    #[serde(flatten)]
    pub stack: NamedStack,
    #[serde(flatten)]
    pub process: ProcessId,
    /// What the driver took the memory for, as in `driver_bytes` of a report; absent where it was allocated.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "facts::cause")]
    #[cfg_attr(feature = "schemas", schemars(with = "Option<String>"))]
    pub driver_memory: Option<DriverCause>,
    /// Only in a listing by role.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemas", schemars(with = "Option<String>"))]
    pub role: Option<Role>,
    /// True: blocks of PyTorch's cache. False: driver memory.
    #[serde(skip)]
    pub of_cache: bool,
}

impl Holder {
    /// The context that each process has on a device.
    pub fn is_one_context(&self) -> bool {
        self.driver_memory == Some(DriverCause::Context) && self.count < 2
    }
}

fn lead_frame<S: Serializer>(stack: &Option<NamedStack>, to: S) -> Result<S::Ok, S::Error> {
    stack.as_ref().and_then(NamedStack::lead).serialize(to)
}

/// Sum of the bytes of holders.
pub fn sum_of<'h>(holders: impl IntoIterator<Item = &'h Holder>) -> u64 {
    holders.into_iter().fold(0, |sum, holder| sum.saturating_add(holder.bytes))
}

/// Fills the shares, and puts the largest first.
pub(in crate::analysis) fn shared_out(mut holders: Vec<Holder>) -> Vec<Holder> {
    let mut totals: FxHashMap<DeviceId, u64> = FxHashMap::default();
    for holder in &holders {
        let total = totals.entry(holder.device).or_default();
        *total = total.saturating_add(holder.bytes);
    }
    for holder in &mut holders {
        holder.share = holder.bytes as f64 / totals[&holder.device].max(1) as f64;
    }
    holders.sort_by_key(|holder| {
        let size = Reverse((holder.bytes, holder.paused_bytes, holder.count));
        (size, holder.device, holder.role, holder.stack.id, holder.driver_memory)
    });
    holders
}

/// The sums of a group of stacks, and its largest stack.
#[derive(Clone, Copy, Default)]
pub(in crate::analysis) struct HolderSum {
    sum: Holding,
    stacks: u64,
    /// Bytes of the largest stack.
    most: u64,
    pub stack: StackId,
    pub key_frames: KeyFrames,
    pub of_cache: bool,
}

impl HolderSum {
    /// Adds a stack. True: it is the largest one so far; of equal ones that with the lowest id, so that the output does
    /// not depend on the order of hashes.
    pub(in crate::analysis) fn add(&mut self, stack: StackId, held: Holding) -> bool {
        let first = self.stacks == 0;
        self.sum.add(held);
        self.stacks += 1;
        let largest = first || (held.bytes, Reverse(stack)) > (self.most, Reverse(self.stack));
        if largest {
            (self.most, self.stack) = (held.bytes, stack);
        }
        largest
    }
}

impl StackClassifier<'_> {
    /// The holders of all devices, largest first.
    pub fn holders(&self, holdings: &Holdings, by: GroupBy) -> Vec<Holder> {
        match by {
            GroupBy::Line => self.group(holdings, |stack, key_frames| self.line(stack, key_frames)),
            GroupBy::Function => self.group(holdings, |stack, key_frames| {
                let function = |at| {
                    let frame = self.frame(stack, at)?;
                    Some((&frame.file, &frame.function))
                };
                (
                    key_frames.library,
                    function(key_frames.lead),
                    function(key_frames.caller),
                    self.forward_key(stack),
                )
            }),
            // The free memory of a cache is a separate holder.
            GroupBy::Library => {
                self.group(holdings, |stack, key_frames| (key_frames.library, stack == FREE_CACHE))
            }
            GroupBy::Stack => self.group(holdings, |stack, _| {
                let forward = self.symbols.forward_of(stack);
                (self.symbols.indexes(stack), forward.map(|forward| self.symbols.indexes(forward)))
            }),
        }
    }

    fn group<K: Hash + Eq>(
        &self,
        holdings: &Holdings,
        key: impl Fn(StackId, &KeyFrames) -> K,
    ) -> Vec<Holder> {
        let mut all: FxHashMap<_, HolderSum> = FxHashMap::default();
        for (&Owner { device, stack, of_cache, cause }, held) in &holdings.held {
            let key_frames =
                if of_cache { self.key_frames_of_block(stack) } else { self.key_frames(stack) };
            let key = (device, cause, self.why_empty(stack), key(stack, &key_frames));
            let group = all.entry(key).or_default();
            if group.add(stack, *held) {
                (group.key_frames, group.of_cache) = (key_frames, of_cache);
            }
        }
        let holder =
            |((device, cause, ..), group): ((DeviceId, Option<DriverCause>, _, K), HolderSum)| {
                self.holder(device, cause, None, group)
            };
        shared_out(all.into_iter().map(holder).collect())
    }

    /// Without its share.
    pub(in crate::analysis) fn holder(
        &self,
        device: DeviceId,
        cause: Option<DriverCause>,
        role: Option<Role>,
        HolderSum { sum, stacks, stack, key_frames, of_cache, .. }: HolderSum,
    ) -> Holder {
        let brought_back_by = sum.brought_back_by.map(|by| self.named(by));
        Holder {
            bytes: sum.bytes,
            error_bytes: sum.error(),
            count: sum.count,
            paused_bytes: sum.paused,
            unmapped_bytes: sum.unmapped,
            brought_back_by: brought_back_by.filter(|by| by.lead().is_some()),
            share: 0.0,
            device,
            library: self.library_name(&key_frames).map(str::to_string),
            stacks,
            stack: self.named_by(stack, &key_frames),
            process: self.process,
            driver_memory: cause,
            role,
            of_cache,
        }
    }
}
