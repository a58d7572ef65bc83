//! The largest holders at each device's highest peak, as the recorder wrote them: for a peak whose events were erased.

use rustc_hash::FxHashSet;
use vramtrace_format::{DeviceId, StackId, SummaryHolder};

use super::holdings::{Held, Owner, segment_stacks};
use crate::analysis::{Level, Moment};
use crate::replay::{Peak, State};
use crate::symbols::FREE_CACHE;

#[derive(Default)]
pub(super) struct RecordedPeaks {
    holders: Vec<SummaryHolder>,
    /// When they were written: a later peak is another one.
    until_ns: u64,
    /// Stacks that made segments of a framework.
    segments: FxHashSet<(DeviceId, StackId)>,
}

impl RecordedPeaks {
    /// `end`: the state at the end. None of the peaks of blocks: they are not recorded.
    pub(super) fn of(end: &State, moment: Moment) -> RecordedPeaks {
        let Some(history) = end.history.as_ref().filter(|_| moment == Moment::Peak) else {
            return RecordedPeaks::default();
        };
        let segments = segment_stacks(end);
        let until_ns = history.span().map_or(0, |(_, until_ns)| until_ns);
        RecordedPeaks { holders: history.peak_holders.clone(), until_ns, segments }
    }

    /// The holders at a device's peak, at this level. `None`: they are not known.
    pub(super) fn at(
        &self,
        device: DeviceId,
        peak: Peak,
        level: Level,
    ) -> Option<Vec<(Owner, Held)>> {
        let here = || self.holders.iter().filter(|holder| holder.device == device);
        if peak.time_ns > self.until_ns || here().next().is_none() {
            return None;
        }
        let of_blocks = level == Level::Tensor && here().any(|holder| holder.of_framework);
        let mut found = Vec::new();
        let (mut segments, mut blocks) = (0u64, 0u64);
        for holder in here().filter(|holder| of_blocks || !holder.of_framework) {
            let &SummaryHolder { stack, bytes, count, of_framework, .. } = holder;
            if of_framework {
                blocks = blocks.saturating_add(bytes);
            } else if of_blocks && self.segments.contains(&(device, stack)) {
                segments = segments.saturating_add(bytes);
                continue;
            }
            let owner = Owner { of_cache: of_framework, ..Owner::of_memory(device, stack) };
            found.push((owner, Held { bytes, count, ..Held::default() }));
        }
        if segments > blocks {
            let free = Held { bytes: segments - blocks, count: 1, ..Held::default() };
            found.push((Owner::of_cache(device, FREE_CACHE), free));
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vramtrace_format::SummaryMoment;

    use super::*;
    use crate::replay::History;
    use crate::replay::history::Bin;

    fn end(until_ns: u64) -> State {
        let holder = |device, stack, bytes| SummaryHolder {
            device: DeviceId(device),
            moment: SummaryMoment::Peak,
            of_framework: false,
            stack: StackId(stack),
            bytes,
            count: 2,
        };
        let mut history = History::default();
        history.peak_holders.extend([holder(0, 1, 70), holder(0, 2, 30), holder(1, 1, 5)]);
        let (from_ns, samples, devices) = (0, 1, Default::default());
        history.tiers[0].bins.push(Bin { from_ns, until_ns, samples, devices });
        let mut state = State::default();
        state.history = Some(Arc::new(history));
        state
    }

    #[test]
    fn a_peak_whose_events_were_erased_has_its_recorded_holders() {
        let peak = Peak { bytes: 100, time_ns: 50, ..Peak::default() };
        let recorded = RecordedPeaks::of(&end(60), Moment::Peak);
        let of = |stack, bytes| {
            let held = Held { bytes, count: 2, ..Held::default() };
            (Owner::of_memory(DeviceId(0), StackId(stack)), held)
        };
        let found = recorded.at(DeviceId(0), peak, Level::Driver);
        assert_eq!(found, Some(vec![of(1, 70), of(2, 30)]), "of this device");
        assert_eq!(recorded.at(DeviceId(2), peak, Level::Driver), None, "nobody is known");
        let later = RecordedPeaks::of(&end(40), Moment::Peak);
        assert_eq!(later.at(DeviceId(0), peak, Level::Driver), None, "later than the copy");
    }
}
