//! Callbacks during a replay. Every method has an empty default.

use vramtrace_format::{BlockChange, DeviceId, Mark, PostMortem, Refused, StackId, Stamped};

use super::cache::CacheOomAt;
use super::device::DeviceState;
use super::live::{Key, Live};
use super::mapping::{Asleep, Mapping};
use super::state::State;
use crate::trace::Site;

/// Why an allocation entered the live set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocCause {
    /// A call allocated it.
    Allocated,
    /// A checkpoint lists it: the event of its allocation is missing.
    Checkpoint,
    /// The driver refused its free: the free that was reported before did not happen.
    FreeFailed,
}

/// Why an allocation left the live set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeCause {
    /// A call freed it.
    Freed,
    /// Its context was destroyed.
    WithContext,
    /// Its address was allocated again: the free was not seen.
    Replaced,
    /// A block whose memory was freed.
    WithMemory,
}

/// Receives what a replay does with each event, in the order of the file.
pub trait Observer {
    fn on_alloc(&mut self, _at: &Stamped, _key: Key, _live: &Live, _how: AllocCause) {}
    fn on_free(&mut self, _at: &Stamped, _key: Key, _live: &Live, _how: FreeCause) {}
    /// A framework's block was allocated. `on_alloc` is not called for blocks: it was called for the
    /// memory of their segment.
    fn on_block_alloc(&mut self, _at: &Stamped, _address: u64, _live: &Live, _how: AllocCause) {}
    /// A framework's block was freed. `on_free` is not called for it.
    fn on_block_free(&mut self, _at: &Stamped, _address: u64, _live: &Live, _how: FreeCause) {}
    /// The first block was allocated in this memory: it is a framework's segment or a part of one.
    /// Called after its `on_alloc` and before that block's `on_block_alloc`. Called twice for an object
    /// that is mapped twice.
    fn on_segment(&mut self, _at: &Stamped, _key: Key, _live: &Live) {}
    /// A physical object was mapped. `_object` is `None` where the object is not known, or where a
    /// checkpoint lists it after its mapping.
    fn on_map(&mut self, _at: &Stamped, _address: u64, _mapping: &Mapping, _object: Option<&Live>) {
    }
    /// The mapping at this address was removed. `on_block_free` was called for the blocks in it.
    fn on_unmap(&mut self, _at: &Stamped, _address: u64, _mapping: &Mapping) {}
    /// Memory was unmapped whose reservation stays: it may be mapped again, and its blocks stay live.
    /// Called instead of `on_unmap`. `_by`: the stack of the call.
    fn on_sleep(&mut self, _at: &Stamped, _asleep: &Asleep, _by: StackId) {}
    /// Memory was mapped in a range that was unmapped before. Called instead of `on_map`.
    fn on_wake(&mut self, _at: &Stamped, _mapping: &Mapping, _object: Option<&Live>) {}
    /// The reservation of an unmapped range was freed: its memory cannot be mapped again.
    fn on_sleep_end(&mut self, _at: &Stamped, _asleep: &Asleep) {}
    /// More about a block: after `on_block_alloc` or `on_block_free`. Only in imported traces.
    fn on_block_change(&mut self, _at: &Stamped, _address: u64, _change: BlockChange) {}
    /// The memory of this many bytes of a live block was unmapped, or mapped again (negative). Not
    /// called when a block with unmapped bytes is freed.
    fn on_block_paused(&mut self, _at: &Stamped, _device: DeviceId, _address: u64, _bytes: i64) {}
    /// A framework's cache could not serve a request.
    fn on_cache_oom(&mut self, _at: &Stamped, _device: DeviceId, _oom: &CacheOomAt) {}
    /// The recorder found that the program is out of memory, and did not survive a refusal.
    fn on_post_mortem(&mut self, _at: &Stamped, _post_mortem: &PostMortem) {}
    /// Another process on a device, listed at a post-mortem; its bytes where NVML knows them.
    fn on_neighbour(&mut self, _at: &Stamped, _device: DeviceId, _pid: u32, _bytes: Option<u64>) {}
    /// Memory at this address was exported for other processes. `_segment`: the device, if the memory
    /// is in a framework's segment.
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
    /// A request for memory was refused, or would have been by a cap that only warns.
    fn on_refusal(&mut self, _at: &Stamped, _refused: &Refused, _site: Option<&Site>) {}
    /// The first call after a refusal that failed with another error than out of memory.
    fn on_error_after_refusal(&mut self, _at: &Stamped, _api: u16, _result: i32) {}
    /// The exit status of the process, recorded after a refusal.
    fn on_exit_status(&mut self, _at: &Stamped, _status: i32) {}
    /// This event changed a sum of the device. Called after `on_alloc` and `on_free`.
    fn on_device_change(&mut self, _at: &Stamped, _device: DeviceId, _state: &DeviceState) {}
    /// Events are missing here: what is live is not known until the next checkpoint, which lists it
    /// again. Every allocation so far is forgotten without an `on_free`.
    fn on_history_gap(&mut self, _at: &Stamped) {}
    /// The end of the first whole checkpoint after `on_history_gap`: `_state` has all live memory.
    fn on_resume(&mut self, _at: &Stamped, _state: &State) {}
    /// The event was applied. `_state`: the state after it.
    fn on_applied(&mut self, _at: &Stamped, _state: &State) {}
}

/// Ignores all events.
impl Observer for () {}
