//! What is taken out of traces, and what comes of it.

use vramtrace_format::{
    Alloc, BLOCK_REQUESTS, BlockChange, DeviceId, Event, Kind, Listed, Purpose, RefusedBy, Sample,
    SiteId, Space, StackId,
};

use super::*;
use crate::allocator::{Conf, Request};
use crate::testing::{SECOND, TraceBuilder};
use crate::trace::{Definitions, TORCH_VERSION, Trace};

pub(super) const MIB: u64 = 1 << 20;
pub(super) const SEGMENT: u64 = 1 << 40;

pub(super) fn recorded(builder: &TraceBuilder) -> Recorded {
    let mut all = all_recorded(builder);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn all_recorded(builder: &TraceBuilder) -> Vec<Recorded> {
    let trace = Trace::of(builder);
    Recorded::of(&trace, &trace.definitions().0)
}

pub(super) fn requests(recorded: &Recorded) -> Vec<Request> {
    let kept = |request: &Request| !matches!(request, Request::Outside { .. });
    recorded.log.requests().filter(kept).collect()
}

fn alloc(size: u64, slot: u32) -> Request {
    Request::Alloc { size, stream: 0, pool: 0, slot }
}

/// A segment of this many MiB, and a block in it that takes it all.
fn filled(t: &mut TraceBuilder, at: u64, number: u64, mib: u64) {
    t.alloc(at, Kind::Device, SEGMENT * number, mib * MIB);
    t.alloc(at + 1, Kind::Block, SEGMENT * number, mib * MIB);
}

fn predicted(recorded: &Recorded, confs: &[&str], capacities: &[u64]) -> Prediction {
    let confs: Vec<(String, Conf)> =
        confs.iter().map(|text| (text.to_string(), Conf::parse(text).unwrap())).collect();
    let asked = |bytes: &u64| Capacity { bytes: *bytes, origin: Origin::Asked };
    predict(recorded, &confs, capacities.iter().map(asked).collect())
}

/// A run with one segment of 20 MiB, full.
fn short() -> TraceBuilder {
    let mut t = TraceBuilder::new();
    filled(&mut t, 1000, 1, 20);
    t
}

#[test]
fn blocks_become_requests_and_what_is_known_of_them_counts() {
    let mut t = TraceBuilder::new();
    filled(&mut t, 1000, 1, 20);
    t.event(3000, Event::BlockChange { address: SEGMENT, change: BlockChange::Requested(7) });
    t.alloc(4000, Kind::Block, SEGMENT + 8 * MIB, 512);
    t.free(5000, Space::Block, SEGMENT);
    t.event(6000, Event::BlockChange { address: SEGMENT, change: BlockChange::Pending });
    t.alloc(7000, Kind::Block, SEGMENT + 9 * MIB, 512);
    t.event(8000, Event::BlockChange { address: SEGMENT, change: BlockChange::Reusable });
    t.free(9000, Space::Block, SEGMENT + 9 * MIB);
    let recorded = recorded(&t);
    let free = |slot| Request::Free { slot };
    let expected = [alloc(7, 0), alloc(512, 1), alloc(512, 2), free(0), free(2)];
    assert_eq!(requests(&recorded), expected);
    assert!(recorded.knows_requests && !recorded.knows_streams);
    assert_eq!(recorded.peak_reserved, 20 * MIB);
    assert_eq!((recorded.cap_bytes, recorded.card_bytes), (None, Some(24 << 30)));
}

/// A request of 2 MiB - 100 that the cache served from a block of 2.5 MiB, taken whole.
#[test]
fn requests_are_replayed_where_blocks_carry_them() {
    let mut t = TraceBuilder::new();
    t.setting(BLOCK_REQUESTS, "requested");
    t.alloc(1000, Kind::Device, SEGMENT, 20 * MIB);
    let mut block = |at: u64, offset: u64, size: u64, requested: Option<u64>| {
        let alloc = t.allocation(Kind::Block, 0, SEGMENT + offset, size);
        t.event(at, Event::Alloc(Alloc { requested, ..alloc }));
    };
    block(2000, 0, 5 * MIB / 2, Some(2 * MIB - 100));
    block(3000, 4 * MIB, 4096, None);
    block(4000, 8 * MIB, MIB, Some(0));
    let recorded = recorded(&t);
    let expected = [alloc(2 * MIB - 100, 0), alloc(4096, 1), alloc(MIB, 2)];
    assert_eq!(requests(&recorded), expected);
    assert_eq!((recorded.knows_requests, recorded.unknown_requests), (true, 1));
}

#[test]
fn an_emptied_cache_is_distinguished_from_a_retry() {
    let mut t = TraceBuilder::new();
    for (number, refused) in [(1, false), (2, true), (3, false)] {
        let at = number * 10_000;
        filled(&mut t, at, number, 20);
        t.free(at + 100, Space::Block, SEGMENT * number);
        if refused {
            t.refused(at + 200, Kind::Device, 40 * MIB, RefusedBy::Driver, 0);
        }
        t.free(at + 300, Space::Device, SEGMENT * number);
    }
    filled(&mut t, 90_000, 4, 40);
    t.free(95_000, Space::Block, SEGMENT * 4);
    t.free(95_001, Space::Device, SEGMENT * 4);
    let log = recorded(&t);
    let (free, empty) = (Request::Free { slot: 0 }, Request::EmptyCache);
    let (small, large) = (alloc(20 * MIB, 0), alloc(40 * MIB, 0));
    let expected = [small, free, empty, small, free, small, free, empty, large, free];
    assert_eq!(requests(&log), expected);
    // Where garbage is collected, segments go back for that, too.
    t.setting("PYTORCH_CUDA_ALLOC_CONF", "garbage_collection_threshold:0.6");
    assert!(!requests(&recorded(&t)).contains(&Request::EmptyCache));
}

#[test]
fn what_is_outside_of_the_cache_is_taken_from_the_capacity() {
    let mut t = TraceBuilder::new();
    t.sample(10, Some(500 * MIB), 500 * MIB);
    filled(&mut t, 1000, 1, 100);
    // Another library's own memory, and some of NVML's that nothing explains.
    t.alloc(2000, Kind::Device, SEGMENT * 2, 50 * MIB);
    t.sample(3000, Some(700 * MIB), 500 * MIB);
    filled(&mut t, 4000, 3, 100);
    let recorded = recorded(&t);
    let outside = |request| match request {
        Request::Outside { bytes } => Some(bytes / MIB),
        _ => None,
    };
    let outside: Vec<u64> = recorded.log.requests().filter_map(outside).collect();
    assert_eq!(outside, [500, 600], "the cache's own segments are not outside of it");
    let fits = |mib: u64| {
        let prediction = predicted(&recorded, &["default"], &[mib * MIB]);
        prediction.settings[0].at[0].fits
    };
    assert!(fits(800) && !fits(798));
    let smallest = predicted(&recorded, &["default"], &[]).settings[0].smallest;
    assert_eq!(smallest, Some(800 * MIB));
}

#[test]
fn a_run_that_ended_out_of_memory_ends_with_the_request_that_failed() {
    let mut t = TraceBuilder::new();
    filled(&mut t, 1000, 1, 100);
    t.out_of_memory(2000, 30 * MIB);
    filled(&mut t, 3000, 2, 20);
    t.out_of_memory(4000, 60 * MIB);
    t.free(5000, Space::Block, SEGMENT);
    let recorded = recorded(&t);
    let expected = [alloc(100 * MIB, 0), alloc(20 * MIB, 1), alloc(60 * MIB, 2)];
    assert_eq!(requests(&recorded), expected, "frees after the end are not before it");
    assert_eq!(recorded.out_of_memory.unwrap().size, 60 * MIB);
    assert_eq!(recorded.survived, 1);
    let at = |mib: u64| predicted(&recorded, &["default"], &[mib * MIB]).settings[0].at[0].clone();
    assert!(!at(170).fits && !at(170).for_others && at(180).fits);
}

#[test]
fn sharing_by_others_forbids_expandable_segments() {
    for (file, function, forbidden) in [
        ("/opt/venv/lib/python3.11/site-packages/torch/multiprocessing/reductions.py", "f", false),
        ("/opt/venv/lib/python3.11/site-packages/torch/storage.py", "X._share_cuda_", false),
        ("/home/me/train.py", "share", true),
    ] {
        let mut t = short();
        t.code(1, function, file, 12);
        t.code(2, "<module>", "/home/me/train.py", 41);
        t.stack(9, &[], &[1, 2], &[]);
        let shared = |address| Event::Shared { address, site: SiteId(0), stack: StackId(9) };
        t.event(2000, shared(SEGMENT + 5));
        // Of the driver's own memory: nobody's tensor.
        t.alloc(2500, Kind::Device, SEGMENT * 7, MIB);
        t.event(3000, shared(SEGMENT * 7));
        let recorded = recorded(&t);
        let prediction = predicted(&recorded, &["expandable_segments:True", "default"], &[]);
        let expandable = prediction.settings.iter().find(|s| s.conf.expandable_segments).unwrap();
        assert_eq!(expandable.forbidden.is_some(), forbidden, "{file}");
        if let Some(why) = &expandable.forbidden {
            assert!(why.starts_with("train.py:12"), "{expandable:?}");
            assert_eq!(prediction.settings[0].name, "default", "never first");
        }
    }
}

#[test]
fn a_punched_beginning_starts_from_the_checkpoint() {
    let mut t = TraceBuilder::new();
    t.lose();
    let segment = t.allocation(Kind::Device, 0, SEGMENT, 20 * MIB);
    let block = t.allocation(Kind::Block, 0, SEGMENT + 2 * MIB, 2 * MIB);
    let gone = t.allocation(Kind::Block, 0, SEGMENT + 8 * MIB, 2 * MIB);
    t.event(SECOND, Event::StateBegin { id: 1, what: Purpose::Checkpoint, cache_ooms: 0 });
    t.event(SECOND, Event::StateEvent(Listed::new(1, 5, &Event::Alloc(segment))));
    t.event(SECOND, Event::StateEvent(Listed::new(1, 6, &Event::Alloc(gone))));
    t.free(SECOND + 1, Space::Block, SEGMENT + 8 * MIB);
    t.event(SECOND + 2, Event::StateEvent(Listed::new(1, 6, &Event::Alloc(block))));
    t.event(SECOND + 3, Event::StateEnd { id: 1, cut: false });
    t.alloc(2 * SECOND, Kind::Block, SEGMENT + 4 * MIB, 4 * MIB);
    t.free(3 * SECOND, Space::Block, SEGMENT + 2 * MIB);
    let recorded = recorded(&t);
    assert!(recorded.from_ns.unwrap() >= SECOND);
    let start = recorded.log.start();
    assert_eq!((start.len(), start[0].size), (1, 20 * MIB));
    assert_eq!(start[0].blocks, [(SEGMENT + 2 * MIB, 2 * MIB)]);
    assert_eq!(requests(&recorded), [alloc(4 * MIB, 1), Request::Free { slot: 0 }]);
    let prediction = predicted(&recorded, &["default"], &[]);
    let free = &prediction.settings[0].free;
    assert_eq!((free.peak_reserved, free.driver_allocations), (20 * MIB, 0));
}

#[test]
fn the_setting_in_force_is_named_and_tried() {
    let mut t = short();
    assert!(predicted(&recorded(&t), &["default"], &[]).settings[0].in_force, "none is default");
    t.setting("PYTORCH_ALLOC_CONF", "max_split_size_mb:77");
    let prediction = predicted(&recorded(&t), &["default"], &[]);
    let names: Vec<_> = prediction.settings.iter().map(|s| (&*s.name, s.in_force)).collect();
    assert_eq!(names, [("max_split_size_mb:77", true), ("default", false)]);
    assert!(prediction.advice().is_none(), "both reserve the same");
    t.setting("PYTORCH_CUDA_ALLOC_CONF", "what:ever");
    let recorded = recorded(&t);
    assert_eq!((recorded.in_force.name(), &recorded.in_force.conf), ("what:ever", &None));
}

#[test]
fn a_run_without_blocks_says_why() {
    assert!(all_recorded(&TraceBuilder::new()).is_empty());
    for (name, value, part) in [
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", "cudaMallocAsync"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "NO_CUDA_MEMORY_CACHING"),
        ("x", "y", "no tensors"),
    ] {
        let mut t = TraceBuilder::new();
        t.setting(name, value);
        assert!(why_no_blocks(&Definitions::of_builder(&t)).contains(part), "{part}");
    }
    let mut t = TraceBuilder::new();
    t.module("/opt/torch/lib/libc10_cuda.so", 0x1000);
    assert!(why_no_blocks(&Definitions::of_builder(&t)).contains("pluggable"));
}

/// Samples may say less than the ledger knows.
#[test]
fn figures_that_contradict_each_other_do_no_harm() {
    let mut t = TraceBuilder::new();
    let sample = |bytes| Sample {
        device: DeviceId(0),
        driver_free: None,
        driver_total: None,
        process_bytes: Some(bytes),
        context_bytes: u64::MAX,
    };
    t.event(5, Event::Sample(sample(1)));
    filled(&mut t, 1000, 1, 20);
    t.event(5000, Event::Sample(sample(u64::MAX)));
    filled(&mut t, 6000, 2, 20);
    let prediction = predicted(&recorded(&t), &["default"], &[1 << 40]);
    assert!(!prediction.settings[0].at[0].fits);
}

/// The settings of the grid that are forbidden, and the reason of the first.
fn forbidden(t: &TraceBuilder) -> (Vec<String>, String) {
    let prediction = predicted(&recorded(t), &GRID, &[1 << 40]);
    let settings = prediction.settings.iter().filter(|setting| setting.forbidden.is_some());
    let mut names: Vec<String> = settings.clone().map(|setting| setting.name.clone()).collect();
    names.sort_unstable();
    let why = settings.flat_map(|setting| setting.forbidden.clone()).next();
    let advised = prediction.advice().map(|setting| setting.name.clone());
    assert!(advised.is_none_or(|advised| !names.contains(&advised)), "never advised");
    (names, why.unwrap_or_default())
}

#[test]
fn a_setting_that_this_pytorch_does_not_know_is_forbidden() {
    for (version, expected) in [
        ("2.0.1+cu118", &["expandable_segments:True", "large_segment_size_mb:64"][..]),
        ("2.10.0", &["large_segment_size_mb:64"]),
        ("2.11.0+cu128", &[]),
    ] {
        let mut t = short();
        t.setting(TORCH_VERSION, version);
        let (names, why) = forbidden(&t);
        assert_eq!(names, expected, "{version}");
        assert!(expected.is_empty() || why.contains("does not know"), "{why}");
    }
}

#[test]
fn sharing_by_pytorch_needs_a_version_that_shares_expandable_segments() {
    for (version, expected) in [("2.4.1", true), ("2.5.0", false)] {
        let mut t = short();
        t.code(1, "X._share_cuda_", "/opt/venv/lib/python3.11/site-packages/torch/storage.py", 12);
        t.stack(9, &[], &[1], &[]);
        t.event(2000, Event::Shared { address: SEGMENT, site: SiteId(0), stack: StackId(9) });
        t.setting(TORCH_VERSION, version);
        let (names, why) = forbidden(&t);
        assert_eq!(names.contains(&"expandable_segments:True".to_string()), expected, "{version}");
        assert!(!expected || why.contains("cannot share tensors"), "{why}");
    }
}

#[test]
fn mapped_memory_that_is_not_of_expandable_segments_excludes_them() {
    for (in_force, expected) in [("", true), ("expandable_segments:True", false)] {
        let mut t = TraceBuilder::new();
        t.setting("PYTORCH_CUDA_ALLOC_CONF", in_force);
        t.mapped(300, SEGMENT, 20 * MIB, 1);
        t.alloc(400, Kind::Block, SEGMENT, 20 * MIB);
        // Unmapped at the end of the run.
        t.free(500, Space::Block, SEGMENT);
        t.unmap(600, SEGMENT, 20 * MIB);
        let (names, why) = forbidden(&t);
        assert_eq!(names == ["expandable_segments:True"], expected, "{in_force} {names:?}");
        assert!(!expected || why.contains("mapped already"), "{why}");
    }
}

#[test]
fn where_pytorchs_allocator_is_bypassed_no_setting_counts() {
    for (name, value, part) in [
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", "backend:cudaMallocAsync"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    ] {
        let mut t = short();
        t.setting(name, value);
        let (names, why) = forbidden(&t);
        assert_eq!(names.len(), GRID.len(), "{names:?}");
        assert!(why.contains(part), "{why}");
    }
    let mut t = short();
    t.setting("PYTORCH_CUDA_ALLOC_CONF", "backend:native,max_split_size_mb:64");
    assert_eq!(forbidden(&t).0, [""; 0]);
}
