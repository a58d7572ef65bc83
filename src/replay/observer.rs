//! What a caller may watch while events are replayed. Every method may be left out.

use vramtrace_format::{BlockChange, DeviceId, Mark, PostMortem, Refused, StackId, Stamped};

use super::cache::CacheOomAt;
use super::device::DeviceState;
use super::live::{Key, Live};
use super::state::{Mapping, State};
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
    /// A block: the memory below it was given back.
    WithMemory,
}

pub trait Observer {
    fn born(&mut self, _at: &Stamped, _key: Key, _live: &Live, _how: Birth) {}
    fn died(&mut self, _at: &Stamped, _key: Key, _live: &Live, _how: Death) {}
    /// A framework's block, by its address: `born` and `died` are not told of it, as it lies in
    /// memory that they told.
    fn block_born(&mut self, _at: &Stamped, _address: u64, _live: &Live, _how: Birth) {}
    fn block_died(&mut self, _at: &Stamped, _address: u64, _live: &Live, _how: Death) {}
    /// This memory, told by `born` before, is a framework's segment or a part of one: from here on
    /// its blocks say what it is for. Before the `block_born` that made it one. An object that is
    /// mapped twice may be told twice.
    fn became_segment(&mut self, _at: &Stamped, _key: Key, _live: &Live) {}
    /// A physical object is mapped here. `None`: it is not known (yet: a checkpoint has no order).
    fn mapped(&mut self, _at: &Stamped, _address: u64, _mapping: &Mapping, _object: Option<&Live>) {
    }
    /// The mapping that began here is gone; `block_died` told of the blocks that lay in it.
    fn unmapped(&mut self, _at: &Stamped, _address: u64, _mapping: &Mapping) {}
    /// More about a block: after `block_born` or `block_died`. Only in imported traces.
    fn block_changed(&mut self, _at: &Stamped, _address: u64, _change: BlockChange) {}
    /// A framework's cache gave up on a request.
    fn cache_oom(&mut self, _at: &Stamped, _device: DeviceId, _oom: &CacheOomAt) {}
    /// The recorder found the program really out of memory.
    fn post_mortem(&mut self, _at: &Stamped, _told: &PostMortem) {}
    /// Another process on a device, listed at a post-mortem; its bytes where NVML knows them.
    fn neighbour(&mut self, _at: &Stamped, _device: DeviceId, _pid: u32, _bytes: Option<u64>) {}
    /// Memory at this address was made ready for other processes. `segment`: of which device's
    /// cache it is, if it lies in a framework's segment.
    fn shared(
        &mut self,
        _at: &Stamped,
        _address: u64,
        _stack: StackId,
        _segment: Option<DeviceId>,
    ) {
    }
    /// The program marked a phase; `name` is a text of the definitions.
    fn marked(&mut self, _at: &Stamped, _name: u32, _mark: Mark) {}
    fn refused(&mut self, _at: &Stamped, _refused: &Refused, _site: Option<&Site>) {}
    /// Some sum of the device changed by this event. Comes after `born` and `died`.
    fn changed(&mut self, _at: &Stamped, _device: DeviceId, _state: &DeviceState) {}
    /// Events are missing here: what is live is not known until the next checkpoint, which tells
    /// it anew. Everything born so far is forgotten without a `died`.
    fn reset(&mut self, _at: &Stamped) {}
    /// After a `reset`: a checkpoint was read whole, and this is what is live.
    fn resumed(&mut self, _at: &Stamped, _state: &State) {}
}

/// Watches nothing.
impl Observer for () {}
