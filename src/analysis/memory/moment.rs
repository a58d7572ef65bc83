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
    /// In an iteration of a training. Reading a trace replaces it by the event.
    Step(StepMoment),
    /// After the event at this file offset.
    Event { offset: u64, time_ns: u64 },
}

/// A moment of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepMoment {
    /// From 1.
    pub number: usize,
    /// After it; else when most was allocated in it.
    pub after: bool,
}

impl Moment {
    /// Whether each device reaches this moment at a different time.
    pub fn is_peak(self) -> bool {
        matches!(self, Moment::Peak | Moment::AllocatedPeak)
    }
}
