//! Leaks of programs that sleep: what a line holds more of at each sleep. A few sleeps say what bins
//! of time cannot: they are the moments at which a program holds as little as it can.

use std::collections::BTreeMap;

use vramtrace_format::{DeviceId, StackId};

use super::judge::JudgedLeak;
use super::observer::GrowthObserver;
use super::verdict::{Leak, LeakReason, Verdict};
use crate::analysis::sleeps::{self, Growing, ResidentAtSleeps, ResidentPart, Sleeps};
use crate::analysis::{Level, StackClassifier};

/// The sleeps of a trace, with what stayed at them.
#[derive(Debug, Default)]
pub(super) struct SleepFindings {
    sleeps: BTreeMap<DeviceId, Sleeps>,
    rests: BTreeMap<DeviceId, ResidentAtSleeps>,
}

impl SleepFindings {
    pub(super) fn new(
        sleeps: BTreeMap<DeviceId, Sleeps>,
        rests: BTreeMap<DeviceId, ResidentAtSleeps>,
    ) -> SleepFindings {
        SleepFindings { sleeps, rests }
    }

    pub(super) fn stacks(&self) -> impl Iterator<Item = StackId> + '_ {
        self.rests.values().flat_map(ResidentAtSleeps::stacks)
    }

    fn growing(&self, classifier: &StackClassifier) -> Vec<Growing> {
        let of_device = |(device, rests): (&DeviceId, &ResidentAtSleeps)| {
            let sleeps = self.sleeps.get(device)?;
            let numbers: Vec<u64> = rests.sleeps.iter().map(|at| sleeps.all[*at].number).collect();
            Some(sleeps::growing(*device, &rests.by_line(classifier), &numbers))
        };
        self.rests.iter().filter_map(of_device).flatten().collect()
    }

    /// Those that the trend has not found; of those that it has, what speaks for them.
    pub(super) fn leaks(
        &self,
        classifier: &StackClassifier,
        observer: &GrowthObserver,
        found: &mut [JudgedLeak],
    ) -> Vec<Leak> {
        let mut more = Vec::new();
        for growing in self.growing(classifier) {
            let Some(stack) = growing.rest.stack() else { continue };
            let level = match growing.rest.what {
                ResidentPart::Blocks(_) => Level::Tensor,
                _ => Level::Driver,
            };
            let of_driver = matches!(growing.rest.what, ResidentPart::Driver(..));
            let because =
                LeakReason::Sleeps { sleeps: growing.sleeps, bytes_a_sleep: growing.bytes_a_sleep };
            let steps = growing.rest.held.len() as f64;
            let confidence = 1.0 - 1.0 / (steps + 1.0);
            let line = classifier.holder_key(stack, Level::Driver);
            let same = |one: &&mut JudgedLeak| {
                !of_driver
                    && one.case.at == (level, growing.device)
                    && classifier.holder_key(one.case.stack, Level::Driver) == line
            };
            if let Some(one) = found.iter_mut().find(same) {
                one.leak.because = because;
                one.leak.confidence = one.leak.confidence.max(confidence);
                continue;
            }
            let track = observer.tracks.get(&(level, growing.device, stack));
            let track = track.filter(|_| !of_driver);
            let last = growing.rest.held.last().copied().unwrap_or(0);
            let sums = track.map(|track| track.sums).unwrap_or_default();
            let left = if track.is_some() { sums.bytes } else { last };
            more.push(Leak {
                verdict: if left > 0 { Verdict::Growing } else { Verdict::FreedAtEnd },
                bytes: last.max(left),
                count: sums.count,
                allocations: sums.allocations,
                frees: sums.frees,
                confidence,
                shape: growing.rest.held,
                because,
                ..Leak::of(level, growing.device, stack)
            });
        }
        more
    }
}
