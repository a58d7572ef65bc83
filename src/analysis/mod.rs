//! Analyses of recorded traces. Input: opened traces and their replays ([`crate::replay`]). Output:
//! plain values that `report/` and `cli/` print: holders of memory, leaks, causes of an
//! out-of-memory, fragmentation, predictions for other allocator settings, roles, outliers among
//! ranks, and consistency checks. Sizes are bytes; times are ns since the start of the trace.

mod allocation_sizes;
pub mod autograd;
mod curves;
pub mod diff;
mod driver_own;
mod fold;
pub mod frag;
mod holders;
mod holdings;
mod ignored_ranges;
mod known;
mod largest;
pub mod leaks;
mod level;
mod moment;
pub mod oom;
mod outliers;
pub mod parallel;
mod phases;
mod places;
mod process;
pub mod ranks;
mod reconcile;
pub mod roles;
pub mod sleeps;
pub mod tree;
pub mod verify;
pub mod whatif;

pub use allocation_sizes::AllocationSizes;
pub use curves::{Curve, Curves};
pub use driver_own::{TakenBy, taken_by};
pub use holders::{FrameRoles, GroupBy, Holder, StackClassifier, bytes_on};
pub use holdings::{Held, Holdings, Piece, What, each_piece};
pub use ignored_ranges::IgnoredRanges;
pub use known::{Knowledge, ResumePoint, UnknownMoment, knowledge};
pub use largest::{LargestAllocation, largest};
pub use level::Level;
pub use moment::Moment;
pub use outliers::{Standing, outliers};
pub use phases::{InPhase, Phase, phases};
pub use places::{Layer, Places, is_dispatch, pool_hint};
pub use process::{Collect, Ending, NamedHoldings, Process, RolesOf, Wanted, read_all};
pub use reconcile::{Basis, Reconciled, reconcile};
