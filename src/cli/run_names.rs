//! Adds the names of native functions to the traces of a run that ended, so that they can be read on a machine
//! without the program's libraries.

use std::time::{Duration, Instant};

use vramtrace_reader::analysis::parallel;
use vramtrace_reader::symbols::{PackLimits, Packed};
use vramtrace_reader::trace::{Trace, append, load};
use vramtrace_reader::units::several;

use crate::console::message;
use crate::launch::RunResult;

/// The time for all traces of a run.
const TIME: Duration = Duration::from_secs(10);
/// Maximum number of addresses of a trace that get names: some 10 MB of names.
const ADDRESSES: usize = 100_000;

/// Adds the names, and prints what is missing for want of time.
pub fn add(ended: &RunResult) {
    let traces = ended.output.traces();
    // The summary says what cannot be read.
    let Ok(loaded) = load(&traces) else { return };
    let limits = PackLimits { until: Instant::now() + TIME, addresses: ADDRESSES };
    let all: Vec<&Trace> = loaded.traces.iter().collect();
    let left_out = parallel::each(&all, &|_, _| {}, |_, trace, _| add_to(trace, limits));
    let left_out: usize = left_out.into_iter().sum();
    if left_out > 0 {
        let libraries = several(left_out as u64, "library file");
        message(format_args!(
            "the traces have no names of {libraries}: the limit of {} s is reached; \
             `vramtrace pack` on this machine adds them",
            TIME.as_secs()
        ));
    }
}

/// The number of libraries that were left out.
fn add_to(trace: &Trace, limits: PackLimits) -> usize {
    if trace.is_running() {
        return 0;
    }
    let (definitions, damage) = trace.definitions();
    // Names behind damaged definitions may get numbers that others have.
    if !damage.is_empty() {
        return 0;
    }
    let packed = Packed::within(&definitions, trace.header(), Some(limits));
    // Without its names a trace is read on this machine as before.
    let _ = append(trace, &packed.definitions);
    packed.left_out
}
