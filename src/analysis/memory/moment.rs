//! The moments of a run that reports can show.

/// The moment whose state is requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// The last event of the trace.
    End,
    /// The peak of driver memory.
    Peak,
    /// The peak of the bytes in blocks of a framework's cache.
    AllocatedPeak,
    /// This many ns after the start of the trace.
    At(u64),
}

impl Moment {
    /// Whether each device reaches this moment at a different time.
    pub fn is_peak(self) -> bool {
        matches!(self, Moment::Peak | Moment::AllocatedPeak)
    }
}
