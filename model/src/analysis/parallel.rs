//! Reads many traces in parallel.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::trace::Trace;

/// Called with bytes read and bytes in all, from any thread.
pub type Progress<'p> = &'p (dyn Fn(u64, u64) + Sync);

/// Calls `work` for each trace, on all cores. The results have the order of `traces`. The pages of a trace
/// are released after its turn, so that only the traces that are being read take memory.
pub fn each<T: Send>(
    traces: &[&Trace],
    progress: Progress,
    work: impl Fn(usize, &Trace, &mut dyn FnMut(u64, u64)) -> T + Sync,
) -> Vec<T> {
    let total = traces.iter().map(|trace| trace.len()).sum();
    let done: Vec<AtomicU64> = traces.iter().map(|_| AtomicU64::new(0)).collect();
    let sum = AtomicU64::new(0);
    let (queue, waiting) = crossbeam_channel::unbounded();
    let (finished, results) = crossbeam_channel::unbounded();
    for trace in traces.iter().enumerate() {
        // Both ends are here.
        let _ = queue.send(trace);
    }
    drop(queue);
    let run = || {
        for (index, trace) in &waiting {
            // `work` may read a trace several times: the furthest place counts.
            let advance = |bytes: u64| {
                let before = done[index].fetch_max(bytes, Relaxed);
                let more = bytes.saturating_sub(before);
                progress(sum.fetch_add(more, Relaxed).saturating_add(more), total);
            };
            let result = work(index, trace, &mut |bytes, _| advance(bytes));
            advance(trace.len());
            trace.release();
            let _ = finished.send((index, result));
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(traces.len());
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(run);
        }
        run();
    });
    drop(finished);
    let mut results: Vec<(usize, T)> = results.into_iter().collect();
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
