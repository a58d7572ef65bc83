//! Reads many traces in parallel.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

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
    let results: Vec<Mutex<Option<T>>> = traces.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let run = || {
        while let Some((index, trace)) =
            Some(next.fetch_add(1, Relaxed)).and_then(|i| Some((i, *traces.get(i)?)))
        {
            // `work` may read a trace several times: the furthest place counts.
            let advance = |bytes: u64| {
                let before = done[index].fetch_max(bytes, Relaxed);
                let more = bytes.saturating_sub(before);
                progress(sum.fetch_add(more, Relaxed).saturating_add(more), total);
            };
            let result = work(index, trace, &mut |bytes, _| advance(bytes));
            advance(trace.len());
            trace.release();
            if let Ok(mut slot) = results[index].lock() {
                *slot = Some(result);
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(traces.len());
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(run);
        }
        run();
    });
    results.into_iter().filter_map(|slot| slot.into_inner().ok().flatten()).collect()
}
