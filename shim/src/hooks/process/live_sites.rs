//! The call sites that hold most memory, for the live page. They are summed after a call, at most every
//! 100 ms, and take at most 1 % of the time.

use crate::hooks::process::oom::held::{ByStack, Remapped, Row};
use crate::hooks::process::oom::names::with_names;
use crate::hooks::process::state::Process;
use crate::runtime::fallible::{TryPush, list_of};
use crate::runtime::fallible_map::Map;
use crate::runtime::lock::Lock;
use crate::trace_writer::maintenance::ProcessView;
use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vramtrace_format::{DeviceId, LIVE_SITES, LiveSite, Space, StackId, SummaryMoment};

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
    p.patched_entries.look(p);
    if let Some(live) = p.trace_writer.live() {
        live.page().update_sites(now_ns, &largest(p));
    }
    p.live_sites.made(now_ns, p.clock.now_ns());
}

fn largest(p: &'static Process) -> Vec<LiveSite> {
    let ever_slept = p.vmm.lock().space.ever_slept;
    let mut all: Vec<(DeviceId, Row)> = Vec::new();
    for device in p.devices() {
        let rows = if ever_slept { walked(p, device) } else { counted(p, device) };
        for row in rows {
            let _ = all.try_push((device, row));
        }
    }
    all.sort_unstable_by_key(|(_, row)| (Reverse(row.bytes), row.stack.0));
    all.truncate(LIVE_SITES);
    let mut known = std::mem::take(&mut *p.live_sites.libraries.lock());
    name(p, &all, &mut known);
    let site = |(device, row): &(DeviceId, Row)| LiveSite {
        ordinal: device.0,
        of_framework: row.of_framework,
        stack: row.stack,
        bytes: row.bytes,
        count: row.count,
        library: known.get(&(row.stack, row.of_framework)).cloned().unwrap_or_default(),
    };
    let sites = list_of(all.len(), all.iter().map(site)).unwrap_or_default();
    *p.live_sites.libraries.lock() = known;
    sites
}

/// The ledger's sums.
fn counted(p: &Process, device: DeviceId) -> Vec<Row> {
    let mut rows = Vec::new();
    for of_framework in [false, true] {
        for holder in p.ledger.holders(device, SummaryMoment::End, of_framework) {
            let (stack, bytes, count) = (holder.stack, holder.bytes, holder.count);
            let _ = rows.try_push(Row { stack, of_framework, bytes, count });
        }
    }
    rows
}

/// Once memory was unmapped and mapped again, the ledger's sums lack its owners: all that is live is summed up.
fn walked(p: &Process, device: DeviceId) -> Vec<Row> {
    let (remapped, mut sums) = (Remapped::of(p), ByStack::default());
    p.ledger.visit(device, |entry| {
        if let Some((stack, bytes, count)) = remapped.share(entry) {
            sums.add(stack, entry.space == Space::Block, bytes, count);
        }
    });
    sums.rows()
}

/// Finds the libraries of stacks that were not among the largest before. No lock is held meanwhile.
fn name(p: &'static Process, rows: &[(DeviceId, Row)], known: &mut Map<(StackId, bool), String>) {
    if known.len() > NAMES_MOST {
        known.clear();
    }
    let key = |row: &Row| (row.stack, row.of_framework);
    if rows.iter().all(|(_, row)| known.contains_key(&key(row))) {
        return;
    }
    with_names(p, |names| {
        for (_, row) in rows {
            if !known.contains_key(&key(row)) {
                let library = names.library(row.stack, row.of_framework);
                // Without memory it has no name.
                let title = library.map(|library| library.title).unwrap_or_default();
                let _ = known.insert(key(row), title);
            }
        }
    });
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
