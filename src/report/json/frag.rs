//! `frag --json`: schema `vramtrace.frag/1`.

use serde::Serialize;
use vramtrace_format::Header;

use super::is_zero;
use super::stack::{StackFacts, autograd_name, stack_facts, why_no_frames};
use crate::analysis::frag::{Frag, FragSegment, Pin, PoolFrag};
use crate::analysis::{Moment, StackClassifier};
use crate::report::wording::ordinal;

pub const SCHEMA: &str = "vramtrace.frag/1";

/// `vramtrace.frag/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FragReport {
    pub schema: &'static str,
    pub devices: Vec<FragFacts>,
}

/// One device of one process.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FragFacts {
    /// Null: the device is not known.
    pub ordinal: Option<u8>,
    pub pid: u32,
    pub rank: Option<u32>,
    /// `peak`, `peak-allocated`, `end`, `oom`, `time`, `step` (its peak) or `step-end`.
    pub at: &'static str,
    /// Null: the trace has no times.
    pub at_s: Option<f64>,
    pub reserved_bytes: u64,
    pub allocated_bytes: u64,
    /// Of the reserved, and of the allocated bytes, those without physical memory: it was unmapped and
    /// may be mapped again. Absent where there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub reserved_paused_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub paused_bytes: u64,
    pub free_in_segments_bytes: u64,
    pub largest_free_block_bytes: u64,
    /// Of the free bytes: those in segments without a block.
    pub releasable_bytes: u64,
    /// Of the free bytes: those in segments with a block, in pieces smaller than the usual request.
    pub unusable_bytes: u64,
    pub peak_reserved_bytes: u64,
    pub peak_allocated_bytes: u64,
    /// 1 - peak allocated / peak reserved; null where nothing was reserved.
    pub fragmentation: Option<f64>,
    /// The history begins here: earlier peaks are not known. Null: it is complete.
    pub from_s: Option<f64>,
    /// The size of the last request that failed.
    pub out_of_memory_bytes: Option<u64>,
    pub small: PoolFrag,
    pub large: PoolFrag,
    pub segments: u64,
    /// The segments with a block, those with the most free memory first.
    pub pinned: Vec<SegmentFacts>,
    /// The lines of code whose blocks keep segments, those that keep the most free memory first.
    pub holders: Vec<PinFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SegmentFacts {
    pub address: u64,
    pub bytes: u64,
    pub free_bytes: u64,
    pub largest_free_block_bytes: u64,
    pub blocks: u64,
    pub small: bool,
    pub expandable: bool,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PinFacts {
    /// Its share of the free bytes of the segments that it has blocks in.
    pub pinned_bytes: u64,
    pub segments: u64,
    /// Of those, the ones without blocks of other lines.
    pub alone: u64,
    pub bytes: u64,
    pub blocks: u64,
    /// The library that called the driver.
    pub library: Option<String>,
    /// Of the stack with the most bytes. Innermost first.
    #[serde(flatten)]
    pub stack: StackFacts,
    /// The name where no line of the program is known: a node of the autograd graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Why there are no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_frames: Option<&'static str>,
}

/// The most segments and the most holders in the document: a trace may have thousands.
const FACTS: usize = 100;

/// The facts of one device.
pub fn facts(frag: &Frag, header: &Header, at: Moment) -> FragFacts {
    let classifier = StackClassifier::new(&frag.symbols, header);
    FragFacts {
        ordinal: ordinal(frag.device),
        pid: header.pid,
        rank: header.rank,
        at: at.label(),
        at_s: frag.at_ns.map(|ns| ns as f64 / 1e9),
        reserved_bytes: frag.reserved,
        allocated_bytes: frag.allocated,
        reserved_paused_bytes: frag.reserved_paused,
        paused_bytes: frag.paused,
        free_in_segments_bytes: frag.free(),
        largest_free_block_bytes: frag.largest_free,
        releasable_bytes: frag.releasable(),
        unusable_bytes: frag.unusable(),
        peak_reserved_bytes: frag.peak_reserved,
        peak_allocated_bytes: frag.peak_allocated,
        fragmentation: frag.fragmentation(),
        from_s: frag.from_ns.map(|ns| ns as f64 / 1e9),
        out_of_memory_bytes: frag.out_of_memory.map(|oom| oom.size),
        small: frag.small,
        large: frag.large,
        segments: frag.segments.len() as u64,
        pinned: frag.pinned_segments().into_iter().take(FACTS).map(segment_facts).collect(),
        holders: frag.pins.iter().take(FACTS).map(|pin| pin_facts(&classifier, pin)).collect(),
    }
}

fn segment_facts(segment: &FragSegment) -> SegmentFacts {
    SegmentFacts {
        address: segment.address,
        bytes: segment.bytes,
        free_bytes: segment.free(),
        largest_free_block_bytes: segment.largest_free,
        blocks: segment.blocks.len() as u64,
        small: segment.small,
        expandable: segment.expandable,
    }
}

fn pin_facts(classifier: &StackClassifier, pin: &Pin) -> PinFacts {
    let roles = classifier.roles_of_block(pin.stack);
    PinFacts {
        pinned_bytes: pin.pinned,
        segments: pin.segments,
        alone: pin.alone,
        bytes: pin.bytes,
        blocks: pin.blocks,
        library: classifier.library_name(&roles).map(str::to_string),
        stack: stack_facts(classifier.symbols, pin.stack, roles.lead, roles.caller),
        name: autograd_name(classifier, pin.stack, roles.lead),
        no_frames: why_no_frames(classifier.symbols, pin.stack),
    }
}
