//! What the doors know of this process: how often each entry point was called, and what went past.

use super::api::Api;
use crate::config::Config;
use crate::process::Process;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use vramtrace_format::Event;

pub struct Entry {
    used: [AtomicBool; Api::COUNT],
    noted: [AtomicBool; Api::COUNT],
    /// The number of the entry point whose hook is to panic once (a test); else `NEVER`.
    panic_at: AtomicU32,
    panicked: AtomicBool,
}

const NEVER: u32 = u32::MAX;

impl Entry {
    pub fn new(config: &Config) -> Entry {
        let name = config.test_panic.as_deref().unwrap_or("");
        let panic_at = Api::from_name(name.as_bytes()).map_or(NEVER, |api| api as u32);
        Entry {
            used: [const { AtomicBool::new(false) }; Api::COUNT],
            noted: [const { AtomicBool::new(false) }; Api::COUNT],
            panic_at: AtomicU32::new(panic_at),
            panicked: AtomicBool::new(false),
        }
    }

    /// Marks it as used. A load, not a count: threads must not pass a cache line around at
    /// every call.
    #[inline]
    pub fn count(&self, api: Api) {
        let used = &self.used[api as usize];
        if !used.load(Ordering::Relaxed) {
            used.store(true, Ordering::Relaxed);
        }
    }

    pub fn used(&self, api: Api) -> bool {
        self.used[api as usize].load(Ordering::Relaxed)
    }

    /// Marks it as used, and leaves one event that it was passed through.
    pub fn note(&self, process: &'static Process, api: Api) {
        self.count(api);
        if !self.noted[api as usize].swap(true, Ordering::Relaxed) {
            process.recorder.record(&Event::PassedThrough { api: api as u16 });
        }
    }

    /// Whether this is the first panic of ours: one line is enough.
    pub fn first_panic(&self) -> bool {
        !self.panicked.swap(true, Ordering::Relaxed)
    }

    /// Panics once at the entry point that the test chose.
    #[inline]
    pub fn test_panic(&self, api: Api) {
        if self.panic_at.load(Ordering::Relaxed) == api as u32 {
            self.panic_at.store(NEVER, Ordering::Relaxed);
            panic!("asked for by VRAMTRACE_TEST_PANIC");
        }
    }
}
