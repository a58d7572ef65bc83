//! Tests of the ledger against a model that is too simple to be wrong.

use super::figures::counts;
use super::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use vramtrace_format::physical::{GRAIN, MIB, PAGE, POOL_STEP, Physical, pages};
use vramtrace_format::{Alloc, ContextId, SiteId, StackId};

#[derive(Default)]
struct Log(RefCell<Vec<Event>>);

impl Sink for Log {
    fn emit(&self, event: &Event) {
        self.0.borrow_mut().push(*event);
    }
}

pub struct Nothing;

impl Sink for Nothing {
    fn emit(&self, _: &Event) {}
}

const KINDS_TRIED: [Kind; 9] = [
    Kind::Device,
    Kind::Pitched,
    Kind::Managed,
    Kind::Pool,
    Kind::Array,
    Kind::Vmm,
    Kind::Imported,
    Kind::HostPinned,
    Kind::Block,
];

#[derive(Clone, Debug)]
enum Step {
    Insert { place: u8, size: u64, kind: usize, device: u8, context: u16 },
    Remove { place: u8, kind: usize },
    FailedFree { place: u8, kind: usize },
    Context { context: u16 },
    Reserve { delta: i8 },
    Begin,
    Slice { budget: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![1u64..4 * GRAIN, 1u64..=MIB, MIB..8 * MIB];
    let step = prop_oneof![
        8 => (any::<u8>(), size, 0..KINDS_TRIED.len(), 0u8..3, 1u16..4).prop_map(
            |(place, size, kind, device, context)| Step::Insert { place, size, kind, device, context }
        ),
        6 => (any::<u8>(), 0..KINDS_TRIED.len()).prop_map(|(place, kind)| Step::Remove { place, kind }),
        1 => (any::<u8>(), 0..KINDS_TRIED.len())
            .prop_map(|(place, kind)| Step::FailedFree { place, kind }),
        1 => (1u16..4).prop_map(|context| Step::Context { context }),
        1 => (-2i8..4).prop_map(|delta| Step::Reserve { delta }),
        1 => Just(Step::Begin),
        3 => (1usize..9).prop_map(|budget| Step::Slice { budget }),
    ];
    prop::collection::vec(step, 1..200)
}

fn device_of(place: u8) -> u8 {
    place / 100
}

/// Places lie 256 KiB apart plus an odd bit, so that pages are shared and small ones straddle.
fn key(place: u8) -> u64 {
    // A page of addresses belongs to one device.
    let device = u64::from(device_of(place));
    (1 << 40) + (device << 32) + u64::from(place) * (MIB / 4) + u64::from(place % 3) * 7 * GRAIN
}

/// The physical bytes of a live set, counted afresh.
fn physical_of(live: &BTreeMap<(u8, u64), Entry>, reserved: i64, device: u8) -> u64 {
    let mut shared = BTreeSet::new();
    let mut own = 0;
    for entry in live.values().filter(|entry| entry.device.0 == device) {
        match entry.physical() {
            Physical::Own(bytes) => own += bytes,
            Physical::Shared(_) => {
                let (first, last) = pages(entry.key, entry.size);
                shared.extend(first..=last);
            }
            Physical::Reserved | Physical::None => {}
        }
    }
    own + shared.len() as u64 * PAGE + if device == 0 { reserved as u64 } else { 0 }
}

/// The running checkpoint: its id, what it must hold, and the totals that it must state.
struct Expected {
    cursor: Cursor,
    live: BTreeMap<(u8, u64), Entry>,
    totals: BTreeMap<u32, [u64; 2]>,
}

fn check_checkpoint(expected: &Expected, events: &[Event]) -> Result<(), TestCaseError> {
    let id = expected.cursor.id as u8;
    let mut live = BTreeMap::new();
    let mut totals = BTreeMap::<u32, [u64; 2]>::new();
    for event in events {
        match *event {
            Event::StateEvent(listed) if listed.state == id => {
                let Event::Alloc(alloc) = listed.event() else { continue };
                let key = (alloc.space as u8, alloc.key);
                let once = live.insert(key, (listed.time_ns, alloc)).is_none();
                prop_assert!(once, "written twice");
            }
            Event::StateTotals { id: of, site, allocations, frees, .. } if of == id => {
                let sum = totals.entry(site.0).or_default();
                for (word, by) in sum.iter_mut().zip([allocations, frees]) {
                    *word += by;
                }
            }
            _ => {}
        }
    }
    let wanted: BTreeMap<_, (u64, Alloc)> =
        expected.live.iter().map(|(key, entry)| (*key, (entry.time_ns, entry.alloc()))).collect();
    prop_assert_eq!(live, wanted);
    prop_assert_eq!(&totals, &expected.totals);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn the_ledger_agrees_with_a_naive_model(steps in steps()) {
        let ledger = Ledger::default();
        let log = Log::default();
        let mut live = BTreeMap::<(u8, u64), Entry>::new();
        let mut totals = BTreeMap::<u32, [u64; 2]>::new();
        let mut reserved = 0i64;
        let mut peak = 0;
        let mut checkpoint: Option<Expected> = None;
        let mut last_id = 0;
        for (time, step) in steps.iter().enumerate() {
            // In whole ticks, as records have them.
            let time_ns = (time as u64 + 1) << 6;
            let before = ledger.live(DeviceId(0)) + ledger.live(DeviceId(1)) + ledger.live(DeviceId(2));
            let mut change = None;
            match *step {
                Step::Insert { place, size, kind, device, context } => {
                    let kind = KINDS_TRIED[kind];
                    let device =
                        if kind.space() == Space::Device { device_of(place) } else { device };
                    let entry = Entry {
                        context: ContextId(if kind == Kind::Block { 0 } else { context }),
                        site: SiteId(kind as u32 * 10 + u32::from(device)),
                        time_ns,
                        ..Entry::new(kind, key(place), size, DeviceId(device))
                    };
                    change = Some(match kind {
                        Kind::Block => {
                            ledger.insert_block(&log, entry);
                            0
                        }
                        _ => ledger.insert(&log, &entry),
                    });
                    if let Some(earlier) = live.insert((entry.space as u8, entry.key), entry) {
                        totals.entry(earlier.site.0).or_default()[1] += 1;
                    }
                    totals.entry(entry.site.0).or_default()[0] += 1;
                }
                Step::Remove { place, kind } => {
                    let space = KINDS_TRIED[kind].space();
                    let expected = live.remove(&(space as u8, key(place)));
                    if space == Space::Block {
                        prop_assert_eq!(ledger.remove_block(&log, key(place)), expected.is_some());
                        if let Some(entry) = expected {
                            totals.entry(entry.site.0).or_default()[1] += 1;
                        }
                        continue;
                    }
                    let removed = ledger.remove(&log, space, key(place));
                    prop_assert_eq!(removed.map(|removed| removed.entry), expected);
                    let bytes = removed.map_or(0, |removed| removed.bytes);
                    prop_assert_eq!(removed.map_or(0, |removed| ledger.left(&removed)), bytes);
                    change = Some(-(bytes as i64));
                    if let Some(entry) = expected {
                        totals.entry(entry.site.0).or_default()[1] += 1;
                    }
                }
                Step::FailedFree { place, kind } => {
                    let space = KINDS_TRIED[kind].space();
                    // A framework's free does not fail.
                    if space != Space::Block
                        && let Some(removed) = ledger.remove(&log, space, key(place))
                    {
                        prop_assert_eq!(ledger.restore(&log, &removed), 0, "the cap never gave it back");
                    }
                }
                Step::Context { context } => {
                    let removed = ledger.remove_context(&log, ContextId(context));
                    let dead: Vec<_> = live
                        .iter()
                        .filter(|(_, e)| e.context.0 == context && !matches!(e.kind, Kind::Pool | Kind::Vmm))
                        .map(|(key, entry)| (*key, *entry))
                        .collect();
                    prop_assert_eq!(removed.allocations, dead.len() as u64);
                    change = Some(-(removed.bytes as i64));
                    for (key, entry) in dead {
                        live.remove(&key);
                        totals.entry(entry.site.0).or_default()[1] += 1;
                    }
                }
                Step::Reserve { delta } => {
                    let delta = (i64::from(delta) * POOL_STEP as i64).max(-reserved);
                    ledger.add_reserved(&log, DeviceId(0), Kind::Pool, delta, time_ns);
                    reserved += delta;
                }
                Step::Begin => if checkpoint.is_none() {
                    last_id += 1;
                    ledger.begin_checkpoint(last_id, || ());
                    checkpoint = Some(Expected {
                        cursor: Cursor::new(last_id),
                        live: live.clone(),
                        totals: totals.clone(),
                    });
                },
                Step::Slice { budget } => if let Some(running) = &mut checkpoint {
                    let done = ledger.checkpoint_slice(&mut running.cursor, budget, &mut |e| log.emit(e));
                    if done {
                        check_checkpoint(running, &log.0.borrow())?;
                        checkpoint = None;
                    }
                },
            }
            let after = ledger.live(DeviceId(0)) + ledger.live(DeviceId(1)) + ledger.live(DeviceId(2));
            if let Some(change) = change {
                prop_assert_eq!(after as i64 - before as i64, change);
            }
            for device in 0..3 {
                prop_assert_eq!(ledger.live(DeviceId(device)), physical_of(&live, reserved, device));
            }
            peak = peak.max(ledger.live(DeviceId(0)));
        }
        if let Some(mut running) = checkpoint {
            while !ledger.checkpoint_slice(&mut running.cursor, 3, &mut |e| log.emit(e)) {}
            check_checkpoint(&running, &log.0.borrow())?;
        }
        prop_assert!(ledger.counters(DeviceId(0)).peak >= peak);
        for device in 0..3 {
            let counters = ledger.counters(DeviceId(device));
            let mine = || live.values().filter(|e| e.device.0 == device && counts(e.kind));
            prop_assert_eq!(counters.live_allocations, mine().count() as u64);
            prop_assert_eq!(counters.live_requested, mine().map(|e| e.size).sum::<u64>());
        }
        let underflow = log.0.borrow().iter().any(|e| matches!(e, Event::Drift { what: Drift::Underflow, .. }));
        prop_assert!(!underflow);
    }
}

/// Eight threads allocate and free their own addresses while checkpoints run: every entry that
/// lives through a checkpoint is in it once, and at the end all sums are zero.
#[test]
fn threads_and_checkpoints() {
    struct Shared(Mutex<Vec<Event>>);
    impl Sink for Shared {
        fn emit(&self, event: &Event) {
            self.0.lock().unwrap().push(*event);
        }
    }
    let ledger = Ledger::default();
    let log = Shared(Mutex::new(Vec::new()));
    // These stay: each checkpoint must have them all.
    for place in 0..500u64 {
        ledger.insert(&log, &Entry::new(Kind::Device, (1 << 44) + place * GRAIN, 1, DeviceId(0)));
    }
    let kept = ledger.live(DeviceId(0));
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (ledger, log) = (&ledger, &log);
            scope.spawn(move || {
                for turn in 0..20_000u64 {
                    // All threads share the same slab pages.
                    let key = (1 << 40) + (turn % 64) * 64 * GRAIN + thread * GRAIN;
                    let kind = if turn % 3 == 0 { Kind::Device } else { Kind::Pool };
                    ledger.insert(log, &Entry::new(kind, key, 300, DeviceId(0)));
                    assert_eq!(ledger.get(Space::Device, key).map(|e| e.kind), Some(kind));
                    assert!(ledger.remove(log, Space::Device, key).is_some());
                }
            });
        }
        for id in 1..=5 {
            let mut cursor = Cursor::new(id);
            ledger.begin_checkpoint(id, || ());
            while !ledger.checkpoint_slice(&mut cursor, 20, &mut |event| log.emit(event)) {
                std::thread::yield_now();
            }
        }
    });
    let mut seen = HashMap::<(u32, u64), u32>::new();
    for event in log.0.lock().unwrap().iter() {
        match event {
            Event::StateEvent(listed) => {
                if let Event::Alloc(alloc) = listed.event() {
                    *seen.entry((u32::from(listed.state), alloc.key)).or_default() += 1;
                }
            }
            Event::Drift { .. } => panic!("{event:?}"),
            _ => {}
        }
    }
    for id in 1..=5 {
        for place in 0..500 {
            assert_eq!(seen.get(&(id, (1 << 44) + place * GRAIN)), Some(&1));
        }
    }
    assert_eq!(ledger.live(DeviceId(0)), kept);
    let counters = ledger.counters(DeviceId(0));
    assert_eq!((counters.live_allocations, counters.allocations), (500, 160_500));
}

#[test]
fn an_address_that_is_still_live_ends_the_earlier_one() {
    let ledger = Ledger::default();
    let log = Log::default();
    assert_eq!(
        ledger.insert(&log, &Entry::new(Kind::Device, PAGE, 4 * MIB, DeviceId(0))),
        4 * MIB as i64
    );
    assert_eq!(
        ledger.insert(&log, &Entry::new(Kind::Device, PAGE, 512, DeviceId(0))),
        -(2 * MIB as i64)
    );
    assert_eq!(log.0.borrow().as_slice(), [Event::Drift { what: Drift::StillLive, key: PAGE }]);
    assert_eq!(ledger.live(DeviceId(0)), PAGE);
    let removed = ledger.remove(&log, Space::Device, PAGE).unwrap();
    assert_eq!((removed.bytes, ledger.live(DeviceId(0))), (PAGE, 0));
}

/// The thread that takes the last live one out of a page may return first: the driver has the
/// page until the slowest free has returned, and so has the cap.
#[test]
fn a_page_is_given_back_by_the_last_free_that_returns() {
    let ledger = Ledger::default();
    let (first, second) = (PAGE, PAGE + 512);
    let insert = |key| ledger.insert(&Nothing, &Entry::new(Kind::Device, key, 512, DeviceId(0)));
    assert_eq!((insert(first), insert(second)), (PAGE as i64, 0));
    let slow = ledger.remove(&Nothing, Space::Device, first).unwrap();
    let quick = ledger.remove(&Nothing, Space::Device, second).unwrap();
    assert_eq!((slow.bytes, quick.bytes, ledger.live(DeviceId(0))), (0, PAGE, 0));
    assert_eq!(ledger.left(&quick), 0, "the first one's free is under way");
    // The page is there: who is put into it takes nothing new, but it is live again.
    assert_eq!((insert(second), ledger.live(DeviceId(0))), (0, PAGE));
    assert_eq!(ledger.left(&slow), 0);
    let last = ledger.remove(&Nothing, Space::Device, second).unwrap();
    assert_eq!(ledger.left(&last), PAGE);
}

/// A page is counted on the kind of the block that opened it, and of the one that opens it again.
#[test]
fn a_page_that_is_live_again_is_counted_on_the_new_kind() {
    let ledger = Ledger::default();
    let log = Log::default();
    ledger.insert(&log, &Entry::new(Kind::Pitched, PAGE, 512, DeviceId(0)));
    ledger.insert(&log, &Entry::new(Kind::Device, PAGE + 512, 512, DeviceId(0)));
    let opener = ledger.remove(&log, Space::Device, PAGE).unwrap();
    ledger.left(&opener);
    let refused = ledger.remove(&log, Space::Device, PAGE + 512).unwrap();
    ledger.restore(&log, &refused);
    let removed = ledger.remove(&log, Space::Device, PAGE + 512).unwrap();
    assert_eq!((removed.bytes, ledger.left(&removed)), (PAGE, PAGE));
    assert!(log.0.borrow().is_empty(), "{:?}", log.0.borrow());
}

#[test]
fn an_underflow_is_drift_not_17_terabytes() {
    let ledger = Ledger::default();
    let log = Log::default();
    ledger.add_reserved(&log, DeviceId(1), Kind::Pool, -1, 0);
    assert_eq!(ledger.live(DeviceId(1)), 0);
    assert!(matches!(log.0.borrow()[0], Event::Drift { what: Drift::Underflow, .. }));
}

#[test]
fn a_failed_free_survives_a_checkpoint_that_began_meanwhile() {
    let ledger = Ledger::default();
    let log = Log::default();
    ledger.insert(&log, &Entry::new(Kind::Device, PAGE, 512, DeviceId(0)));
    let removed = ledger.remove(&log, Space::Device, PAGE).unwrap();
    ledger.begin_checkpoint(1, || ());
    let mut cursor = Cursor::new(1);
    while !ledger.checkpoint_slice(&mut cursor, 100, &mut |event| log.emit(event)) {}
    ledger.restore(&log, &removed);
    let alloc = StackId(0);
    let written = log
        .0
        .borrow()
        .iter()
        .filter(|e| matches!(e, Event::StateEvent(_)))
        .filter(|e| matches!(e.itself(), Event::Alloc(a) if a.stack == alloc))
        .count();
    assert_eq!(written, 1);
}

#[test]
fn imports_count_references() {
    let ledger = Ledger::default();
    ledger.insert(&Nothing, &Entry::new(Kind::Imported, PAGE, 512, DeviceId(0)));
    assert_eq!(ledger.add_refs(Space::Device, PAGE, 1), Some(2));
    assert_eq!(ledger.add_refs(Space::Device, PAGE, -1), Some(1));
    assert_eq!(ledger.add_refs(Space::Device, 1, 1), None);
    assert_eq!(ledger.live(DeviceId(0)), 0);
}
