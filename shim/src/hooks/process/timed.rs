//! The recorder's cost: time in hooks, measured on one call in
//! [`depth::SAMPLED_ONE_OF`] of each thread, of calls that report blocks of which samples
//! are recorded in as many of each device. Other calls only
//! test a per-thread counter. Readings of NVML are few and take as long as hundreds of other calls: each is timed. Where
//! samples are taken their rate follows the cost.

use crate::driver::depth::{self, SAMPLED_ONE_OF, is_outermost_sampled};
use crate::hooks::process::state::Process;
use crate::runtime::clock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Default)]
pub struct HookCost {
    calls: AtomicU64,
    ns: AtomicU64,
    /// Of all readings of NVML, and of those in timed calls.
    readings_ns: AtomicU64,
    sampled_readings_ns: AtomicU64,
}

impl HookCost {
    /// Adds a timed call: its time without the driver's part.
    pub fn add(&self, took_ns: u64) {
        self.calls.fetch_add(1, Relaxed);
        self.ns.fetch_add(took_ns, Relaxed);
    }

    /// Adds work that is not part of a timed call, and is all of its kind.
    pub fn add_work(&self, ns: u64) {
        self.ns.fetch_add(ns / SAMPLED_ONE_OF as u64, Relaxed);
    }

    /// Adds a reading of NVML.
    pub fn add_reading(&self, ns: u64) {
        self.readings_ns.fetch_add(ns, Relaxed);
        if is_outermost_sampled() {
            self.sampled_readings_ns.fetch_add(ns, Relaxed);
        }
    }

    /// The number of timed calls, and their time without the driver's part. Of the readings of NVML it has the share of
    /// all of them that stands for all.
    pub fn sampled(&self) -> (u64, u64) {
        let without_readings =
            self.ns.load(Relaxed).saturating_sub(self.sampled_readings_ns.load(Relaxed));
        let readings = self.readings_ns.load(Relaxed) / SAMPLED_ONE_OF as u64;
        (self.calls.load(Relaxed), without_readings + readings)
    }
}

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
