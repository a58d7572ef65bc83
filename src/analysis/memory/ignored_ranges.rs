//! Ranges of a program (NVTX) that an analysis leaves out, because too many are nested or open.

use rustc_hash::FxHashMap;
use vramtrace_format::ThreadId;

/// Counts the open ranges that are ignored, so that their ends do not end other ranges.
#[derive(Debug, Default)]
pub struct IgnoredRanges {
    /// Ranges of a thread end in the reverse order of their begins, others by name: the key is a thread and
    /// 0, or no thread and the name.
    open: FxHashMap<(Option<ThreadId>, u32), u64>,
}

impl IgnoredRanges {
    /// A range begins that is ignored. `thread`: `None` for a range that any thread may end.
    pub fn begin(&mut self, thread: Option<ThreadId>, name: u32) {
        *self.open.entry(key(thread, name)).or_default() += 1;
    }

    /// Whether the next end of this thread, or of this name, is that of an ignored range. A range that begins
    /// now is to be ignored too, as its end comes first.
    pub fn has(&self, thread: Option<ThreadId>, name: u32) -> bool {
        self.open.get(&key(thread, name)).is_some_and(|open| *open > 0)
    }

    /// A range ends. Returns whether it was an ignored one.
    pub fn end(&mut self, thread: Option<ThreadId>, name: u32) -> bool {
        let open = self.open.get_mut(&key(thread, name)).filter(|open| **open > 0);
        open.is_some_and(|open| {
            *open -= 1;
            true
        })
    }
}

fn key(thread: Option<ThreadId>, name: u32) -> (Option<ThreadId>, u32) {
    (thread, if thread.is_some() { 0 } else { name })
}
