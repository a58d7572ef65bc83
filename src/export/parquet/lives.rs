//! When and how each allocation ended, found in a first pass: a table sorted by their begins needs it there. Nine bytes
//! an allocation.

use rustc_hash::FxHashMap;
use vramtrace_format::Stamped;

use super::Clock;
use crate::export::sink::SliceEnd;
use crate::replay::{AllocCause, FreeCause, Key, Live, Observer};

/// The ends of all allocations, by their numbers in the order of the file.
#[derive(Default)]
pub(super) struct Lives {
    ends_ns: Vec<u64>,
    how: Vec<SliceEnd>,
    open: FxHashMap<Key, usize>,
    clock: Clock,
}

impl Lives {
    /// The end of an allocation. `None`: it is live at the end of the trace.
    pub(super) fn get(&self, number: usize) -> Option<(u64, SliceEnd)> {
        let how = self.how.get(number).copied().filter(|how| *how != SliceEnd::Live)?;
        Some((self.ends_ns[number], how))
    }

    fn begin(&mut self, key: Key) {
        self.open.insert(key, self.how.len());
        self.ends_ns.push(0);
        self.how.push(SliceEnd::Live);
    }

    fn end(&mut self, at: &Stamped, key: Key, how: FreeCause) {
        let now_ns = self.clock.at(at);
        if let Some(number) = self.open.remove(&key) {
            (self.ends_ns[number], self.how[number]) = (now_ns, how.into());
        }
    }

    fn lose_all(&mut self, at: &Stamped) {
        let now_ns = self.clock.at(at);
        for (_, number) in self.open.drain() {
            (self.ends_ns[number], self.how[number]) = (now_ns, SliceEnd::Lost);
        }
    }
}

impl Observer for Lives {
    fn on_alloc(&mut self, _at: &Stamped, key: Key, _live: &Live, _how: AllocCause) {
        self.begin(key);
    }

    fn on_free(&mut self, at: &Stamped, key: Key, _live: &Live, how: FreeCause) {
        self.end(at, key, how);
    }

    fn on_block_alloc(&mut self, _at: &Stamped, address: u64, _live: &Live, _how: AllocCause) {
        self.begin(Key::block(address));
    }

    fn on_block_free(&mut self, at: &Stamped, address: u64, _live: &Live, how: FreeCause) {
        self.end(at, Key::block(address), how);
    }

    fn on_recording(&mut self, at: &Stamped, on: bool) {
        if !on {
            self.lose_all(at);
        }
    }

    fn on_history_gap(&mut self, at: &Stamped) {
        self.lose_all(at);
    }
}
