//! Which batch fits on a card, by one or more recorded batches.
//!
//! [`Recording`] reads a trace: the blocks of PyTorch's cache before the first step and in each step. [`Scaling`] pairs
//! the blocks of several batches (`matching.rs`), finds how each depends on the batch, or on the batch and the length of samples (`law.rs`), and replays the run at others through the model of the allocator.

mod answer;
mod cards;
mod caveats;
mod guesses;
#[cfg(test)]
mod hostile_tests;
mod law;
#[cfg(test)]
mod made;
mod margins;
mod marked;
mod matching;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod recorded_tests;
mod recording;
mod reductions;
mod scaling;
mod stacks;
#[cfg(test)]
mod tests;
mod varied;

pub use answer::{
    Answer, AnsweredCard, FitsVerdict, Interval, LawShare, Predicted, Question, RecordedRun,
    SettingAnswer, answer, usual_settings,
};
pub use cards::{Architecture, Card, card_named, card_names};
pub use law::{Bound, Law, LawKind, Point};
pub use marked::{marked_batches, marked_numbers, marked_recordings};
pub use recording::{Batches, Recording};
pub use scaling::{Scaling, Share};
pub use varied::{Axis, Number, Values, Varied, VariedName, describe};

/// The largest batch, or length, that is read, asked for and tried.
pub const LARGEST_BATCH: u64 = 1 << 20;

/// Why traces tell nothing about other batches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot be compared: {0}")]
pub struct NotComparable(pub String);
