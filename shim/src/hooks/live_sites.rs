//! The call sites that hold most, for the live page. Added up after a call, at most every 100 ms, and
//! so seldom that it takes a hundredth of the time at most.

use crate::hooks::oom_sources::sources;
use crate::hooks::state::Process;
use crate::oom;
use crate::runtime::fallible::MakeRoom;
use crate::runtime::fixed_hash::HashMap;
use crate::runtime::lock::Lock;
use crate::trace_writer::maintenance::ProcessView;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vramtrace_format::{LIVE_SITES, LiveSite, StackId, SummaryHolder, SummaryMoment};

const EVERY_NS: u64 = 100_000_000;
/// Of the time, one part in so many.
const PART: u64 = 100;
/// Stacks whose library is kept.
const NAMES_MOST: usize = 1024;

pub struct LiveSites {
    due_ns: AtomicU64,
    /// Of stacks that were among the largest.
    libraries: Lock<HashMap<StackId, String>>,
}

impl Default for LiveSites {
    fn default() -> LiveSites {
        LiveSites { due_ns: AtomicU64::new(0), libraries: Lock::new(HashMap::default()) }
    }
}

/// Stores them where they are due.
#[inline]
pub fn refresh(p: &'static Process) {
    let now_ns = p.clock.now_ns();
    let due_ns = p.live_sites.due_ns.load(Relaxed);
    if now_ns >= due_ns {
        // One thread at a time.
        let taken = p.live_sites.due_ns.compare_exchange(due_ns, u64::MAX, Relaxed, Relaxed);
        if taken.is_ok() {
            store(p, now_ns);
        }
    }
}

#[cold]
fn store(p: &'static Process, now_ns: u64) {
    if let Some(live) = p.trace_writer.live() {
        live.page().update_sites(now_ns, &largest(p));
    }
    let cost_ns = p.clock.now_ns().saturating_sub(now_ns);
    let due_ns = now_ns.saturating_add(EVERY_NS.max(cost_ns.saturating_mul(PART)));
    p.live_sites.due_ns.store(due_ns, Relaxed);
}

fn largest(p: &'static Process) -> Vec<LiveSite> {
    let mut all: Vec<SummaryHolder> = Vec::new();
    for device in p.devices() {
        for of_framework in [false, true] {
            all.append(&mut p.ledger.holders(device, SummaryMoment::End, of_framework));
        }
    }
    all.sort_unstable_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.stack.0));
    all.truncate(LIVE_SITES);
    name(p, &all);
    let known = p.live_sites.libraries.lock();
    let site = |holder: &SummaryHolder| LiveSite {
        ordinal: holder.device.0,
        of_framework: holder.of_framework,
        stack: holder.stack,
        bytes: holder.bytes,
        count: holder.count,
        library: known.get(&holder.stack).cloned().unwrap_or_default(),
    };
    all.iter().map(site).collect()
}

/// Finds the libraries of stacks that were not among the largest before.
fn name(p: &'static Process, holders: &[SummaryHolder]) {
    let unknown: Vec<StackId> = {
        let mut known = p.live_sites.libraries.lock();
        if known.len() > NAMES_MOST {
            known.clear();
        }
        let stacks = holders.iter().map(|holder| holder.stack);
        stacks.filter(|stack| !known.contains_key(stack)).collect()
    };
    if unknown.is_empty() {
        return;
    }
    let found = oom::libraries(sources(p), &unknown);
    let mut known = p.live_sites.libraries.lock();
    for (stack, library) in found {
        if known.make_room().is_ok() {
            known.insert(stack, library);
        }
    }
}
