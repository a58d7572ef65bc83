//! The time of rows: that of the event, or of the one before it where a thread's stamp is slightly less.

use vramtrace_format::Stamped;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock(u64);

impl Clock {
    /// ns since the start of the trace.
    pub(super) fn at(&mut self, at: &Stamped) -> u64 {
        self.0 = self.0.max(at.time_ns);
        self.0
    }
}
