//! The recorder's cost: time in hooks, measured on one call in
//! [`depth::SAMPLED_ONE_OF`](crate::driver::depth::SAMPLED_ONE_OF) of each thread, of calls that report blocks of which samples
//! are recorded in as many of each device. Other calls only
//! test a per-thread counter. Readings of NVML are few and take as long as hundreds of other calls: each is timed.

use crate::driver::depth::{SAMPLED_ONE_OF, is_outermost_sampled};
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
