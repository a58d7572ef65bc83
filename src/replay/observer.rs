//! What a caller may watch while events are replayed. Every method may be left out.

use vramtrace_format::{DeviceId, Refused, Stamped};

use super::device::DeviceState;
use super::live::{Key, Live};
use crate::trace::Site;

/// How an allocation came into the live set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Birth {
    /// By its call.
    Allocated,
    /// Named by a checkpoint: made before the part of history that the file still holds.
    Checkpoint,
    /// Its free was refused by the driver: the death told before did not happen.
    FreeFailed,
}

/// How an allocation left the live set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    Freed,
    /// Its context ended.
    WithContext,
    /// Its address was given out again: the free went unseen.
    Replaced,
}

pub trait Observer {
    fn born(&mut self, _at: &Stamped, _key: Key, _live: &Live, _how: Birth) {}
    fn died(&mut self, _at: &Stamped, _key: Key, _live: &Live, _how: Death) {}
    fn refused(&mut self, _at: &Stamped, _refused: &Refused, _site: Option<&Site>) {}
    /// Some sum of the device changed by this event. Comes after `born` and `died`.
    fn changed(&mut self, _at: &Stamped, _device: DeviceId, _state: &DeviceState) {}
    /// Events are missing here: what is live is not known until the next checkpoint, which tells
    /// it anew. Everything born so far is forgotten without a `died`.
    fn reset(&mut self, _at: &Stamped) {}
}

/// Watches nothing.
impl Observer for () {}
