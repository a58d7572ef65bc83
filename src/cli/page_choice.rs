//! Which processes of a large run a page shows: it has every block of each, so all of a thousand would take minutes, and a
//! browser could not open it.

use vramtrace_reader::analysis::outliers;
use vramtrace_reader::analysis::ranks::{self, ProcessFigures};
use vramtrace_reader::trace::Trace;
use vramtrace_reader::units::{count, size};

use super::select::Selected;
use crate::console::message;

/// Of a run with fewer processes, or fewer bytes of traces, all are shown.
const FEW: usize = 16;
const SHORT_RUN: u64 = 512 << 20;
/// Most bytes of the traces that are shown of a larger one; at least one is.
const MOST: u64 = 96 << 20;
/// How many of each kind are looked for: processes that failed, and that stand out.
const FAILED: usize = 4;
const ODD: usize = 4;

/// The processes that are shown: those that failed first, that stand out, with the highest, the lowest and a middle peak,
/// then others from all parts of the run. A line on stderr says so.
pub fn of_large(selected: Selected) -> Selected {
    let bytes = selected.traces.iter().map(Trace::len).fold(0, u64::saturating_add);
    if selected.traces.len() <= FEW || bytes <= SHORT_RUN {
        return selected;
    }
    let ranks = ranks::read_within(&selected.traces, MOST, &|_, _| {});
    let sizes: Vec<u64> = selected.traces.iter().map(Trace::len).collect();
    let kept = chosen(&ranks, &sizes);
    message(format_args!(
        "the page shows {} of {} processes ({} of traces): those that failed or stand out, and others of all parts of \
         the run; --rank N shows another one",
        kept.len(),
        count(selected.traces.len() as u64),
        size(bytes)
    ));
    let of = |index: &usize| kept.binary_search(index).is_ok();
    let (traces, names) = (selected.traces.into_iter(), selected.names.into_iter());
    let (traces, names) =
        traces.zip(names).enumerate().filter(|(index, _)| of(index)).map(|(_, both)| both).unzip();
    Selected { traces, names, chosen: selected.chosen }
}

/// Indexes of processes, in order. `sizes`: the bytes of their traces.
fn chosen(ranks: &[ProcessFigures], sizes: &[u64]) -> Vec<usize> {
    let mut wanted: Vec<usize> =
        ranks::failed(ranks).iter().take(FAILED).map(|failed| failed.index).collect();
    let odd = outliers(ranks).into_iter().enumerate();
    wanted.extend(odd.filter_map(|(index, why)| why.map(|_| index)).take(ODD));
    let mut by_peak: Vec<usize> = (0..ranks.len()).collect();
    by_peak.sort_by_key(|index| std::cmp::Reverse(ranks[*index].peak_bytes()));
    wanted.extend([by_peak[0], by_peak[by_peak.len() - 1], by_peak[by_peak.len() / 2]]);
    let step = (ranks.len() / FEW).max(1);
    wanted.extend((0..ranks.len()).step_by(step));
    let (mut kept, mut sum): (Vec<usize>, u64) = (Vec::new(), 0);
    for index in wanted {
        let with = sum.saturating_add(sizes[index]);
        if kept.len() < FEW && !kept.contains(&index) && (kept.is_empty() || with <= MOST) {
            kept.push(index);
            sum = with;
        }
    }
    kept.sort_unstable();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::trace_builder::{SECOND, TraceBuilder};
    use vramtrace_format::{Event, Kind};

    #[test]
    fn what_failed_or_stands_out_is_shown() {
        let place = tempfile::tempdir().unwrap();
        let ranks: Vec<ProcessFigures> = (0..40u32)
            .map(|n| {
                let mut t = TraceBuilder::new().rank(n, 40);
                let mib = if n == 17 { 900 } else { 100 };
                t.alloc(SECOND, Kind::Device, 1 << 40, mib << 20);
                if n != 33 {
                    t.event(2 * SECOND, Event::Ended);
                }
                let path = place.path().join(format!("{n}.vtrace"));
                t.write(&path);
                ranks::read(&[Trace::open(&path).unwrap()], &|_, _| {}).remove(0)
            })
            .collect();
        let kept = chosen(&ranks, &[1 << 20; 40]);
        assert_eq!(kept.len(), FEW);
        assert!(kept.contains(&17) && kept.contains(&33) && kept.is_sorted(), "{kept:?}");
        assert!(kept.iter().any(|index| *index < 5) && kept.iter().any(|index| *index > 25));
        // The first wanted one is shown, however large.
        assert_eq!(chosen(&ranks, &[1 << 40; 40]), [33]);
        assert_eq!(chosen(&ranks, &[40 << 20; 40]).len(), 2);
    }
}
