//! Growth that begins late in a run, up to a refusal: the bins of the whole run are too wide for it.

use super::growth::Growth;
use super::judge::{Case, Judge};

/// What begins late must keep so many pieces, and who tells the length of a step makes as many.
const LATE: u64 = 16;
/// Before it at least this part of all events were frees (of steps it is a half, of loading less), and it keeps a piece in no less
/// than one of so many parts of a step.
const WORK: f64 = 0.45;
const STEP_PART: u64 = 12;

impl Judge<'_> {
    /// What kept more and more pieces from when it began up to a refusal.
    pub(super) fn late(&self, case: &Case) -> Option<Growth> {
        let (axes, sums, last_ns) = (&self.axes[&case.at], &case.sums, case.history.last_alloc_ns);
        let begin = case.history.time.iter().position(|bytes| *bytes > 0)?;
        let first_ns = begin as u64 * axes.bin_ns();
        let span_ns = last_ns.checked_sub(first_ns).filter(|span| *span > 0)?;
        let pause_ns = span_ns / sums.count.max(1);
        let to_the_end = axes.last_alloc_ns.saturating_sub(last_ns) <= 2 * pause_ns;
        let most = sums.highest_count / 10 * 9;
        let grows = sums.count >= LATE && sums.count >= most && !sums.is_full();
        // Before it there were steps, which free all that they take.
        let worked = sums.frees_before as f64 >= sums.first_event as f64 * WORK;
        if !(axes.refused && grows && to_the_end && worked) {
            return None;
        }
        // It keeps a piece a step or so: the layers of one step keep theirs sooner.
        let each = axes.events.saturating_sub(sums.first_event) / sums.count;
        let earlier = self.observer.tracks.iter().filter(|((level, device, _), track)| {
            (*level, *device) == case.at && track.sums.first_event < sums.first_event
        });
        let steps = earlier.map(|(_, track)| track.sums);
        let steps = steps.filter(|of| of.frees > 0 && of.allocations >= LATE);
        let step = steps.map(|of| sums.first_event / of.allocations).max()?;
        (each >= step / STEP_PART).then(|| Growth {
            tau: 1.0,
            straight: 1.0,
            rises: sums.count as usize,
            points: sums.count as usize,
            troughs: false,
            spread_of_events: 0.0,
            risen: sums.bytes,
            bytes_per_second: sums.bytes as f64 / (span_ns as f64 / 1e9),
            first_ns,
            last_ns,
        })
    }
}
