//! Leaks: stacks whose live bytes grow without end. Input: the events of a trace, in one pass. Output:
//! [`Leaks`], verdicts by stack and line. Memory is bounded by the number of stacks and the live set.
//!
//! For each stack the lowest live bytes in each of some hundred bins are kept, over time and over
//! activity (events), because a program may pause for hours, load libraries for seconds, or work in
//! bursts.
//!
//! * **Growth.** The first fifth is warm-up. Then the floor (the lowest value from each moment on; low
//!   points, where the value rises and falls) must rise by rank (Mann-Kendall), several times, not
//!   mostly in one jump, spread over time or events, and until near the last allocation.
//! * **Not growth.** A stack that stops to rise while others go on is a full cache. Growth is at most
//!   what is live at the end: a step that the end interrupted is no growth. Frees that no allocation
//!   follows belong to the process's end, if they take little time.
//! * **Loading weights** grows, too. Where nothing is freed, or where a device's first and largest user
//!   allocates many sizes, the confidence is below the limit of a leak.
//! * **Levels.** Blocks are judged in place of the segments that hold them. Driver memory of a
//!   framework whose blocks are not recorded is reported as its pool, never as a leak.
//! * **A pool of ever larger pieces** grows as a leak does, and is none (`larger.rs`).
//! * **The driver's own memory** (executable graphs, streams, code, bytes without a name) is judged by rules of its
//!   own (`driver.rs`).
//! * **Confidence** is tau times the root of straightness, less where rises are few or nothing else is
//!   ever freed. 0.5 and more counts as a leak in CI. docs/gpu-evidence.md has the results for programs with
//!   known answers.
//!
//! ```text
//! events -> observer (live bytes of each stack, in bins) -> growth (trend) -> judge (verdicts)
//! ```

mod driver;
mod growth;
mod judge;
mod larger;
mod late;
mod lines;
mod observer;
mod sampled;
mod series;
mod sorted;
mod suppress;
#[cfg(test)]
mod tests;
mod trend;
mod verdict;

pub use crate::replay::history::Sampled;
pub use growth::{Growth, KeptReason};
pub use suppress::{BadRule, Suppressions, UnusedRule};
pub use verdict::{DriverMemory, KeptMemory, Leak, LeakReason, Leaks, Pooled, Suppressed, Verdict};

use crate::replay::State;
use crate::trace::{Definitions, Trace};

pub use observer::GrowthObserver;

/// With more bytes of traces than this, only `vramtrace leaks` looks for them: it takes longer than other figures.
pub const QUICK_BYTES: u64 = 64 << 20;

/// Reads a trace and judges every stack. Leaks of less than `least` bytes are left out.
pub fn find(trace: &Trace, rules: &Suppressions, least: u64) -> Leaks {
    let (definitions, _) = trace.definitions();
    let mut observer = GrowthObserver::default();
    let end = trace.replay(&definitions, &mut observer).state;
    Watched::new(observer, &end).judge(trace, &definitions, &end, rules, least)
}

/// The histories of all stacks of a whole trace.
#[derive(Clone, Debug)]
pub struct Watched {
    observer: GrowthObserver,
    sampled: Option<Sampled>,
}

impl Watched {
    /// `end`: the state at the end.
    pub fn new(mut observer: GrowthObserver, end: &State) -> Watched {
        // The samples credit memory that was unmapped and mapped again to the call that did so.
        let history = end.history.as_ref().filter(|_| end.history_from_ns > 0 && !observer.woke);
        let sampled = history.and_then(|history| observer.prepend(history));
        Watched { observer, sampled }
    }

    /// `end`: the state at the end.
    pub fn judge(
        &self,
        trace: &Trace,
        definitions: &Definitions,
        end: &State,
        rules: &Suppressions,
        least: u64,
    ) -> Leaks {
        let (header, running) = (trace.header(), trace.is_running());
        let subject = judge::Subject { header, running, definitions };
        let found = judge::judge(subject, end, &self.observer, rules, least);
        Leaks { trace: trace.path().to_path_buf(), sampled: self.sampled, ..found }
    }
}
