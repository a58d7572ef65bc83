//! Programs with known answers.

use proptest::prelude::*;
use vramtrace_format::physical::MIB;
use vramtrace_format::{DeviceId, Event, Kind, RefusedBy, Sample, Space, StackId, ThreadId};

use super::*;
use crate::testing::{MS, SECOND, TraceBuilder};
use crate::trace::Trace;

fn listed(builder: &TraceBuilder) -> OomsFound {
    let trace = Trace::of(builder);
    list(&trace, &trace.definitions().0).0
}

fn start(n: usize) -> u64 {
    (1 << 40) + ((n as u64) << 32)
}

/// Segments of these MiB with two blocks each, the second one of `kept` MiB. Of every second segment the first block
/// is freed; then a request of 64 MiB fails.
fn run(blocks: &[u64], kept: u64, by: RefusedBy, goes_on: bool) -> Vec<PostMortem> {
    run_with("", blocks, kept, by, goes_on)
}

fn run_with(
    conf: &str,
    blocks: &[u64],
    kept: u64,
    by: RefusedBy,
    goes_on: bool,
) -> Vec<PostMortem> {
    let mut t = TraceBuilder::new();
    t.setting("PYTORCH_CUDA_ALLOC_CONF", conf);
    for (n, mib) in blocks.iter().enumerate() {
        let first = mib - kept;
        t.alloc(SECOND, Kind::Device, start(n), mib * MIB);
        t.alloc(SECOND, Kind::Block, start(n), first * MIB);
        if kept > 0 {
            t.alloc(SECOND, Kind::Block, start(n) + first * MIB, kept * MIB);
        }
    }
    for n in (1..blocks.len()).step_by(2) {
        t.free(2 * SECOND, Space::Block, start(n));
    }
    let limit = if by == RefusedBy::Driver { 0 } else { 256 * MIB };
    t.refused(3 * SECOND, Kind::Device, 64 * MIB, by, limit);
    t.out_of_memory(3 * SECOND, 64 * MIB);
    if goes_on {
        t.alloc(4 * SECOND, Kind::Block, start(1), MIB);
    }
    let trace = &Trace::of(&t);
    let definitions = &trace.definitions().0;
    let found = list(trace, definitions).0;
    let mut fatal = examine(trace, definitions, &ended(&found.ooms));
    fatal.iter_mut().for_each(|one| one.find_remedy(trace, definitions));
    fatal
}

#[test]
fn the_cause_is_distinguished_from_what_was_free() {
    let cause = |blocks: &[u64], by| run(blocks, 1, by, false)[0].cause;
    assert_eq!(cause(&[40; 6], RefusedBy::Cap), OomCause::Fragmentation);
    assert_eq!(cause(&[40; 6], RefusedBy::Driver), OomCause::Fragmentation);
    assert_eq!(cause(&[40; 3], RefusedBy::Cap), OomCause::Cap);
    assert_eq!(cause(&[40; 3], RefusedBy::Driver), OomCause::Card);
    assert_eq!(cause(&[40; 6], RefusedBy::BadCap), OomCause::BadCap);
    let fatal = &run(&[40; 6], 1, RefusedBy::Cap, false)[0];
    assert_eq!(
        (fatal.cache.free_in_segments_bytes, fatal.cache.largest_free_block_bytes),
        (117 * MIB, 39 * MIB)
    );
    assert_eq!(
        (fatal.cache.allocated_bytes, fatal.cache.reserved_bytes, fatal.cache.segments_pinned),
        (123 * MIB, 240 * MIB, 3)
    );
    assert_eq!((fatal.cache.releasable_bytes, fatal.cache.private_bytes), (0, 0));
    assert_eq!(fatal.oom.refusal.unwrap().refused.size, 64 * MIB);
    // All in one moment: what the process went on with is not the failure's.
    assert_eq!(fatal.held.bytes_on(DeviceId(0)), 240 * MIB);
}

#[test]
fn segments_that_pytorch_did_not_release_are_of_private_pools() {
    let fatal = &run(&[40, 100], 0, RefusedBy::Cap, false)[0];
    assert_eq!((fatal.cause, fatal.figures.free), (OomCause::Cap, 0));
    assert_eq!((fatal.cache.private_bytes, fatal.cache.largest_free_block_bytes), (100 * MIB, 0));
    assert!(!fatal.cache.fits_in_one_piece && fatal.remedy.is_none());
    // It may raise the error before that.
    let conf = "throw_on_cudamalloc_oom:True";
    let early = &run_with(conf, &[40, 100], 0, RefusedBy::Cap, false)[0];
    assert_eq!((early.cache.private_bytes, early.cache.largest_free_block_bytes), (0, 100 * MIB));
}

#[test]
fn a_run_that_went_on_did_not_end_with_it() {
    assert!(run(&[40; 6], 1, RefusedBy::Cap, true).is_empty());
}

/// Refused calls at these times in ms; then so many MiB are given at another, or not.
fn driver(refused: &[u64], given: Option<(u64, u64)>, last: u64) -> OomsFound {
    let mut t = TraceBuilder::new();
    t.alloc(0, Kind::Device, start(0), 40 * MIB);
    for at in refused {
        t.refused(at * MS, Kind::Device, 64 * MIB, RefusedBy::Cap, 100 * MIB);
    }
    if let Some((at, mib)) = given {
        t.alloc(at * MS, Kind::Device, start(1), mib * MIB);
    }
    t.event(last * MS, Event::Ended);
    listed(&t)
}

#[test]
fn callers_of_the_driver_are_out_of_memory_when_nothing_follows_for_long() {
    // Absorbed: given as much at once.
    let found = driver(&[0, 500, 900], Some((901, 64)), 902);
    assert!(found.ooms.is_empty() && found.refusals[&DeviceId(0)] == 3, "{found:?}");
    // Handled: given less, or later.
    for given in [(1, 2), (5_000, 64)] {
        let found = driver(&[0], Some(given), 6_000);
        let oom = &worst(&found.ooms)[0];
        assert_eq!((oom.went_on, oom.size, found.refusals[&DeviceId(0)]), (true, 64 * MIB, 0));
    }
    // Never given.
    let found = driver(&[7], None, 8);
    let [oom] = &found.ooms[..] else { panic!("{found:?}") };
    assert_eq!((oom.level, oom.size, oom.requests), (Level::Driver, 64 * MIB, 1));
    assert_eq!((oom.went_on, oom.absorbed, oom.time_ns), (false, 0, 7 * MS));
    // Refused for longer than a second: reported, though it was given in the end.
    let oom = &driver(&[0, 400, 1_200], Some((1_300, 64)), 1_400).ooms[0];
    let found = (oom.requests, oom.first_ns, oom.time_ns, oom.went_on);
    assert_eq!(found, (3, 0, 1_200 * MS, true));
    // It lived on without asking for more.
    assert!(driver(&[0], None, 20_000).ooms[0].went_on);
    // It ended with a status.
    for status in [0, 1] {
        let mut t = TraceBuilder::new();
        t.refused(MS, Kind::Device, 64 * MIB, RefusedBy::Cap, 100 * MIB);
        t.event(2 * MS, Event::Aftermath { api: None, result: status });
        assert_eq!(listed(&t).ooms[0].went_on, status == 0);
    }
}

#[test]
fn host_memory_that_was_refused_last_ends_a_run() {
    for given in [None, Some(Kind::HostPinned), Some(Kind::Device)] {
        let mut t = TraceBuilder::new();
        t.alloc(0, Kind::Device, start(0), 40 * MIB);
        t.refused(7 * MS, Kind::HostPinned, 64 * MIB, RefusedBy::Driver, 0);
        given.into_iter().for_each(|kind| t.alloc(9 * MS, kind, start(1), MIB));
        t.event(20 * MS, Event::Ended);
        let oom = &listed(&t).ooms[0];
        assert_eq!((oom.is_of_host(), oom.device), (true, DeviceId::UNKNOWN));
        assert_eq!((oom.size, oom.went_on), (64 * MIB, given.is_some()));
    }
}

#[test]
fn a_burst_is_one() {
    let mut t = TraceBuilder::new();
    t.alloc(0, Kind::Device, start(0), 40 * MIB);
    t.alloc(0, Kind::Block, start(0), 8 * MIB);
    for n in 0..1_000 {
        t.refused(SECOND + n * MS, Kind::Device, 64 * MIB, RefusedBy::Cap, 100 * MIB);
        t.out_of_memory(SECOND + n * MS, (64 + n) * MIB);
        // What it does between two of them is no success of theirs.
        t.alloc(SECOND + n * MS, Kind::Block, start(0) + 8 * MIB, MIB);
        t.free(SECOND + n * MS, Space::Block, start(0) + 8 * MIB);
    }
    t.refused(9 * SECOND, Kind::Device, 64 * MIB, RefusedBy::Cap, 100 * MIB);
    t.out_of_memory(9 * SECOND, 64 * MIB);
    let found = listed(&t);
    let [burst, last] = &found.ooms[..] else { panic!("{} are listed", found.ooms.len()) };
    assert_eq!((burst.requests, burst.refusals, burst.size), (1_000, 1_000, 1_063 * MIB));
    assert_eq!((burst.first_ns, burst.time_ns), (SECOND, SECOND + 999 * MS));
    assert!(burst.went_on && !last.went_on);
    assert_eq!((last.requests, last.size, last.absorbed), (1, 64 * MIB, 0));
}

#[test]
fn refusals_that_torch_absorbs_are_harmless_however_long_it_takes() {
    let mut t = TraceBuilder::new();
    t.alloc(0, Kind::Device, start(0), 40 * MIB);
    t.alloc(0, Kind::Block, start(0), 40 * MIB);
    for n in 1..5 {
        let now = n * 10 * SECOND;
        t.refused(now, Kind::Vmm, 40 * MIB, RefusedBy::Driver, 0);
        // Pages of a request that is then refused.
        t.alloc(now, Kind::Vmm, n, 20 * MIB);
        t.refused(now + 2 * SECOND, Kind::Vmm, 20 * MIB, RefusedBy::Driver, 0);
        t.alloc(now + 3 * SECOND, Kind::Device, start(n as usize), 40 * MIB);
        t.alloc(now + 3 * SECOND, Kind::Block, start(n as usize), 40 * MIB);
    }
    let found = listed(&t);
    assert!(found.ooms.is_empty(), "{:?}", found.ooms);
    assert_eq!(found.refusals[&DeviceId(0)], 8);
}

#[test]
fn a_cap_that_only_warns_refuses_nothing() {
    let mut t = TraceBuilder::new();
    t.refused(SECOND, Kind::Device, 64 * MIB, RefusedBy::Warned, MIB);
    let found = listed(&t);
    assert!(found.ooms.is_empty() && found.refusals.is_empty(), "{found:?}");
}

#[test]
fn a_thread_that_gets_memory_of_another_device_went_on_and_its_neighbour_did_not() {
    for (thread, failures) in [(1, 0), (2, 1)] {
        let mut t = TraceBuilder::new();
        t.refused(SECOND, Kind::Device, 64 * MIB, RefusedBy::Cap, 100 * MIB);
        let alloc = t.allocation(Kind::Device, 1, start(1), 2 * MIB);
        t.event_of(ThreadId(thread), 2 * SECOND, Event::Alloc(alloc));
        assert_eq!(ended(&listed(&t).ooms).len(), failures);
    }
}

#[test]
fn what_is_missing_in_a_file_is_not_made_up() {
    let mut t = TraceBuilder::new();
    t.refused(SECOND, Kind::Device, 64 * MIB, RefusedBy::Cap, 100 * MIB);
    t.lose();
    t.alloc(3 * SECOND, Kind::Block, start(0), MIB);
    t.out_of_memory(4 * SECOND, 64 * MIB);
    let trace = &Trace::of(&t);
    let definitions = &trace.definitions().0;
    let found = list(trace, definitions).0;
    assert_eq!(found.ooms.len(), 1, "the refusal may have been absorbed in what is missing");
    let all: Vec<(usize, Oom)> = (1..).zip(found.ooms).collect();
    let explained = &explain(trace, definitions, &all)[0];
    assert!(!explained.one.live_is_known);
    assert_eq!(explained.one.cause, OomCause::Unknown);
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: 64, ..ProptestConfig::default()
    })]

    /// Whatever there is, and whatever NVML and the cap say: the parts are the whole.
    #[test]
    fn parts_add_up(
        memory in proptest::collection::vec((0..3u8, 1..40u64, 0..4u32), 0..20),
        blocks in proptest::collection::vec((0..20usize, 1..40u64), 0..20),
        process in proptest::option::of(prop_oneof![0..2_000u64, Just(u64::MAX / MIB)]),
        counted in prop_oneof![0..2_000u64, Just(u64::MAX / MIB)],
        context in 0..600u64,
    ) {
        let mut t = TraceBuilder::new();
        t.context(0, 0);
        for (n, (kind, mib, stack)) in memory.iter().enumerate() {
            let kind = [Kind::Device, Kind::Managed, Kind::Array][usize::from(*kind)];
            t.alloc_by(SECOND, kind, start(n), mib * MIB - 1, *stack);
        }
        for (n, mib) in blocks {
            if memory.get(n).is_some_and(|(kind, ..)| *kind == 0) {
                t.alloc(SECOND, Kind::Block, start(n), mib * MIB);
            }
        }
        t.event(2 * SECOND, Event::Sample(Sample {
            device: DeviceId(0),
            driver_free: None,
            driver_total: None,
            process_bytes: process.map(|mib| mib * MIB),
            context_bytes: context * MIB,
        }));
        let site = t.site(Kind::Device, 0);
        t.event(3 * SECOND, Event::Refused(vramtrace_format::Refused {
            site,
            stack: StackId(0),
            size: MIB,
            result: 2,
            by: RefusedBy::Cap,
            counted: counted * MIB,
            limit: 1,
            driver_free: 0,
            cache: None,
        }));
        let trace = &Trace::of(&t);
        let definitions = &trace.definitions().0;
            let found = list(trace, definitions).0;
            prop_assert_eq!(found.ooms.len(), 1);
            let all: Vec<(usize, Oom)> = (1..).zip(found.ooms).collect();
            let it = &explain(trace, definitions, &all)[0];
            let sum: i64 = it.sum.parts.iter().map(|part| part.bytes).sum();
            prop_assert_eq!(sum, it.sum.bytes as i64);
            if counted < 2_000 {
                prop_assert!(it.sum.bytes >= counted * MIB);
                let managed = it.one.device.kind(Kind::Managed).live_bytes;
                let shown = it.one.device.in_use().in_nvidia_smi().filter(|_| process < Some(2_000));
                if let Some(shown) = shown {
                    prop_assert_eq!(it.sum.bytes, (shown + managed).max(counted * MIB));
                }
            }
    }
}
