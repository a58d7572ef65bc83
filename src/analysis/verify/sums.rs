//! The sums of a state, added up anew from what is live.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;
use vramtrace_format::physical::{PAGE, Physical, pages, physical};
use vramtrace_format::{DeviceId, Kind};

use crate::replay::device::KIND_SLOTS;
use crate::replay::{BytesByKind, DeviceState, State};

/// What a device's sums should be.
#[derive(Default)]
struct Expected {
    /// By kind, without shared pages.
    bytes: BytesByKind,
    shared_pages: FxHashSet<u64>,
    requested: u64,
    allocations: u64,
    requested_by_kind: BytesByKind,
    allocations_by_kind: [u64; KIND_SLOTS],
    blocks: u64,
    block_bytes: u64,
    contexts: u64,
}

/// A sum that differs: the device (none: of the host), what it is, expected and found.
pub(super) type Difference = (Option<DeviceId>, &'static str, u64, u64);

/// Compares all sums of the state. Takes time in proportion to what is live.
pub(super) fn compare(state: &State) -> Vec<Difference> {
    let mut different = Vec::new();
    let mut devices: BTreeMap<DeviceId, Expected> = BTreeMap::new();
    let mut host = [(0u64, 0u64); 2];
    for (key, live) in state.live.iter() {
        if live.kind.is_host() {
            let sums = &mut host[usize::from(live.kind == Kind::HostRegistered)];
            *sums = (sums.0.saturating_add(live.size), sums.1 + 1);
            continue;
        }
        let sums = devices.entry(live.device).or_default();
        let kind = live.kind as usize;
        let counted = live.kind != Kind::Imported;
        if counted {
            sums.requested = sums.requested.saturating_add(live.size);
            sums.allocations += 1;
        }
        sums.allocations_by_kind[kind] += 1;
        add(&mut sums.requested_by_kind[kind], live.size);
        match physical(live.kind, live.size) {
            Physical::Own(bytes) => add(&mut sums.bytes[kind], bytes),
            Physical::Shared(_) => {
                let (first, last) = pages(key.number, live.size);
                sums.shared_pages.extend(first..=last);
            }
            Physical::Reserved => {}
            Physical::None => add(&mut sums.bytes[kind], live.size),
        }
    }
    for (_, block) in state.live.blocks() {
        let sums = devices.entry(block.device).or_default();
        sums.blocks += 1;
        add(&mut sums.block_bytes, block.size);
    }
    for pool in state.pools.values().filter(|pool| !pool.imported) {
        let sums = devices.entry(pool.device).or_default();
        add(&mut sums.bytes[Kind::Pool as usize], pool.reserved);
    }
    for context in state.contexts.values() {
        devices.entry(context.device).or_default().contexts += 1;
    }
    let nothing = Expected::default();
    for (id, found) in &state.devices {
        let expected = devices.get(id).unwrap_or(&nothing);
        let mut check = |what, expected, found| {
            if expected != found {
                different.push((Some(*id), what, expected, found));
            }
        };
        expected.check(found, &mut check);
    }
    for (id, _) in devices.iter().filter(|(id, _)| !state.devices.contains_key(id)) {
        different.push((Some(*id), "devices with sums", 1, 0));
    }
    let found = [&state.host_pinned, &state.host_registered];
    for ((bytes, allocations), found) in host.into_iter().zip(found) {
        if bytes != found.live_bytes {
            different.push((None, "host bytes", bytes, found.live_bytes));
        }
        if allocations != found.live_allocations {
            different.push((None, "host allocations", allocations, found.live_allocations));
        }
    }
    different
}

impl Expected {
    fn check(&self, found: &DeviceState, check: &mut impl FnMut(&'static str, u64, u64)) {
        let shared = [Kind::Device as usize, Kind::Pitched as usize];
        let of_kind = |kind: usize| found.kinds[kind].live_bytes;
        // A page counts as the kind that came to it first, so that both are one sum.
        let expected: u64 =
            shared.iter().fold(self.shared_pages.len() as u64 * PAGE, |sum, kind| {
                sum.saturating_add(self.bytes[*kind])
            });
        let added = shared.iter().fold(0, |sum: u64, kind| sum.saturating_add(of_kind(*kind)));
        check("bytes of cudaMalloc and pitched memory", expected, added);
        let mut live = expected;
        for kind in Kind::ALL {
            let at = kind as usize;
            let bytes = match kind {
                Kind::Graph => found.graph_reserved,
                _ => self.bytes[at],
            };
            if !shared.contains(&at) {
                check(bytes_of(kind), bytes, of_kind(at));
            }
            if !shared.contains(&at) && kind != Kind::Imported {
                live = live.saturating_add(bytes);
            }
            let sums = &found.kinds[at];
            check("requested bytes of a kind", self.requested_by_kind[at], sums.requested_bytes);
            check("allocations of a kind", self.allocations_by_kind[at], sums.live_allocations);
        }
        check("live bytes", live, found.live_bytes);
        check("requested bytes", self.requested, found.requested_bytes);
        check("live allocations", self.allocations, found.live_allocations);
        check("contexts", self.contexts, found.contexts.into());
        // The blocks of samples are no sum: the totals are the framework's and the recorder's own.
        if !found.cache.sampled {
            check("bytes of blocks", self.block_bytes, found.cache.allocated);
            check("blocks", self.blocks, found.cache.blocks);
        }
    }
}

fn bytes_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Managed => "bytes of managed memory",
        Kind::Pool => "bytes of pools",
        Kind::Vmm => "bytes of physical objects",
        Kind::Array => "bytes of arrays",
        Kind::Mipmapped => "bytes of mipmapped arrays",
        Kind::Graph => "bytes of graphs",
        Kind::Imported => "bytes of imports",
        Kind::Device | Kind::Pitched => "bytes of cudaMalloc and pitched memory",
        Kind::HostPinned | Kind::HostRegistered | Kind::Block => "bytes outside of the device",
    }
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}
