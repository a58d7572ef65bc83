//! Tests of holdings: sums of pieces equal those of devices, at any moment of generated runs.

use proptest::prelude::*;
use vramtrace_format::physical::MIB;
use vramtrace_format::{Kind, SummaryMoment};

use super::*;
use crate::replay::history::Bin;
use crate::testing::{SECOND, TraceBuilder};

fn sum(holdings: &Holdings, device: u8) -> u64 {
    holdings.bytes_on(DeviceId(device))
}

/// Driver memory is an allocation, or mapped objects; with a hole to the next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Memory { slot: u64, mapped: bool, pages: u64, device: u8 },
    FreeMemory { slot: u64 },
    Block { slot: u64, at: u64, size: u64 },
    FreeBlock { slot: u64, at: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..8u64, any::<bool>(), 1..4u64, 0..2u8)
            .prop_map(|(slot, mapped, pages, device)| Step::Memory { slot, mapped, pages, device }),
        1 => (0..8u64).prop_map(|slot| Step::FreeMemory { slot }),
        8 => (0..8u64, 0..12u64, 1..5u64)
            .prop_map(|(slot, at, size)| Step::Block { slot, at, size }),
        4 => (0..8u64, 0..12u64).prop_map(|(slot, at)| Step::FreeBlock { slot, at }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: 64, ..ProptestConfig::default()
    })]

    /// With any blocks, also blocks that overlap each other or the end of a segment.
    #[test]
    fn no_byte_is_counted_twice(steps in proptest::collection::vec(step(), 1..80)) {
        let mut t = TraceBuilder::new();
        let mut memory: BTreeMap<u64, (bool, u64, u8, u64)> = BTreeMap::new();
        let mut object = 0;
        for (step, n) in steps.into_iter().zip(1..) {
            let now = n * SECOND;
            let start = |slot: u64| (1 << 40) + slot * (1 << 32);
            match step {
                Step::Memory { slot, mapped, pages, device } => {
                    if memory.contains_key(&slot) {
                        continue;
                    }
                    memory.insert(slot, (mapped, pages, device, object));
                    if !mapped {
                        let bytes = pages * 4 * MIB;
                        t.alloc_on(now, Kind::Device, device, start(slot), bytes);
                        continue;
                    }
                    for page in 0..pages {
                        object += 1;
                        let (address, size) = (start(slot) + page * 4 * MIB, 4 * MIB);
                        t.alloc_on(now, Kind::Vmm, device, object, size);
                        t.map(now, address, size, object);
                    }
                }
                Step::FreeMemory { slot } => {
                    let Some((mapped, pages, _, first)) = memory.remove(&slot) else { continue };
                    if !mapped {
                        t.free(now, Space::Device, start(slot));
                        continue;
                    }
                    let (address, size) = (start(slot), pages * 4 * MIB);
                    t.unmap(now, address, size);
                    for page in 1..=pages {
                        t.free(now, Space::Vmm, first + page);
                    }
                }
                Step::Block { slot, at, size } => {
                    // Blocks of the recorder lie in memory, of its device.
                    let Some((_, pages, device, _)) = memory.get(&slot) else { continue };
                    if at < pages * 4 {
                        let address = start(slot) + at * MIB;
                        t.alloc_on(now, Kind::Block, *device, address, size * MIB);
                    }
                }
                Step::FreeBlock { slot, at } => {
                    t.free(now, Space::Block, start(slot) + at * MIB);
                }
            }
        }
        let trace = &Trace::of(&t);
        let definitions = &trace.definitions().0;
            let state = trace.replay(definitions, &mut ()).state;
            let at = |moment, level| Holdings::at(trace, definitions, &state, moment, level);
            for moment in [Moment::End, Moment::Peak] {
                let driver = at(moment, Level::Driver);
                let tensor = at(moment, Level::Tensor);
                prop_assert!(driver.held.keys().all(|owner| !owner.of_cache));
                prop_assert_eq!(&driver.at_ns, &tensor.at_ns);
                for device in 0..2 {
                    prop_assert_eq!(sum(&tensor, device), sum(&driver, device));
                    let figures = state.devices.get(&DeviceId(device));
                    let expected = figures.map_or(0, |device| match moment {
                        Moment::Peak => device.peak.bytes,
                        _ => device.live_bytes,
                    });
                    prop_assert_eq!(sum(&driver, device), expected);
                }
            }
    }
}

#[test]
fn blocks_stand_in_place_of_their_segment_and_the_rest_is_free() {
    let mut t = TraceBuilder::new();
    t.alloc_by(SECOND, Kind::Device, 1 << 40, 20 * MIB, 1);
    t.alloc_by(SECOND, Kind::Device, 2 << 40, 32 * MIB, 2);
    t.alloc_by(SECOND, Kind::Block, 1 << 40, 4 * MIB, 3);
    t.alloc_by(SECOND, Kind::Block, (1 << 40) + 4 * MIB, 10 * MIB, 3);
    t.free(2 * SECOND, Space::Block, 1 << 40);
    // Of which no driver memory is known.
    t.alloc_by(3 * SECOND, Kind::Block, 3 << 40, MIB, 4);
    // Memory of others, and of the host.
    t.alloc_by(3 * SECOND, Kind::Imported, 4 << 40, 64 * MIB, 5);
    t.alloc_by(3 * SECOND, Kind::HostPinned, 5 << 40, 64 * MIB, 6);
    let trace = &Trace::of(&t);
    let definitions = &trace.definitions().0;
    let state = trace.replay(definitions, &mut ()).state;
    let held = |mib, count| Holding { bytes: mib * MIB, count, ..Holding::default() };
    let memory = |stack| Owner::of_memory(DeviceId(0), StackId(stack));
    let block = |stack| Owner::of_cache(DeviceId(0), StackId(stack));
    let free = Owner::of_cache(DeviceId(0), FREE_CACHE);
    let end = Holdings::of_state(&state, Level::Tensor);
    let all = [
        (memory(2), held(32, 1)),
        (block(3), held(10, 1)),
        (block(4), held(1, 1)),
        (free, held(10, 1)),
    ];
    assert_eq!(end.held, all.into_iter().collect());
    let driver = Holdings::of_state(&state, Level::Driver);
    assert_eq!(driver.held[&memory(1)], held(20, 1));
    assert!(driver.held.keys().all(|owner| !owner.of_cache));
    // The peak of blocks is not that of driver memory.
    let level = Level::Tensor;
    let peak = Holdings::at(trace, definitions, &state, Moment::AllocatedPeak, level);
    assert_eq!(peak.at_ns[&DeviceId(0)], SECOND);
    assert_eq!(peak.held[&block(3)], held(14, 2));
    assert_eq!(peak.held[&free], held(6, 1));
}

fn end(until_ns: u64) -> State {
    let holder = |device, stack, bytes| StateHolder {
        device: DeviceId(device),
        moment: SummaryMoment::Peak,
        cause: None,
        of_framework: false,
        stack: StackId(stack),
        bytes,
        count: 2,
    };
    let mut history = History::default();
    history.peak_holders.extend([holder(0, 1, 70), holder(0, 2, 30), holder(1, 1, 5)]);
    let (from_ns, samples, devices) = (0, 1, Default::default());
    history.tiers[0].bins.push(Bin { from_ns, until_ns, samples, devices });
    let mut state = State::default();
    state.history = Some(Arc::new(history));
    state
}

#[test]
fn a_peak_whose_events_were_erased_has_its_recorded_holders() {
    let peak = Peak { bytes: 100, time_ns: 50, ..Peak::default() };
    let recorded = |until_ns, device| {
        let at_peaks = HoldingsAtPeaks::new(&end(until_ns), Moment::Peak, Level::Driver);
        let holders = at_peaks.recorded(DeviceId(device), peak).into_iter();
        holders.map(|holder| (holder.stack.0, holder.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(recorded(60, 0), [(1, 70), (2, 30)], "of this device");
    assert_eq!(recorded(60, 2), [], "nobody is known");
    assert_eq!(recorded(40, 0), [], "later than the copy");
}
