//! What a recorder found, beside the columns.

use std::collections::BTreeMap;

use serde::Serialize;
use vramtrace_format::{DeviceId, Kind, StackId};

use super::phases::PagePhases;

/// Whose a block or an allocation is: one for each stack, kind and device.
pub type Owner = (StackId, Kind, DeviceId);

/// Something that happened at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct PageMark {
    pub ordinal: u64,
    /// `refusal`, `oom`, `flush`, `emptied`, `sleep`, `warned`.
    pub what: &'static str,
    pub device: u8,
    pub bytes: u64,
    /// By whom it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<&'static str>,
}

/// Marks that a page holds.
pub const MOST_MARKS: usize = 20_000;

/// What the columns do not hold.
#[derive(Debug, Default)]
pub struct Recorded {
    pub owners: Vec<Owner>,
    pub phases: PagePhases,
    pub marks: Vec<PageMark>,
    pub more_marks: bool,
    /// First and last ordinal between which events are missing.
    pub gaps: Vec<(u64, u64)>,
    /// The ordinal of each device's peak, as replayed.
    pub peaks: BTreeMap<DeviceId, u64>,
    /// Of the last time that its cache gave up.
    pub ooms: BTreeMap<DeviceId, u64>,
    pub last: u64,
    pub blocks: u64,
    pub memory: u64,
    pub lumped: u64,
    pub highest_lane: u64,
    pub highest_memory_lane: u64,
}
