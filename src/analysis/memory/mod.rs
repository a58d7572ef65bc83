//! Who holds memory at a moment, by stack, line, phase or part: from states of a replay. The other analyses build
//! on this one.

mod allocation_sizes;
mod allocator_frames;
pub mod autograd;
mod driver_own;
mod fold;
pub(in crate::analysis) mod holders;
pub mod holdings;
mod ignored_ranges;
mod known;
mod largest;
mod level;
mod line;
mod moment;
mod named;
mod over_time;
mod phases;
mod places;
mod reconcile;
mod recorded_peaks;
mod sampled;
mod sampled_phases;
mod sleep_facts;
pub mod sleeps;
pub mod tree;

pub use allocation_sizes::AllocationSizes;
pub use driver_own::{TakenBy, taken_by, with_cause};
pub use holders::{FrameRoles, GroupBy, Holder, StackClassifier, sum_of};
pub use holdings::{Held, Holdings, Owner, Piece, What, each_piece};
pub use ignored_ranges::IgnoredRanges;
pub use known::{Knowledge, ResumePoint, UnknownMoment, knowledge};
pub use largest::{LiveAllocation, largest};
pub use level::Level;
pub use line::CodeLine;
pub use moment::{Moment, MomentFacts, StepMoment};
pub use named::NamedStack;
pub use over_time::{Curve, OverTime, OverTimeObserver, moments_for};
pub use phases::{InPhase, MOST_OPEN, Phase, phases};
pub use places::{Layer, Places, is_dispatch, pool_hint};
pub use reconcile::{Basis, Reconciled, reconcile};
pub use sampled::{SampledDevice, SampledHolder, SampledLevel, SampledMoment};
pub use sampled_phases::{SampledPhase, phases_at_peak, phases_before};
pub use sleep_facts::{SleepFacts, SleepsFacts, StayedFacts, UnmappedFacts};
