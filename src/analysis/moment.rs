//! Moments of a run.

/// Which state of a process is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// As far as the trace goes.
    End,
    /// Of the highest peak of any of its devices.
    Peak,
    /// When the blocks of a framework's cache had the most bytes on any of its devices.
    AllocatedPeak,
    /// This many ns after its start.
    At(u64),
}

impl Moment {
    /// Devices have this moment each at a time of their own.
    pub fn is_peak(self) -> bool {
        matches!(self, Moment::Peak | Moment::AllocatedPeak)
    }
}
