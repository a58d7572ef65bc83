//! Which refusals a framework absorbed.
//!
//! A cache whose driver call is refused frees cached memory and tries again, which its caller does not
//! notice. This is decided for each thread: a refusal was absorbed if the thread's next block lies in
//! driver memory that it got after the refusal. It was not if the framework gave up, or if the next
//! block lies in older memory (then the refused call was not the cache's).

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
pub(crate) struct Refusals {
    waiting: FxHashMap<ThreadId, Waiting>,
}

impl Refusals {
    pub(crate) fn refused(&mut self, thread: ThreadId, device: DeviceId) {
        let fresh = Waiting { device, refusals: 0, served: false };
        let waiting = self.waiting.entry(thread).or_insert(fresh);
        if waiting.device != device {
            *waiting = fresh;
        }
        waiting.refusals = waiting.refusals.saturating_add(1);
        waiting.served = false;
    }

    /// Notes that the thread got memory from the driver.
    pub(crate) fn served(&mut self, thread: ThreadId) {
        if self.waiting.is_empty() {
            return;
        }
        if let Some(waiting) = self.waiting.get_mut(&thread) {
            waiting.served = true;
        }
    }

    /// Notes a block of the thread. Returns the number of refusals that this absorbed.
    pub(crate) fn block_made(&mut self, thread: ThreadId, device: DeviceId) -> u64 {
        if self.waiting.is_empty() {
            return 0;
        }
        match self.waiting.remove(&thread) {
            Some(waiting) if waiting.served && waiting.device == device => waiting.refusals,
            _ => 0,
        }
    }

    /// Notes that the framework gave up.
    pub(crate) fn gave_up(&mut self, thread: ThreadId) {
        self.waiting.remove(&thread);
    }
}
