//! The results of a recorder that are not in the columns.

use std::collections::BTreeMap;

use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;
use serde::Serialize;
use vramtrace_format::{DeviceId, DriverCause, Kind, StackId};

use super::phases::PagePhases;

/// The owner of a block, of an allocation or of memory that the driver took: its stack, kind and device.
pub(super) type RecordOwner = (StackId, OwnerKind, DeviceId);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OwnerKind {
    Allocated(Kind),
    /// What the driver took for itself.
    Driver(DriverCause),
}

/// Numbers of causes follow those of kinds.
const FIRST_CAUSE: u8 = 32;

impl OwnerKind {
    pub(super) fn number(self) -> u8 {
        match self {
            OwnerKind::Allocated(kind) => kind as u8,
            OwnerKind::Driver(cause) => FIRST_CAUSE + cause as u8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            OwnerKind::Allocated(kind) => kind.name(),
            OwnerKind::Driver(cause) => cause.words(),
        }
    }

    pub(super) fn cause(self) -> Option<DriverCause> {
        match self {
            OwnerKind::Allocated(_) => None,
            OwnerKind::Driver(cause) => Some(cause),
        }
    }

    /// The number and the name of each.
    pub(super) fn all() -> Vec<(u8, &'static str)> {
        let kinds = Kind::ALL.into_iter().map(OwnerKind::Allocated);
        let all = kinds.chain(DriverCause::ALL.into_iter().map(OwnerKind::Driver));
        all.map(|kind| (kind.number(), kind.name())).collect()
    }
}

/// An event that the page marks on the time axis.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PageMark {
    pub ordinal: u64,
    /// `refusal`, `oom`, `warned`.
    pub what: &'static str,
    pub device: u8,
    pub bytes: u64,
    /// Who refused the request: a name of [`vramtrace_format::RefusedBy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<&'static str>,
}

/// Maximum number of marks that a page holds.
pub(super) const MAX_MARKS: usize = 20_000;

/// The results.
#[derive(Debug, Default, Serialize)]
pub(super) struct Recorded {
    #[serde(skip)]
    pub owners: IndexSet<RecordOwner, FxBuildHasher>,
    pub phases: PagePhases,
    pub marks: Vec<PageMark>,
    /// There were more marks than the page holds.
    pub more_marks: bool,
    /// First and last ordinal between which events are missing.
    pub gaps: Vec<(u64, u64)>,
    /// The ordinal of each device's peak, as replayed.
    pub peaks: BTreeMap<u8, u64>,
    /// The ordinals of the failures with which the run ended, by offset in the trace.
    #[serde(skip)]
    pub fatal: BTreeMap<u64, u64>,
    /// The last ordinal.
    pub last: u64,
    /// Records of blocks.
    pub blocks: u64,
    /// Records of driver allocations.
    pub memory: u64,
    /// Allocations of fewer bytes are not listed one by one; 0: all are.
    pub lumped_below: u64,
    /// The number of these allocations.
    pub lumped: u64,
}
