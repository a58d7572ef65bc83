//! Traces that agree with themselves, and one for each way in which they may not.

use vramtrace_format::physical::MIB;
use vramtrace_format::{
    Alloc, ContextId, Counters, DeviceId, Drift, Event, Kind, Purpose, SiteId, Space, StackId,
    Stamped, ThreadId,
};

use super::*;
use crate::replay::{DeviceState, Observer, State, Until};
use crate::testing::{MS, SECOND, TraceBuilder, cached, counters, listed, training};

const PAGE: u64 = 2 * MIB;

fn rules(builder: &TraceBuilder) -> Vec<Rule> {
    let found = verify(&Trace::of(builder));
    found.violations.iter().map(|violation| violation.rule).collect()
}

#[track_caller]
fn only(builder: &TraceBuilder) -> Violation {
    let found = verify(&Trace::of(builder));
    assert_eq!((found.violations.len(), found.violated), (1, 1), "{:#?}", found.violations);
    found.violations[0].clone()
}

#[test]
fn sound_traces_hold_and_nothing_is_left_unchecked() {
    for builder in [training(), cached()] {
        let found = verify(&Trace::of(&builder));
        assert!(found.holds, "{:#?}", found.violations);
        assert_eq!(found.unchecked, Vec::<String>::new());
        assert_eq!(found.audits, 1);
    }
    let found = verify(&Trace::of(&cached()));
    assert_eq!(found.totals, 2, "the framework's own totals");
}

#[test]
fn a_free_needs_its_allocation() {
    let mut t = TraceBuilder::new();
    t.alloc(MS, Kind::Device, 16 * PAGE, 3 * MIB);
    t.free(2 * MS, Space::Device, 17 * PAGE);
    let violation = only(&t);
    assert_eq!(violation.rule, Rule::FreeWithoutAllocation);
    assert_eq!(violation.time_ns, 2 * MS);
    assert_eq!(violation.address.unwrap(), 17 * PAGE);
    assert_eq!(
        violation.to_string(),
        "0.002000000 s, device 0x2200000: a free: expected live memory, found none"
    );
    let mut t = TraceBuilder::new();
    t.event(MS, Event::FreeFailed { key: 5, space: Space::Vmm });
    assert_eq!(rules(&t), [Rule::FreeWithoutAllocation]);
}

#[test]
fn memory_is_given_once() {
    let mut t = TraceBuilder::new();
    t.alloc(MS, Kind::Device, 16 * PAGE, 3 * MIB);
    t.alloc(2 * MS, Kind::Device, 16 * PAGE, 3 * MIB);
    assert_eq!(rules(&t), [Rule::AllocatedTwice]);
    let mut t = TraceBuilder::new();
    t.alloc(MS, Kind::Device, 16 * PAGE, 3 * MIB);
    t.alloc(2 * MS, Kind::Managed, 17 * PAGE, MIB);
    let violation = only(&t);
    assert_eq!((violation.rule, violation.address.unwrap()), (Rule::Overlap, 17 * PAGE));
}

#[test]
fn blocks_lie_in_memory_and_not_in_each_other() {
    let mut t = TraceBuilder::new();
    t.alloc(MS, Kind::Device, 16 * PAGE, 20 * MIB);
    t.alloc(2 * MS, Kind::Block, 16 * PAGE, 4 * MIB);
    t.alloc(2 * MS, Kind::Block, 16 * PAGE + 3 * MIB, 4 * MIB);
    assert_eq!(rules(&t), [Rule::Overlap]);
    let mut t = TraceBuilder::new();
    t.alloc(2 * MS, Kind::Block, 16 * PAGE, 4 * MIB);
    assert_eq!(only(&t).rule, Rule::Outside);
    let mut t = TraceBuilder::new();
    t.alloc(MS, Kind::Device, 16 * PAGE, 20 * MIB);
    t.alloc(2 * MS, Kind::Block, 16 * PAGE, 4 * MIB);
    t.free(3 * MS, Space::Device, 16 * PAGE);
    assert_eq!(only(&t).rule, Rule::Outside);
}

#[test]
fn mappings_have_their_object() {
    let mut t = TraceBuilder::new();
    t.mapped(MS, 16 * PAGE, 4 * MIB, 7);
    assert_eq!(rules(&t), []);
    let (address, size, offset, object, stack) = (32 * PAGE, 4 * MIB, 2 * MIB, 7, StackId(0));
    t.event(2 * MS, Event::Map { address, size, offset, object, owner: StackId(0), stack });
    assert_eq!(only(&t).rule, Rule::Outside);
    let mut t = TraceBuilder::new();
    t.map(2 * MS, 16 * PAGE, 4 * MIB, 7);
    assert_eq!(only(&t).rule, Rule::Outside);
}

#[test]
fn ids_are_defined() {
    let mut t = TraceBuilder::new();
    let alloc = t.allocation(Kind::Device, 0, 16 * PAGE, 3 * MIB);
    t.event(MS, Event::Alloc(Alloc { stack: StackId(9), ..alloc }));
    let violation = only(&t);
    assert_eq!((violation.rule, violation.what.as_str()), (Rule::Undefined, "a stack, 9"));
    let mut t = TraceBuilder::new();
    t.event(MS, Event::Alloc(Alloc { site: SiteId(77), ..alloc }));
    assert!(rules(&t).iter().all(|rule| *rule == Rule::Undefined));
    assert!(!rules(&t).is_empty());
    // Where the recorder has no memory for a site it says 0.
    let mut t = TraceBuilder::new();
    t.event(MS, Event::Alloc(Alloc { site: SiteId(0), ..alloc }));
    let found = verify(&Trace::of(&t));
    assert!(found.holds && found.unchecked[0].contains("1 allocation:"), "{:?}", found);
}

#[test]
fn what_the_recorder_noted_is_shown() {
    let mut t = TraceBuilder::new();
    t.event(MS, Event::Drift { what: Drift::Underflow, key: 4096 });
    let violation = only(&t);
    assert_eq!((violation.rule, violation.found.as_str()), (Rule::Recorder, "Underflow"));
}

fn totals(live: u64, allocations: u64) -> Counters {
    Counters {
        live,
        peak: live,
        live_requested: live,
        live_allocations: allocations,
        allocations,
        ..counters(0)
    }
}

#[test]
fn the_recorders_totals_are_those_of_the_events() {
    let mut t = TraceBuilder::new();
    t.alloc(MS, Kind::Device, 16 * PAGE, 4 * MIB);
    t.event(2 * MS, Event::Counters(totals(4 * MIB, 1)));
    assert_eq!(rules(&t), []);
    t.alloc(3 * MS, Kind::Device, 32 * PAGE, 4 * MIB);
    t.event(4 * MS, Event::Counters(totals(4 * MIB, 2)));
    let found = verify(&Trace::of(&t));
    let what: Vec<&str> = found.violations.iter().map(|v| v.what.as_str()).collect();
    let expected = ["live bytes", "requested bytes", "the peak"]
        .map(|what| format!("{what}, as the recorder counted"));
    assert_eq!(what, expected);
    assert_eq!(found.totals, 2);
    assert_eq!(found.violations[0].expected, (4 * MIB).to_string());
    assert_eq!(found.violations[0].found, format!("{} in the events", 8 * MIB));
}

/// One allocation of 4 MiB, and a checkpoint behind it with these entries.
fn checkpointed(entries: &[(u64, u64)]) -> TraceBuilder {
    let mut t = TraceBuilder::new();
    t.context(MS, 0);
    t.alloc(2 * MS, Kind::Device, 16 * PAGE, 4 * MIB);
    let (context, device, stack) = (ContextId(1), DeviceId(0), StackId(0));
    let mut all = vec![listed(MS, Event::ContextCreated { context, device, stack })];
    for (key, size) in entries {
        let alloc = t.allocation(Kind::Device, 0, *key, *size);
        all.push(listed(2 * MS, Event::Alloc(alloc)));
    }
    let site = t.site(Kind::Device, 0);
    all.push(Event::StateTotals { id: 1, site, stack, allocations: 1, frees: 0 });
    all.push(listed(0, Event::Counters(totals(4 * MIB, 1))));
    t.state(3 * MS, Purpose::Checkpoint, &all);
    t
}

#[test]
fn a_checkpoint_is_what_the_events_before_it_left() {
    let found = verify(&Trace::of(&checkpointed(&[(16 * PAGE, 4 * MIB)])));
    assert!(found.holds, "{:#?}", found.violations);
    assert_eq!(found.checkpoints, 1);
    for entries in [&[][..], &[(16 * PAGE, 2 * MIB)], &[(16 * PAGE, 4 * MIB), (32 * PAGE, MIB)]] {
        let rules = rules(&checkpointed(entries));
        assert!(!rules.is_empty() && rules.iter().all(|rule| *rule == Rule::Checkpoint));
    }
}

#[test]
fn missing_events_are_named_and_the_rest_is_checked() {
    let mut t = TraceBuilder::new();
    t.alloc(MS, Kind::Device, 16 * PAGE, 4 * MIB);
    t.lose();
    t.free(3 * MS, Space::Device, 99 * PAGE);
    let found = verify(&Trace::of(&t));
    assert!(found.holds && found.unchecked.len() == 1, "{:?}", found.unchecked);
    assert!(found.unchecked[0].contains("no whole checkpoint"));
    let mut bytes = training().bytes();
    let at = bytes.len() - vramtrace_format::SLOT + 100;
    bytes[at] ^= 0xff;
    let found = verify(&Trace::of_bytes(bytes).unwrap());
    assert!(found.unchecked.iter().any(|line| line.starts_with("damaged in 1 place")));
}

/// No trace makes the replay's own sums wrong: a state that was changed shows that they are compared.
#[test]
fn every_sum_is_compared() {
    let trace = Trace::of(&cached());
    let (definitions, _) = trace.definitions();
    let state = trace.replay_until(&definitions, Until::End, &mut (), &mut |_, _| {}).state;
    let wrong = |change: fn(&mut State)| {
        let (mut found, mut changed) = (Verification::default(), state.clone());
        change(&mut changed);
        audit::check_sums(&Default::default(), &changed, &mut found);
        places::check(&Default::default(), &changed, &mut found);
        found.violated
    };
    fn first(state: &mut State) -> &mut DeviceState {
        state.devices.get_mut(&DeviceId(0)).unwrap()
    }
    assert_eq!(wrong(|_| {}), 0);
    let changes: [fn(&mut State); 9] = [
        |state| first(state).live_bytes += 1,
        |state| first(state).requested_bytes += 1,
        |state| first(state).contexts += 1,
        |state| first(state).kinds[Kind::Device as usize].live_bytes -= 1,
        |state| first(state).cache.allocated += 1,
        |state| first(state).cache.blocks -= 1,
        |state| first(state).cache.reserved += 1,
        |state| first(state).frees += 1,
        |state| state.host_pinned.live_bytes += 1,
    ];
    assert_eq!(changes.map(wrong), [1; 9]);
    // With the frees, which are the difference to all allocations.
    assert_eq!(wrong(|state| first(state).live_allocations += 1), 2);
}

#[test]
fn peaks_that_are_not_the_maximum_and_sums_below_zero() {
    let trace = Trace::of(&cached());
    let (definitions, _) = trace.definitions();
    let mut audit = audit::Audit::new(&definitions);
    let replayed = trace.replay_until(&definitions, Until::End, &mut audit, &mut |_, _| {});
    let mut state = replayed.state;
    let device = state.devices.get_mut(&DeviceId(0)).unwrap();
    device.live_peak_bytes += 1;
    device.underflows += 1;
    let device = device.clone();
    let at = Stamped { offset: 0, time_ns: SECOND, thread: ThreadId(1), event: Event::Ended };
    audit.on_device_change(&at, DeviceId(0), &device);
    let found = audit.finish(&state);
    let rules: Vec<Rule> = found.violations.iter().map(|violation| violation.rule).collect();
    assert_eq!(rules, [Rule::Negative, Rule::Peak]);
}
