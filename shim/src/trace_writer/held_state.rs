//! What is known of a pause of the recording. [`super::held`] begins and ends it.

use super::attempts::Attempts;
use std::sync::atomic::{AtomicBool, AtomicU64};

#[derive(Default)]
pub struct Held {
    /// To open the file.
    pub opening: Attempts,
    /// Events that were lost since the last time it went on.
    pub lost: AtomicU64,
    /// Events are missing, and no checkpoint follows yet.
    pub owes_checkpoint: AtomicBool,
    /// The lines about the pause and its end were printed.
    pub said: AtomicBool,
    pub said_end: AtomicBool,
}
