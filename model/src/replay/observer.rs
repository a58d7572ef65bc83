//! Callbacks during a replay. Every method has a default.

use vramtrace_format::{
    BlockChange, DeviceId, GraphChange, Mark, PostMortem, Refused, StackId, Stamped, Took,
};

use super::cache::CacheOomAt;
use super::device::DeviceState;
use super::exec_graphs::ExecGraph;
use super::live::{Key, Live};
use super::mapping::{Asleep, Mapping};
use super::state::State;
use crate::trace::SiteInfo;

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

/// Declares the methods of [`Observer`] once: with empty bodies or another method's, for pairs, and for observers that
/// may be absent.
macro_rules! observer {
    ($($(#[$about:meta])* fn $name:ident($($argument:ident: $type:ty),*) $(as $other:ident($($value:expr),*))?;)*) => {
        /// Receives what a replay does with each event, in the order of the file. Two observers as a pair follow
        /// one replay.
        pub trait Observer {
            $($(#[$about])* #[allow(unused_variables)] fn $name(&mut self, $($argument: $type),*) {
                $(self.$other($($value),*);)?
            })*
        }

        impl<A: Observer, B: Observer> Observer for (A, B) {
            $(#[inline] fn $name(&mut self, $($argument: $type),*) {
                self.0.$name($($argument),*);
                self.1.$name($($argument),*);
            })*
        }

        impl<O: Observer> Observer for Option<O> {
            $(#[inline] fn $name(&mut self, $($argument: $type),*) {
                if let Some(observer) = self {
                    observer.$name($($argument),*);
                }
            })*
        }

        impl<O: Observer> Observer for &mut O {
            $(#[inline] fn $name(&mut self, $($argument: $type),*) {
                (**self).$name($($argument),*);
            })*
        }
    };
}

observer! {
    fn on_alloc(at: &Stamped, key: Key, live: &Live, how: AllocCause);
    fn on_free(at: &Stamped, key: Key, live: &Live, how: FreeCause);
    /// A framework's block was allocated. `on_alloc` was called before for the memory of its segment, and is called for
    /// the block where an observer has no method for blocks.
    fn on_block_alloc(at: &Stamped, address: u64, live: &Live, how: AllocCause)
        as on_alloc(at, Key::block(address), live, how);
    /// A framework's block was freed. `on_free` is called for it where an observer has no method for blocks.
    fn on_block_free(at: &Stamped, address: u64, live: &Live, how: FreeCause)
        as on_free(at, Key::block(address), live, how);
    /// The first block was allocated in this memory: it is a framework's segment or a part of one.
    /// Called after its `on_alloc` and before that block's `on_block_alloc`. Called twice for an object
    /// that is mapped twice.
    fn on_segment(at: &Stamped, key: Key, live: &Live);
    /// A physical object was mapped. `object` is `None` where the object is not known, or where a
    /// checkpoint lists it after its mapping.
    fn on_map(at: &Stamped, address: u64, mapping: &Mapping, object: Option<&Live>);
    /// The mapping at this address was removed. `on_block_free` was called for the blocks in it.
    fn on_unmap(at: &Stamped, address: u64, mapping: &Mapping);
    /// Memory was unmapped whose reservation stays: it may be mapped again, and its blocks stay live.
    /// Called instead of `on_unmap`. `by`: the stack of the call.
    fn on_sleep(at: &Stamped, asleep: &Asleep, by: StackId);
    /// Memory was mapped in a range that was unmapped before. Called instead of `on_map`.
    fn on_wake(at: &Stamped, mapping: &Mapping, object: Option<&Live>);
    /// The reservation of an unmapped range was freed: its memory cannot be mapped again.
    fn on_sleep_end(at: &Stamped, asleep: &Asleep);
    /// More about a block: after `on_block_alloc` or `on_block_free`. Only in imported traces.
    fn on_block_change(at: &Stamped, address: u64, change: BlockChange);
    /// The memory of this many bytes of a live block was unmapped, or mapped again (negative). Not
    /// called when a block with unmapped bytes is freed.
    fn on_block_paused(at: &Stamped, device: DeviceId, address: u64, bytes: i64);
    /// The driver took memory for itself, or gave it back.
    fn on_took(at: &Stamped, took: &Took);
    /// The contexts of a device changed, or the bytes of them.
    fn on_contexts(at: &Stamped, device: DeviceId, state: &State);
    /// An executable graph was instantiated, launched or destroyed.
    fn on_graph(at: &Stamped, graph: &ExecGraph, change: GraphChange);
    /// A framework's cache could not serve a request.
    fn on_cache_oom(at: &Stamped, device: DeviceId, oom: &CacheOomAt);
    /// The recorder found that the program is out of memory, and did not survive a refusal.
    fn on_post_mortem(at: &Stamped, post_mortem: &PostMortem);
    /// Another process on a device, listed at a post-mortem; its bytes where NVML knows them.
    fn on_neighbour(at: &Stamped, device: DeviceId, pid: u32, bytes: Option<u64>);
    /// Memory at this address was exported for other processes. `segment`: the device, if the memory
    /// is in a framework's segment.
    fn on_share(at: &Stamped, address: u64, stack: StackId, segment: Option<DeviceId>);
    /// The program marked a phase; `name` is a text of the definitions.
    fn on_mark(at: &Stamped, name: u32, mark: Mark);
    /// A request for memory was refused, or would have been by a cap that only warns.
    fn on_refusal(at: &Stamped, refused: &Refused, site: Option<&SiteInfo>);
    /// The first call after a refusal that failed with another error than out of memory.
    fn on_error_after_refusal(at: &Stamped, api: u16, result: i32);
    /// The exit status of the process, recorded after a refusal.
    fn on_exit_status(at: &Stamped, status: i32);
    /// This event changed a sum of the device. Called after `on_alloc` and `on_free`.
    fn on_device_change(at: &Stamped, device: DeviceId, state: &DeviceState);
    /// The recording was switched off, or on: between the two, events are missing.
    fn on_recording(at: &Stamped, on: bool);
    /// Events are missing here: what is live is not known until the next checkpoint, which lists it
    /// again. Every allocation so far is forgotten without an `on_free`.
    fn on_history_gap(at: &Stamped);
    /// The end of the first whole checkpoint after `on_history_gap`: `state` has all live memory.
    fn on_resume(at: &Stamped, state: &State);
    /// The event was applied. `state`: the state after it.
    fn on_applied(at: &Stamped, state: &State);
}

/// Ignores all events.
impl Observer for () {}
