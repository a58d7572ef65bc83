//! Points of a replay from which a later one begins, so that the places a first pass found (the peaks, failures) cost no
//! second pass from the first event on. Kept are the newest point, and for each device the last one before its peak.
//! Memory: a point has the live set; there are none while it is large.

use std::sync::Arc;

use vramtrace_format::{Cursor, Stamped};

use super::{ByDevice, Replay, State, Until};

/// Events from one point to the next, at least.
const EVERY: u64 = 1 << 15;
/// The same, for each live entry: so the copies take little of a replay's time.
const EVENTS_PER_ENTRY: u64 = 8;
/// Maximum number of live entries of a kept state: some MiB.
const MAX_ENTRIES: u64 = 1 << 15;

/// A replay after an event.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub replay: Replay,
    /// Where the next event is.
    pub cursor: Cursor,
    /// File offset of the last event.
    offset: u64,
}

impl Point {
    /// Whether this place comes at the point or later.
    fn is_before(&self, place: &Until) -> bool {
        match *place {
            Until::End => true,
            Until::Offset(offset) => self.offset <= offset,
            Until::Time(time_ns) => self.replay.state.time_ns <= time_ns,
        }
    }
}

/// The points of one replay.
#[derive(Clone, Debug)]
pub struct Kept {
    newest: Option<Arc<Point>>,
    before_peaks: ByDevice<Arc<Point>>,
    /// Number of events at the next point.
    next: u64,
    every: u64,
}

impl Default for Kept {
    fn default() -> Kept {
        Kept::every(EVERY)
    }
}

impl Kept {
    /// With points that are so many events apart, or more.
    pub(super) fn every(every: u64) -> Kept {
        Kept { newest: None, before_peaks: ByDevice::default(), next: every, every }
    }

    /// Takes the point after an event if it is time.
    #[inline]
    pub(super) fn note(&mut self, replay: &Replay, at: &Stamped, cursor: impl FnOnce() -> Cursor) {
        if replay.state.events >= self.next {
            self.take(replay, at, cursor());
        }
    }

    #[cold]
    fn take(&mut self, replay: &Replay, at: &Stamped, cursor: Cursor) {
        let entries = replay.state.live.entries() as u64;
        self.next = replay.state.events + self.every.max(entries * EVENTS_PER_ENTRY);
        if entries > MAX_ENTRIES {
            return;
        }
        self.note_peaks(&replay.state);
        self.newest = Some(Arc::new(Point { replay: replay.clone(), cursor, offset: at.offset }));
    }

    /// The newest point is the last one before each peak that came after it.
    fn note_peaks(&mut self, state: &State) {
        let Some(newest) = &self.newest else { return };
        for (device, of) in &state.devices {
            if of.peak.offset.is_some_and(|offset| offset >= newest.offset) {
                let before = self.before_peaks.get_or_insert_with(*device, || newest.clone());
                before.clone_from(newest);
            }
        }
    }

    /// After the last event.
    pub(super) fn finish(&mut self, state: &State) {
        self.note_peaks(state);
    }

    /// The last point before all of these places.
    pub(super) fn before(&self, places: &[Until]) -> Option<&Point> {
        let points = self.before_peaks.values().chain(&self.newest);
        let before = points.filter(|point| places.iter().all(|place| point.is_before(place)));
        before.max_by_key(|point| point.offset).map(Arc::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::Visitor;
    use super::*;
    use crate::testing::cached;
    use crate::trace::Trace;

    fn shown(state: &State) -> String {
        format!("{:?} {:?} {:?}", state.events, state.devices, state.live)
    }

    #[test]
    fn a_replay_from_a_point_has_the_states_of_a_whole_one() {
        let trace = Trace::of(&cached());
        let definitions = trace.definitions().0;
        let whole = trace.replay(&definitions, &mut ()).state;
        let mut offsets = Vec::new();
        trace.for_each_event(&mut |at| offsets.push((at.offset, at.time_ns)));
        let from_points = Cell::new(0);
        for every in [1, 3, 10, 10_000] {
            let mut kept = Kept::every(every);
            trace.replay_keeping(Some(&mut kept), &definitions, &mut (), &mut |_, _| {});
            for (offset, time_ns) in &offsets {
                for place in [Until::Offset(*offset), Until::Time(*time_ns), Until::End] {
                    let stops = vec![place, Until::End];
                    let expected = trace.replay_until(&definitions, place, &mut (), &mut |_, _| {});
                    let expected = [shown(&expected.state), shown(&whole)];
                    let before = trace.decodes();
                    let mut found = Vec::new();
                    let mut visitor = (stops, |stop: usize, state: &State| {
                        found.push((stop, shown(state)));
                    });
                    let visitors: &mut [&mut dyn Visitor] = &mut [&mut visitor];
                    trace.visit_from(Some(&kept), &definitions, visitors, &mut ());
                    found.sort();
                    let found: Vec<String> = found.into_iter().map(|(_, shown)| shown).collect();
                    assert_eq!(found, expected, "{place:?}, every {every}");
                    from_points.set(from_points.get() + usize::from(trace.decodes() == before));
                }
            }
        }
        assert!(from_points.get() > offsets.len(), "{}", from_points.get());
    }

    #[test]
    fn the_point_before_the_peak_stays() {
        let trace = Trace::of(&cached());
        let definitions = trace.definitions().0;
        let mut kept = Kept::every(1);
        let end =
            trace.replay_keeping(Some(&mut kept), &definitions, &mut (), &mut |_, _| {}).state;
        let mut checked = 0;
        for of in end.devices.values() {
            let Some(offset) = of.peak.offset.filter(|_| of.peak.bytes > 0) else { continue };
            let point = kept.before(&[Until::Offset(offset)]).unwrap();
            assert!(point.offset <= offset && point.replay.state.events > 1);
            checked += 1;
        }
        assert!(checked > 0);
    }
}
