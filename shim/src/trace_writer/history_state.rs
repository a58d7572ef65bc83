//! The history of a process, and when a copy of it is due.

use crate::model::history::{Copy, History};

/// A copy takes at most one part in so many of the limit, and at most so many bytes.
pub(super) const PART: u64 = 32;
pub(super) const COPY_MOST: u64 = 4 << 20;
/// The first copy is written when one part in so many of the limit is used; later ones after so much of it, and after so
/// many times the bytes of the last copy.
const FIRST: u64 = 4;
const AGAIN: u64 = 8;
const TIMES: u64 = 8;
/// Time from the begin of a copy to the next one, and as a multiple of what the last one took.
pub(super) const EVERY_NS: u64 = 1_000_000_000;
pub(super) const SHARE: u64 = 100;

pub(super) struct HistoryKeeper {
    pub(super) history: Option<Box<History>>,
    pub(super) limit: u64,
    pub(super) copy: Option<Copy>,
    pub(super) copies: u32,
    /// Bytes of event windows when the last copy began, and its own.
    pub(super) since_bytes: u64,
    pub(super) last_bytes: u64,
    pub(super) due_ns: u64,
    pub(super) cost_ns: u64,
}

impl HistoryKeeper {
    /// `limit`: most bytes of the trace.
    pub(super) fn new(limit: Option<u64>) -> HistoryKeeper {
        HistoryKeeper {
            history: limit.map(|limit| Box::new(History::new(limit))),
            limit: limit.unwrap_or(0),
            copy: None,
            copies: 0,
            since_bytes: 0,
            last_bytes: 0,
            due_ns: 0,
            cost_ns: 0,
        }
    }

    /// The last copy is lost: another one is due.
    pub(super) fn lost(&mut self) {
        (self.copies, self.copy) = (0, None);
    }

    pub(super) fn is_copy_due(&self, event_bytes: u64, now_ns: u64) -> bool {
        let grown = event_bytes.saturating_sub(self.since_bytes);
        let least = match self.copies {
            0 => self.limit / FIRST,
            _ => (self.limit / AGAIN).max(TIMES * self.last_bytes),
        };
        grown >= least && now_ns >= self.due_ns
    }
}
