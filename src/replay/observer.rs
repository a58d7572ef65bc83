//! What a caller may watch while events are replayed. Every method may be left out.

use vramtrace_format::{BlockChange, DeviceId, Mark, PostMortem, Refused, StackId, Stamped};

use super::cache::CacheOomAt;
use super::device::DeviceState;
use super::live::{Key, Live};
use super::mapping::{Asleep, Mapping};
use super::state::State;
use crate::trace::Site;

/// How an allocation came into the live set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocCause {
    /// By its call.
    Allocated,
    /// Named by a checkpoint: made before the part of history that the file still holds.
    Checkpoint,
    /// Its free was refused by the driver: the free that was reported before did not happen.
    FreeFailed,
}

/// How an allocation left the live set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeCause {
    Freed,
    /// Its context ended.
    WithContext,
    /// Its address was given out again: the free went unseen.
    Replaced,
    /// A block: the memory below it was given back.
    WithMemory,
}

pub trait Observer {
    fn on_alloc(&mut self, _at: &Stamped, _key: Key, _live: &Live, _how: AllocCause) {}
    fn on_free(&mut self, _at: &Stamped, _key: Key, _live: &Live, _how: FreeCause) {}
    /// A framework's block, by its address: `on_alloc` and `on_free` do not get it, as it lies in
    /// memory that they got.
    fn on_block_alloc(&mut self, _at: &Stamped, _address: u64, _live: &Live, _how: AllocCause) {}
    fn on_block_free(&mut self, _at: &Stamped, _address: u64, _live: &Live, _how: FreeCause) {}
    /// This memory, which `on_alloc` got before, is a framework's segment or a part of one: from here on
    /// its blocks say what it is for. Before the `on_block_alloc` that made it one. An object that is
    /// mapped twice may come twice.
    fn on_segment(&mut self, _at: &Stamped, _key: Key, _live: &Live) {}
    /// A physical object is mapped here. `None`: it is not known (yet: a checkpoint has no order).
    fn on_map(&mut self, _at: &Stamped, _address: u64, _mapping: &Mapping, _object: Option<&Live>) {
    }
    /// The mapping that began here is gone; `on_block_free` got the blocks that lay in it.
    fn on_unmap(&mut self, _at: &Stamped, _address: u64, _mapping: &Mapping) {}
    /// Mapped memory is unmapped and may come back: what lies above it lives on. In place of
    /// `on_unmap`. `by`: the stack of the call.
    fn on_sleep(&mut self, _at: &Stamped, _asleep: &Asleep, _by: StackId) {}
    /// Memory is mapped again where a sleeping range lost it. Called instead of `on_map`.
    fn on_wake(&mut self, _at: &Stamped, _mapping: &Mapping, _object: Option<&Live>) {}
    /// The reservation of a sleeping range was freed.
    fn on_sleep_end(&mut self, _at: &Stamped, _asleep: &Asleep) {}
    /// More about a block: after `on_block_alloc` or `on_block_free`. Only in imported traces.
    fn on_block_change(&mut self, _at: &Stamped, _address: u64, _change: BlockChange) {}
    /// Of a live block, this many bytes lost the memory below them, or have it again (below 0). After
    /// its `on_block_alloc`; what is paused of a block when it is freed goes with it.
    fn on_block_paused(&mut self, _at: &Stamped, _device: DeviceId, _address: u64, _bytes: i64) {}
    /// A framework's cache gave up on a request.
    fn on_cache_oom(&mut self, _at: &Stamped, _device: DeviceId, _oom: &CacheOomAt) {}
    /// The recorder found the program really out of memory.
    fn on_post_mortem(&mut self, _at: &Stamped, _post_mortem: &PostMortem) {}
    /// Another process on a device, listed at a post-mortem; its bytes where NVML knows them.
    fn on_neighbour(&mut self, _at: &Stamped, _device: DeviceId, _pid: u32, _bytes: Option<u64>) {}
    /// Memory at this address was made ready for other processes. `segment`: of which device's
    /// cache it is, if it lies in a framework's segment.
    fn on_share(
        &mut self,
        _at: &Stamped,
        _address: u64,
        _stack: StackId,
        _segment: Option<DeviceId>,
    ) {
    }
    /// The program marked a phase; `name` is a text of the definitions.
    fn on_mark(&mut self, _at: &Stamped, _name: u32, _mark: Mark) {}
    fn on_refusal(&mut self, _at: &Stamped, _refused: &Refused, _site: Option<&Site>) {}
    /// The first call that failed after a refusal, not by want of memory.
    fn on_error_after_refusal(&mut self, _at: &Stamped, _api: u16, _result: i32) {}
    /// The process ended with this, after a refusal.
    fn on_exit_status(&mut self, _at: &Stamped, _status: i32) {}
    /// Some sum of the device changed by this event. Comes after `on_alloc` and `on_free`.
    fn on_device_change(&mut self, _at: &Stamped, _device: DeviceId, _state: &DeviceState) {}
    /// Events are missing here: what is live is not known until the next checkpoint, which tells
    /// it anew. Every allocation so far is forgotten without an `on_free`.
    fn on_history_gap(&mut self, _at: &Stamped) {}
    /// After a `reset`: a checkpoint was read whole, and this is what is live.
    fn on_resume(&mut self, _at: &Stamped, _state: &State) {}
    /// The event was applied: the state behind it.
    fn on_applied(&mut self, _at: &Stamped, _state: &State) {}
}

/// Watches nothing.
impl Observer for () {}
