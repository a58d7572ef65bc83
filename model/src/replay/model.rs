//! The replay against a naive model, over random histories.

use std::collections::HashMap;

use proptest::prelude::*;
use vramtrace_format::physical::{GRAIN, MIB, PAGE, round_up};
use vramtrace_format::{
    Alloc, ContextId, DeviceId, Kind, Listed, Purpose, Space, Stamped, ThreadId,
};

use super::*;
use crate::testing::TraceBuilder;

#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc { kind: Kind, slot: u64, size: u64 },
    Free { kind: Kind, slot: u64 },
    FreeFailed { kind: Kind, slot: u64 },
    EndContext,
    Pool { reserved: u64 },
}

const KINDS: [Kind; 6] =
    [Kind::Device, Kind::Pitched, Kind::Managed, Kind::Vmm, Kind::Array, Kind::Pool];

fn step() -> impl Strategy<Value = Step> {
    let kind = || proptest::sample::select(&KINDS[..]);
    let size = prop_oneof![1..4096u64, MIB - 2..MIB + 2, 1..8 * MIB];
    prop_oneof![
        6 => (kind(), 0..40u64, size).prop_map(|(kind, slot, size)| Step::Alloc { kind, slot, size }),
        4 => (kind(), 0..40u64).prop_map(|(kind, slot)| Step::Free { kind, slot }),
        1 => (kind(), 0..40u64).prop_map(|(kind, slot)| Step::FreeFailed { kind, slot }),
        1 => Just(Step::EndContext),
        1 => (0..8u64).prop_map(|n| Step::Pool { reserved: n * 32 * MIB }),
    ]
}

/// Addresses are half a page apart, so that small ones share pages and lie across them.
fn key(kind: Kind, slot: u64) -> Key {
    let number = match kind.space() {
        Space::Device => (1000 + slot) * PAGE / 2 + PAGE / 2 - GRAIN,
        _ => slot + 1,
    };
    Key { space: kind.space(), number }
}

/// Adds everything up anew each time.
fn naive(live: &HashMap<Key, (Kind, u64)>, reserved: u64) -> u64 {
    let mut pages = std::collections::HashSet::new();
    let mut sum = reserved;
    for (key, (kind, size)) in live {
        match kind {
            Kind::Device | Kind::Pitched if *size <= MIB => {
                pages.extend(key.number / PAGE..=(key.number + size - 1) / PAGE);
            }
            Kind::Device | Kind::Pitched | Kind::Managed | Kind::Vmm => {
                sum += round_up(*size, PAGE);
            }
            Kind::Array => sum += size,
            _ => {}
        }
    }
    sum + pages.len() as u64 * PAGE
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn live_bytes_equal_a_naive_sum(steps in proptest::collection::vec(step(), 1..200)) {
        let mut builder = TraceBuilder::new();
        let sites = KINDS.map(|kind| builder.site(kind, 0));
        let definitions = Definitions::of_builder(&builder);
        let site_of = |kind: Kind| sites[KINDS.iter().position(|k| *k == kind).unwrap()];
        let mut replay = Replay::new();
        let mut live: HashMap<Key, (Kind, u64)> = HashMap::new();
        let mut freed: HashMap<Key, (Kind, u64)> = HashMap::new();
        let (mut reserved, mut peak) = (0, 0);
        for (n, step) in steps.into_iter().enumerate() {
            let event = match step {
                Step::Alloc { kind, slot, size } => {
                    let key = key(kind, slot);
                    live.insert(key, (kind, size));
                    let (site, stack, requested) = (site_of(kind), Default::default(), None);
                    let (key, space) = (key.number, key.space);
                    Event::Alloc(Alloc { key, space, size, site, stack, requested })
                }
                Step::Free { kind, slot } => {
                    let key = key(kind, slot);
                    if let Some(entry) = live.remove(&key) {
                        freed.insert(key, entry);
                    }
                    Event::Free { key: key.number, space: key.space, site: Default::default() }
                }
                Step::FreeFailed { kind, slot } => {
                    let key = key(kind, slot);
                    if let Some(entry) = freed.get(&key) {
                        live.entry(key).or_insert(*entry);
                    }
                    Event::FreeFailed { key: key.number, space: key.space }
                }
                Step::EndContext => {
                    live.retain(|_, (kind, _)| matches!(kind, Kind::Vmm | Kind::Pool));
                    Event::ContextDestroyed { context: ContextId(1) }
                }
                Step::Pool { reserved: now } => {
                    reserved = now;
                    Event::PoolState { pool: PoolId(1), reserved, used: 0 }
                }
            };
            let time_ns = n as u64 * 1000;
            let at = Stamped { offset: n as u64, time_ns, thread: ThreadId(1), event };
            replay.apply(&definitions, &at, &mut ());
            let expected = naive(&live, reserved);
            peak = peak.max(expected);
            let device = replay.state().devices.get(&DeviceId(0));
            prop_assert_eq!(device.map_or(0, |d| d.live_bytes), expected);
            // An allocation that replaces an earlier one is first its end, then its beginning.
            prop_assert_eq!(device.map_or(0, |d| d.live_peak_bytes), peak);
            if let Some(device) = device {
                let kinds: u64 = device.kinds.iter().map(|sums| sums.live_bytes).sum();
                prop_assert_eq!(device.live_bytes, kinds);
                prop_assert_eq!(device.underflows, 0);
                prop_assert_eq!(device.allocations, device.frees + device.live_allocations);
            }
            prop_assert_eq!(replay.state().live.len(), live.len());
        }
    }

    /// A file may claim anything: sums saturate, nothing panics.
    #[test]
    fn any_numbers_are_taken(numbers in proptest::collection::vec(any::<[u64; 4]>(), 1..60)) {
        let definitions = Definitions::default();
        let mut replay = Replay::new();
        for [pick, a, b, c] in numbers {
            let space = Space::from_u8((c % 5) as u8).unwrap();
            let (id, device) = (c as u8 % 2, DeviceId(c as u8 % 2));
            let alloc = Alloc { key: a, space, size: b, site: Default::default(), stack: Default::default(), requested: None };
            let counters = vramtrace_format::Counters {
                device: device.0, live: a, peak: b, peak_time_ns: c, live_requested: a,
                live_allocations: b, allocations: a, frees: b, refused_by_cap: a,
                refused_by_driver: b, counted: c, warned: a,
            };
            let event = match pick % 20 {
                0..=2 => Event::Alloc(alloc),
                3 => Event::Free { key: a, space, site: Default::default() },
                4 => Event::FreeFailed { key: a, space },
                5 => Event::Unmap { address: a, size: b, stack: Default::default() },
                6 => Event::Map { address: a, size: b, offset: c, object: a, owner: Default::default(), stack: Default::default() },
                7 => Event::PoolState { pool: PoolId(c as u16), reserved: a, used: b },
                8 => Event::GraphState { device, reserved: a, used: b },
                9 => Event::Sample(vramtrace_format::Sample {
                    device, driver_free: Some(a), driver_total: Some(b),
                    process_bytes: Some(c), context_bytes: a,
                }),
                10 => Event::StateBegin { id, what: Purpose::Checkpoint, cache_ooms: 0 },
                11 => Event::StateEvent(Listed::new(id, a, &Event::Alloc(alloc))),
                12 => Event::StateEvent(Listed::new(id, 0, &Event::Counters(counters))),
                13 => Event::StateEnd { id, cut: false },
                14 => Event::Counters(counters),
                15 => Event::CacheState { device, allocated: a, reserved: b },
                16 => Event::CacheOom {
                    device, size: c, allocated: a, reserved: b, stack: Default::default(),
                },
                17 => Event::BlockChange {
                    address: a, change: vramtrace_format::BlockChange::Requested(b),
                },
                18 => Event::BlockChange {
                    address: a, change: vramtrace_format::BlockChange::Pending,
                },
                _ => { replay.gap(); Event::Ended }
            };
            let at = Stamped { offset: c, time_ns: a, thread: ThreadId(c as u16), event };
            replay.apply(&definitions, &at, &mut ());
            for device in replay.state().devices.values() {
                let _ = device.measured().map(|of| of.driver_bytes_by_name());
            }
            for segment in replay.state().segments() {
                prop_assert!(segment.allocated() <= segment.bytes);
                let holes = segment.holes().map(|(_, bytes)| bytes).fold(0, u64::saturating_add);
                prop_assert_eq!(holes, segment.free());
            }
        }
        replay.finish();
        let _ = replay.into_state().refusals();
    }
}
