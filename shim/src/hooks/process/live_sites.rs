//! The call sites that hold most memory, for the live page. They are summed after a call, at most every
//! 100 ms, and take at most 1 % of the time.

use crate::hooks::process::oom;
use crate::hooks::process::patched_entries::{self, Noted};
use crate::hooks::process::state::Process;
use crate::runtime::fallible::{TryPush, list_of};
use crate::runtime::fallible_map::Map;
use crate::runtime::lock::Lock;
use crate::trace_writer::maintenance::ProcessView;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vramtrace_format::{
    DeviceId, LIVE_SITES, LiveSite, Space, StackId, SummaryHolder, SummaryMoment,
};

const EVERY_NS: u64 = 100_000_000;
/// The sums may take 1 / PART of the time.
const PART: u64 = 100;
/// Stacks whose library is kept.
const NAMES_MOST: usize = 1024;

#[derive(Default)]
pub struct LiveSites {
    due_ns: AtomicU64,
    /// Of stacks that were among the largest. The flag: of a framework's blocks, for which another library may be the
    /// requester than for driver memory.
    libraries: Lock<Map<(StackId, bool), String>>,
}

impl LiveSites {
    /// Whether the sums are due: true for one thread at a time, which calls [`LiveSites::made`].
    #[inline]
    fn take_due(&self, now_ns: u64) -> bool {
        let due_ns = self.due_ns.load(Relaxed);
        now_ns >= due_ns && self.due_ns.compare_exchange(due_ns, u64::MAX, Relaxed, Relaxed).is_ok()
    }

    /// The sums were made from `began_ns` to `now_ns`.
    fn made(&self, began_ns: u64, now_ns: u64) {
        let cost_ns = now_ns.saturating_sub(began_ns);
        let due_ns = began_ns.saturating_add(EVERY_NS.max(cost_ns.saturating_mul(PART)));
        self.due_ns.store(due_ns, Relaxed);
    }
}

/// Sums the call sites and stores them in the live page, if that is due.
#[inline]
pub fn refresh(p: &'static Process) {
    let now_ns = p.clock.now_ns();
    if p.live_sites.take_due(now_ns) {
        store(p, now_ns);
    }
}

#[cold]
fn store(p: &'static Process, now_ns: u64) {
    patched_entries::look(p, Noted::OnceSettled);
    if let Some(live) = p.trace_writer.live() {
        live.page().update_sites(now_ns, &largest(p));
    }
    p.live_sites.made(now_ns, p.clock.now_ns());
}

fn largest(p: &'static Process) -> Vec<LiveSite> {
    let mut all: Vec<SummaryHolder> = Vec::new();
    for device in p.devices() {
        for of_framework in [false, true] {
            for holder in p.ledger.holders(device, SummaryMoment::End, of_framework) {
                let _ = all.try_push(holder);
            }
        }
    }
    credit_original_owners(p, &mut all);
    subtract_paused(p, &mut all);
    all.retain(|holder| holder.bytes > 0);
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
        library: known.get(&(holder.stack, holder.of_framework)).cloned().unwrap_or_default(),
    };
    list_of(all.len(), all.iter().map(site)).unwrap_or_default()
}

/// Memory that was unmapped and mapped again counts for the call site that first allocated it, not for
/// the one that mapped it again.
fn credit_original_owners(p: &'static Process, all: &mut Vec<SummaryHolder>) {
    let vmm = p.vmm.lock();
    if !vmm.space.ever_slept() {
        return;
    }
    let mut seen: Map<u64, ()> = Map::default();
    for mapping in vmm.space.mappings() {
        let Some(woken) = mapping.woken else { continue };
        let Some(object) = vmm.object(mapping.object) else { continue };
        // Each object once, as the post-mortem counts it.
        if seen.insert(mapping.object, ()) != Ok(None) {
            continue;
        }
        let (device, bytes) = (object.device, object.size);
        let of = |stack| {
            move |row: &&mut SummaryHolder| {
                row.device == device && !row.of_framework && row.stack == stack
            }
        };
        // A maker that is not among the largest call sites is not listed: nothing to correct.
        if let Some(row) = all.iter_mut().find(of(object.maker)) {
            row.bytes = row.bytes.saturating_sub(bytes);
            row.count = row.count.saturating_sub(1);
        }
        match all.iter_mut().find(of(woken.owner.stack)) {
            Some(row) => {
                row.bytes = row.bytes.saturating_add(bytes);
                row.count = row.count.saturating_add(1);
            }
            None => {
                let (moment, stack) = (SummaryMoment::End, woken.owner.stack);
                let of_framework = false;
                let row = SummaryHolder { device, moment, of_framework, stack, bytes, count: 1 };
                let _ = all.try_push(row);
            }
        }
    }
}

/// Subtracts the bytes of a framework's blocks whose memory is unmapped: they occupy no device memory.
fn subtract_paused(p: &'static Process, all: &mut [SummaryHolder]) {
    let unbacked = {
        let vmm = p.vmm.lock();
        if vmm.space.asleep().next().is_none() {
            return;
        }
        vmm.space.unbacked()
    };
    let mut paused: Map<(DeviceId, StackId), u64> = Map::default();
    for device in p.devices() {
        p.ledger.visit(device, |entry| {
            if entry.space != Space::Block {
                return;
            }
            let bytes = oom::held::overlap(&unbacked, entry.key, entry.size);
            // Without host memory for the sum the block counts in full.
            if bytes > 0
                && let Ok(sum) = paused.get_or_insert((device, entry.stack), 0)
            {
                *sum = sum.saturating_add(bytes);
            }
        });
    }
    for row in all.iter_mut().filter(|row| row.of_framework) {
        let bytes = paused.get(&(row.device, row.stack)).copied().unwrap_or(0);
        row.bytes = row.bytes.saturating_sub(bytes);
    }
}

/// Finds the libraries of stacks that were not among the largest before.
fn name(p: &'static Process, holders: &[SummaryHolder]) {
    let mut known = p.live_sites.libraries.lock();
    if known.len() > NAMES_MOST {
        known.clear();
    }
    let stacks = holders.iter().map(|holder| (holder.stack, holder.of_framework));
    let unknown = list_of(holders.len(), stacks.filter(|stack| !known.contains_key(stack)));
    // While names are looked for, no lock is held.
    drop(known);
    let unknown = unknown.unwrap_or_default();
    if unknown.is_empty() {
        return;
    }
    let found = oom::libraries(p, &unknown);
    let mut known = p.live_sites.libraries.lock();
    for (stack, library) in found {
        // Without memory it has no name.
        let _ = known.insert(stack, library);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_that_take_long_are_made_rarely() {
        let sites = LiveSites::default();
        assert!(sites.take_due(5));
        assert!(!sites.take_due(u64::MAX - 1), "a thread is at it");
        sites.made(5, 6);
        assert!(!sites.take_due(EVERY_NS) && sites.take_due(5 + EVERY_NS));
        sites.made(EVERY_NS, 3 * EVERY_NS);
        assert!(!sites.take_due(200 * EVERY_NS) && sites.take_due(201 * EVERY_NS));
    }
}
