//! The end of a timed call: its cost is added, and where samples are taken their rate follows it.

use crate::driver::depth::{self, SAMPLED_ONE_OF};
use crate::hooks::process::state::Process;
use crate::runtime::clock;

/// A timed call ends, which began at `began_ns`, with the driver's part of it added.
#[cold]
pub fn ended(p: &Process, began_ns: u64) {
    add(p, clock::elapsed_ns(began_ns));
}

/// The time since `began_ns` without that of reading the clock, which other calls do not.
#[inline(always)]
pub fn span_ns(began_ns: u64) -> u64 {
    let ended_ns = clock::mono_ns();
    let reading_ns = clock::elapsed_ns(ended_ns);
    ended_ns.saturating_sub(began_ns).saturating_sub(reading_ns)
}

/// A timed call has ended, which took so long without the driver.
#[cold]
pub fn add(p: &Process, took_ns: u64) {
    p.cost.add(took_ns);
    let Some(sampling) = &p.block_sampling else { return };
    let now_ns = clock::mono_ns();
    let before_ns = depth::timed(now_ns);
    // Most calls write no record, and leave the time at which work is due to this one.
    p.clock.now_ns();
    if before_ns == 0 {
        return;
    }
    let since_ns = now_ns.saturating_sub(before_ns);
    if sampling.timed(took_ns, SAMPLED_ONE_OF as u64, since_ns) {
        p.trace_writer.record(&sampling.rate());
    }
}

/// Work ends that began at `began_ns`, and that timed calls alone do.
#[cold]
pub fn work_ended(p: &Process, began_ns: u64) {
    let ns = clock::elapsed_ns(began_ns);
    p.cost.add_work(ns);
    if let Some(sampling) = &p.block_sampling {
        sampling.add_work(ns);
    }
}
