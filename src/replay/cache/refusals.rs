//! Which refusals a framework absorbed.
//!
//! A cache whose driver call is refused frees what it can and asks again; its caller never knows.
//! Thread by thread: a refused call is absorbed when the next block is made in driver memory that
//! the thread got after the refusal; it is not when the framework gives up, or when the thread
//! goes on with a block out of older memory (then somebody else's call was refused).

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, ThreadId};

#[derive(Clone, Copy, Debug)]
struct Waiting {
    device: DeviceId,
    refusals: u64,
    /// The thread has got driver memory since.
    served: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Refusals {
    waiting: FxHashMap<ThreadId, Waiting>,
}

impl Refusals {
    pub fn refused(&mut self, thread: ThreadId, device: DeviceId) {
        let fresh = Waiting { device, refusals: 0, served: false };
        let waiting = self.waiting.entry(thread).or_insert(fresh);
        if waiting.device != device {
            *waiting = fresh;
        }
        waiting.refusals = waiting.refusals.saturating_add(1);
        waiting.served = false;
    }

    /// The thread got memory from the driver.
    pub fn served(&mut self, thread: ThreadId) {
        if self.waiting.is_empty() {
            return;
        }
        if let Some(waiting) = self.waiting.get_mut(&thread) {
            waiting.served = true;
        }
    }

    /// The thread made a block: how many refusals were absorbed by that.
    pub fn block_made(&mut self, thread: ThreadId, device: DeviceId) -> u64 {
        if self.waiting.is_empty() {
            return 0;
        }
        match self.waiting.remove(&thread) {
            Some(waiting) if waiting.served && waiting.device == device => waiting.refusals,
            _ => 0,
        }
    }

    /// The framework gave up.
    pub fn gave_up(&mut self, thread: ThreadId) {
        self.waiting.remove(&thread);
    }
}
