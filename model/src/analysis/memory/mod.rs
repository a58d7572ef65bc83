//! Who holds memory at a moment, by stack, line, phase or part: from states of a replay. The other analyses build
//! on this one.

mod allocation_sizes;
pub mod autograd;
mod classifier;
mod driver_own;
mod frames;
pub(in crate::analysis) mod holders;
pub mod holdings;
mod moment;
mod over_time;
mod phases;
mod sampled;
pub mod sleeps;

pub use allocation_sizes::AllocationSizes;
pub use classifier::{KeyFrames, NamedStack, StackClassifier};
pub use driver_own::{TakenBy, taken_by, with_cause};
pub use frames::{Layer, Places, is_dispatch, pool_hint, wraps};
pub use holders::{GroupBy, Holder, sum_of};
pub use holdings::{Holding, Holdings, Owner, Piece, each_piece};
pub use moment::{Knowledge, Level, Moment, MomentFacts, StepMoment, knowledge};
pub use over_time::{Curve, OverTime, OverTimeObserver, moments_for};
pub use phases::{IgnoredRanges, InPhase, MAX_OPEN_RANGES, Phase, phases};
pub use sampled::{
    SampledDevice, SampledHolder, SampledLevel, SampledMoment, SampledPhase, phases_at_peak,
    phases_before,
};
pub use sleeps::{SleepFacts, SleepsFacts, StayedFacts, UnmappedFacts};
