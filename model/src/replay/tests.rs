//! The replay against traces built event by event.

use vramtrace_format::physical::{MIB, PAGE};
use vramtrace_format::{
    Alloc, ContextId, Counters, DeviceId, Drift, DriverCause, Event, Kind, PoolId, Purpose,
    RefusedBy, SiteId, Space, StackId, StopReason, Took,
};

use super::*;
use crate::replay::{ReplayResult, Until};
use crate::testing::{MS, SECOND, TraceBuilder, cap_event, listed};
use crate::trace::Trace;

fn read(builder: &TraceBuilder) -> ReplayResult {
    read_bytes(&builder.bytes(), Until::End)
}

fn read_bytes(bytes: &[u8], until: Until) -> ReplayResult {
    let trace = Trace::of_bytes(bytes.to_vec()).unwrap();
    let (definitions, damage) = trace.definitions();
    let mut reading = trace.replay_until(&definitions, until, &mut (), &mut |_, _| {});
    reading.damage.ranges.extend(damage);
    reading
}

fn device(reading: &ReplayResult) -> &DeviceState {
    &reading.state.devices[&DeviceId(0)]
}

fn free_failed(builder: &mut TraceBuilder, time_ns: u64, key: u64) {
    builder.event(time_ns, Event::FreeFailed { key, space: Space::Device });
}

#[test]
fn every_kind_counts_as_the_driver_takes_it() {
    let mut t = TraceBuilder::new();
    t.context(MS, 0);
    t.alloc(2 * MS, Kind::Device, 16 * PAGE, 3 * MIB);
    t.alloc(3 * MS, Kind::Pitched, 32 * PAGE, 2 * MIB);
    t.alloc(4 * MS, Kind::Managed, 48 * PAGE, 1);
    t.alloc(5 * MS, Kind::Vmm, 1, 20 * MIB);
    t.alloc(6 * MS, Kind::Array, 0xa0, 256 * MIB + 5);
    t.alloc(7 * MS, Kind::Mipmapped, 0xa1, 86 * MIB);
    t.alloc(8 * MS, Kind::Imported, 64 * PAGE, 512 * MIB);
    t.alloc(9 * MS, Kind::HostPinned, 0x7000, 64 * MIB);
    t.alloc(9 * MS, Kind::HostRegistered, 0x9000, 5);
    t.alloc(10 * MS, Kind::Pool, 80 * PAGE, 1000);
    t.event(10 * MS, Event::PoolState { pool: PoolId(1), reserved: 32 * MIB, used: 1024 });
    t.event(10 * MS, Event::PoolState { pool: PoolId(2), reserved: 64 * MIB, used: 1024 });
    t.alloc(11 * MS, Kind::Graph, 96 * PAGE, 200 * MIB);
    let (device_id, reserved, used) = (DeviceId(0), 224 * MIB, 200 * MIB);
    t.event(11 * MS, Event::GraphState { device: device_id, reserved, used });
    t.event(12 * MS, Event::Ended);
    let reading = read(&t);
    let d = device(&reading);
    let live = |kind| d.kind(kind).live_bytes;
    assert_eq!(live(Kind::Device), 4 * MIB);
    assert_eq!(live(Kind::Pitched), 2 * MIB);
    assert_eq!(live(Kind::Managed), 2 * MIB);
    assert_eq!(live(Kind::Vmm), 20 * MIB);
    assert_eq!(live(Kind::Array), 256 * MIB + 5);
    assert_eq!(live(Kind::Mipmapped), 86 * MIB);
    assert_eq!(live(Kind::Pool), 32 * MIB, "an imported pool counts in its owner");
    assert_eq!(live(Kind::Graph), 224 * MIB);
    assert_eq!(live(Kind::Imported), 512 * MIB);
    let all = (4 + 2 + 2 + 20 + 256 + 86 + 32 + 224) * MIB + 5;
    assert_eq!(d.live_bytes, all, "imports are in no sum");
    assert_eq!((d.peak.bytes, d.peak.time_ns), (all, 11 * MS));
    assert_eq!(d.live_allocations, 8);
    assert_eq!((d.allocations, d.frees), (8, 0));
    assert_eq!(d.kind(Kind::Imported).allocations, 1);
    assert_eq!((d.pool_used, d.graph_used), (1024, 200 * MIB));
    assert_eq!(reading.state.host_pinned.live_bytes, 64 * MIB);
    assert_eq!(reading.state.host_registered.live_bytes, 5);
    assert_eq!(reading.state.ended_ns, Some(12 * MS));
    assert_eq!(reading.state.inconsistencies, Default::default());
    assert!(reading.damage.ranges.is_empty());
}

#[test]
fn small_allocations_share_pages() {
    let mut t = TraceBuilder::new();
    for n in 0..64 {
        t.alloc(n * MS, Kind::Device, PAGE + n * 512, 513);
    }
    // Lies across two pages; the second holds nothing else.
    t.alloc(100 * MS, Kind::Pitched, 2 * PAGE - 512, 1024);
    let reading = read(&t);
    assert_eq!(device(&reading).live_bytes, 2 * PAGE);
    assert_eq!(device(&reading).kind(Kind::Pitched).live_bytes, PAGE);

    for n in 0..64 {
        t.free((200 + n) * MS, Space::Device, PAGE + n * 512);
    }
    let reading = read(&t);
    assert_eq!(device(&reading).live_bytes, 2 * PAGE, "the one across still holds both");
    t.free(300 * MS, Space::Device, 2 * PAGE - 512);
    let reading = read(&t);
    let d = device(&reading);
    assert_eq!((d.live_bytes, d.underflows, d.live_allocations), (0, 0, 0));
    assert!(d.kinds.iter().all(|sums| sums.live_bytes == 0));
    assert_eq!((d.peak.bytes, d.peak.time_ns), (2 * PAGE, 100 * MS));
}

#[test]
fn a_refused_free_puts_the_allocation_back() {
    let mut t = TraceBuilder::new();
    t.alloc(MS, Kind::Device, 16 * PAGE, 4 * MIB);
    t.free(2 * MS, Space::Device, 16 * PAGE);
    free_failed(&mut t, 3 * MS, 16 * PAGE);
    // Nobody knows this one.
    free_failed(&mut t, 4 * MS, 99 * PAGE);
    let reading = read(&t);
    let d = device(&reading);
    assert_eq!((d.live_bytes, d.live_allocations, d.frees, d.allocations), (4 * MIB, 1, 0, 1));
    let key = Key { space: Space::Device, number: 16 * PAGE };
    assert_eq!(reading.state.live.get(key).unwrap().time_ns, MS);
    assert_eq!(reading.state.inconsistencies.unknown_restores, 1);
}

#[test]
fn the_end_of_a_context_frees_its_own_but_not_pools_graphs_and_vmm() {
    let mut t = TraceBuilder::new();
    t.context(MS, 0);
    t.context(MS, 1);
    t.alloc(2 * MS, Kind::Device, 16 * PAGE, 4 * MIB);
    t.alloc(2 * MS, Kind::Array, 0xa0, 4 * MIB);
    t.alloc(2 * MS, Kind::HostPinned, 0x7000, MIB);
    t.alloc(2 * MS, Kind::Imported, 40 * PAGE, MIB);
    t.alloc(2 * MS, Kind::Vmm, 1, 2 * MIB);
    t.alloc(2 * MS, Kind::Pool, 80 * PAGE, 1000);
    t.alloc(2 * MS, Kind::Graph, 90 * PAGE, 1000);
    t.alloc_on(2 * MS, Kind::Device, 1, 16 * PAGE + (1 << 40), 8 * MIB);
    t.sample(3 * MS, Some(600 * MIB), 500 * MIB);
    t.event(4 * MS, Event::ContextDestroyed { context: ContextId(1) });
    let reading = read(&t);
    let d = device(&reading);
    assert_eq!(d.live_allocations, 3);
    assert_eq!(d.live_bytes, 2 * MIB);
    assert_eq!(d.frees, 2);
    assert_eq!((d.contexts, d.context_bytes), (0, 0));
    assert_eq!(d.kind(Kind::Imported).live_bytes, 0);
    assert_eq!(reading.state.host_pinned.live_bytes, 0);
    assert_eq!(reading.state.host_pinned.peak_bytes, MIB);
    let other = &reading.state.devices[&DeviceId(1)];
    assert_eq!((other.live_bytes, other.contexts), (8 * MIB, 1));
}

#[test]
fn an_import_opened_twice_is_there_until_it_is_closed_twice() {
    let mut t = TraceBuilder::new();
    for _ in 0..2 {
        t.alloc(MS, Kind::Imported, 16 * PAGE, 4 * MIB);
    }
    t.free(2 * MS, Space::Device, 16 * PAGE);
    let reading = read(&t);
    assert_eq!(device(&reading).kind(Kind::Imported).live_bytes, 4 * MIB);
    t.free(3 * MS, Space::Device, 16 * PAGE);
    let reading = read(&t);
    assert_eq!(device(&reading).kind(Kind::Imported).live_bytes, 0);
    assert_eq!(reading.state.inconsistencies.unknown_frees, 0);
    assert_eq!(device(&reading).live_bytes, 0);
}

#[test]
fn an_address_given_out_again_ends_the_earlier_one() {
    let mut t = TraceBuilder::new();
    t.alloc(MS, Kind::Device, 16 * PAGE, 4 * MIB);
    t.alloc(2 * MS, Kind::Device, 16 * PAGE, 8 * MIB);
    t.free(3 * MS, Space::Device, 17 * PAGE);
    t.event(3 * MS, Event::Drift { what: Drift::StillLive, key: 16 * PAGE });
    let reading = read(&t);
    let d = device(&reading);
    assert_eq!((d.live_bytes, d.live_allocations, d.frees), (8 * MIB, 1, 1));
    let odd = reading.state.inconsistencies;
    assert_eq!((odd.replaced, odd.unknown_frees, odd.by_recorder), (1, 1, 1));
}

#[test]
fn one_unmap_covers_several_mappings() {
    let mut t = TraceBuilder::new();
    for n in 0..4 {
        t.map(MS, (16 + n) * PAGE, PAGE, n);
    }
    t.unmap(2 * MS, 17 * PAGE, 2 * PAGE);
    let reading = read(&t);
    let left: Vec<u64> = reading.state.space.mappings().map(|m| m.address / PAGE).collect();
    assert_eq!(left, [16, 19]);
}

#[test]
fn refusals_are_counted_by_who_refused() {
    let mut t = TraceBuilder::new();
    t.event(MS, cap_event(0, 8 << 30));
    t.refused(2 * MS, Kind::Device, 1 << 34, RefusedBy::Cap, 8 << 30);
    t.refused(3 * MS, Kind::Array, 1 << 35, RefusedBy::Driver, 0);
    t.refused(4 * MS, Kind::Array, 1, RefusedBy::BadCap, 0);
    let reading = read(&t);
    let d = device(&reading);
    assert_eq!((d.refused_by_cap, d.refused_by_driver, d.cap_bytes), (2, 1, Some(8 << 30)));
    assert_eq!(reading.state.last_refusals.len(), 3);
    assert_eq!(reading.state.last_refusals[1].kind, Some(Kind::Array));
}

#[test]
fn a_sample_explains_what_nvml_shows() {
    let mut t = TraceBuilder::new();
    t.context(MS, 0);
    t.alloc(2 * MS, Kind::Device, 16 * PAGE, 100 * MIB);
    t.alloc(3 * MS, Kind::Managed, 99 * PAGE, 10 * MIB);
    t.sample(4 * MS, Some(700 * MIB), 520 * MIB);
    // A later look without NVML must not hide it.
    t.sample(5 * MS, None, 520 * MIB);
    t.alloc(6 * MS, Kind::Device, 200 * PAGE, 50 * MIB);
    let reading = read(&t);
    let d = device(&reading);
    assert_eq!(d.sample.unwrap().unattributed(), Some((700 - 100 - 520) * MIB as i64));
    assert_eq!(d.in_use().in_nvidia_smi(), Some(750 * MIB), "carried forward by what came since");
    assert_eq!(d.peak_sample.unwrap().sample.process_bytes, Some(700 * MIB));
}

fn took(cause: DriverCause, delta: i64, name: u32) -> Took {
    let (device, site, stack) = (DeviceId(0), SiteId(0), StackId(0));
    Took { device, cause, delta, site, stack, name }
}

#[test]
fn what_the_driver_took_adds_up_by_cause_and_maker() {
    let mut t = TraceBuilder::new();
    t.context(MS, 0);
    t.event(2 * MS, Event::Took(took(DriverCause::Modules, 6 * MIB as i64, 1)));
    t.event(3 * MS, Event::Took(took(DriverCause::Modules, 2 * MIB as i64, 2)));
    t.event(3 * MS, Event::Took(took(DriverCause::Streams, 2 * MIB as i64, 0)));
    t.event(4 * MS, Event::Took(took(DriverCause::Modules, -(6 * MIB as i64), 1)));
    // More than it ever took, in a damaged file.
    t.event(4 * MS, Event::Took(took(DriverCause::Streams, i64::MIN, 0)));
    t.sample(5 * MS, Some(524 * MIB), 520 * MIB);
    let reading = read(&t);
    let own = &device(&reading).driver_own;
    assert_eq!((own.of(DriverCause::Modules), own.of(DriverCause::Streams)), (2 * MIB, 0));
    let makers: Vec<(u32, u64)> =
        own.makers().iter().map(|(maker, bytes)| (maker.name, *bytes)).collect();
    assert_eq!(makers, [(2, 2 * MIB)]);
    let sum = device(&reading).measured().unwrap();
    let unknown = sum.driver_bytes_by_name()["unknown"];
    assert_eq!((sum.unattributed, unknown), (Some(4 * MIB as i64), 2 * MIB as i64));
    // NVML was read before it took more: in use is at least what has a cause.
    t.event(6 * MS, Event::Took(took(DriverCause::Modules, 92 * MIB as i64, 3)));
    assert_eq!(device(&read(&t)).peak.in_use.headline(), (520 + 2 + 92) * MIB);
    // After it: NVML's figure has it already.
    t.sample(7 * MS, Some(616 * MIB), 520 * MIB);
    t.event(8 * MS, Event::Took(took(DriverCause::Modules, 2 * MIB as i64, 4)));
    assert_eq!(device(&read(&t)).in_use().headline(), 616 * MIB);
}

#[test]
fn a_checkpoint_tells_what_the_driver_holds() {
    let mut t = TraceBuilder::new();
    t.context(MS, 0);
    t.event(2 * MS, Event::Took(took(DriverCause::Modules, 6 * MIB as i64, 1)));
    t.lose();
    t.event(SECOND, Event::StateBegin { id: 1, what: Purpose::Checkpoint, cache_ooms: 0 });
    // Listed by the checkpoint too, which is written after it.
    t.event(SECOND, Event::Took(took(DriverCause::Heap, 10 * MIB as i64, 3)));
    for (cause, mib, stack) in
        [(DriverCause::Modules, 4, 1), (DriverCause::Modules, 2, 2), (DriverCause::Heap, 10, 3)]
    {
        t.event(SECOND, listed(0, Event::Took(took(cause, mib * MIB as i64, stack))));
    }
    t.event(SECOND, Event::Took(took(DriverCause::Modules, -(2 * MIB as i64), 2)));
    t.event(SECOND, Event::StateEnd { id: 1, cut: false });
    let reading = read(&t);
    let own = &device(&reading).driver_own;
    assert_eq!((own.of(DriverCause::Modules), own.of(DriverCause::Heap)), (4 * MIB, 10 * MIB));
    assert_eq!(own.makers().len(), 2);
}

#[test]
fn without_nvml_there_is_no_process_figure() {
    let mut t = TraceBuilder::new();
    t.alloc(2 * MS, Kind::Device, 16 * PAGE, 100 * MIB);
    t.sample(4 * MS, None, 520 * MIB);
    let reading = read(&t);
    assert_eq!(device(&reading).in_use().in_nvidia_smi(), None);
    assert_eq!(device(&reading).context_bytes, 520 * MIB);
}

#[test]
fn an_undefined_site_is_the_unknown_device_never_device_0() {
    let mut t = TraceBuilder::new();
    let known = t.allocation(Kind::Device, 0, 512, 4 * MIB);
    t.event(MS, Event::Alloc(Alloc { site: SiteId(77), ..known }));
    let reading = read(&t);
    assert!(!reading.state.devices.contains_key(&DeviceId(0)));
    assert_eq!(reading.state.devices[&DeviceId::UNKNOWN].live_bytes, 4 * MIB);
    assert_eq!(reading.state.inconsistencies.unknown_sites, 1);
}

/// What a checkpoint says, and what stood in the part of the file that is gone.
fn checkpoint(t: &mut TraceBuilder, begin_ns: u64, totals: Counters) {
    let id = 1;
    let old = t.allocation(Kind::Device, 0, 16 * PAGE, 4 * MIB);
    let gone = t.allocation(Kind::Device, 0, 32 * PAGE, 8 * MIB);
    let late = t.allocation(Kind::Device, 0, 48 * PAGE, 16 * MIB);
    t.event(begin_ns, Event::StateBegin { id, what: Purpose::Checkpoint, cache_ooms: 0 });
    // Freed while the checkpoint is being written: its entry comes first.
    t.event(begin_ns + MS, listed(5 * MS, Event::Alloc(gone)));
    t.free(begin_ns + 2 * MS, Space::Device, 32 * PAGE);
    // Its call returned before the beginning, its record comes after it.
    t.event(begin_ns - 64, Event::Alloc(late));
    t.event(begin_ns + 3 * MS, listed(begin_ns - 64, Event::Alloc(late)));
    t.event(begin_ns + 4 * MS, listed(4 * MS, Event::Alloc(old)));
    let pool = PoolId(1);
    t.event(begin_ns + 4 * MS, Event::PoolState { pool, reserved: 64 * MIB, used: 0 });
    // Counted among the refusals that the checkpoint tells below.
    t.refused(begin_ns + 4 * MS, Kind::Device, 1, RefusedBy::Cap, 1);
    // Older than the state above.
    let state = Event::PoolState { pool, reserved: 32 * MIB, used: 0 };
    t.event(begin_ns + 4 * MS, listed(0, state));
    let (context, device, stack) = (ContextId(1), DeviceId(0), StackId(0));
    t.event(begin_ns, listed(MS, Event::ContextCreated { context, device, stack }));
    let Counters { allocations, frees, .. } = totals;
    let (time_ns, site) = (begin_ns + 5 * MS, old.site);
    t.event(time_ns, Event::StateTotals { id, site, stack, allocations, frees });
    t.event(begin_ns + 5 * MS, listed(0, Event::Counters(totals)));
    t.event(begin_ns + 6 * MS, Event::StateEnd { id, cut: false });
}

fn totals() -> Counters {
    Counters {
        live: 28 * MIB,
        peak: 999 * MIB,
        peak_time_ns: 77 * MS,
        live_requested: 28 * MIB,
        live_allocations: 3,
        allocations: 1000,
        frees: 997,
        refused_by_cap: 5,
        refused_by_driver: 2,
        ..Counters::default()
    }
}

#[test]
fn a_trace_whose_beginning_is_gone_starts_at_its_checkpoint() {
    let mut t = TraceBuilder::new();
    t.lose();
    // What stands before the checkpoint refers to what is gone.
    t.free(9 * SECOND, Space::Device, 77 * PAGE);
    t.alloc(9 * SECOND, Kind::Device, 16 * PAGE, 4 * MIB);
    checkpoint(&mut t, 10 * SECOND, totals());
    t.alloc(11 * SECOND, Kind::Device, 64 * PAGE, 2 * MIB);
    t.free(12 * SECOND, Space::Device, 16 * PAGE);
    t.refused(13 * SECOND, Kind::Device, 1, RefusedBy::Cap, 1);
    let reading = read(&t);
    let state = &reading.state;
    let d = device(&reading);
    assert_eq!(state.certainty, Certainty::Resumed);
    assert_eq!(state.history_from_ns, 10 * SECOND);
    assert_eq!(d.live_bytes, (16 + 64 + 2) * MIB);
    assert_eq!(d.live_allocations, 2);
    assert_eq!((d.allocations, d.frees), (1001, 999), "the late one is counted once");
    assert_eq!(d.kind(Kind::Device).allocations, 1001);
    assert_eq!((d.refused_by_cap, d.refused_by_driver), (6, 2));
    assert_eq!((d.peak.bytes, d.peak.time_ns, d.peak.offset), (999 * MIB, 77 * MS, None));
    assert_eq!(state.inconsistencies, Default::default());
    assert_eq!(d.contexts, 1);
}

#[test]
fn a_whole_history_needs_no_checkpoint() {
    let mut t = TraceBuilder::new();
    t.alloc(4 * MS, Kind::Device, 16 * PAGE, 4 * MIB);
    t.alloc(5 * MS, Kind::Device, 32 * PAGE, 8 * MIB);
    checkpoint(&mut t, 10 * SECOND, totals());
    let reading = read(&t);
    let d = device(&reading);
    assert_eq!(reading.state.certainty, Certainty::Whole);
    assert_eq!(d.live_bytes, (4 + 16 + 64) * MIB);
    assert_eq!((d.allocations, d.frees, d.live_allocations), (3, 1, 2));
    assert_eq!(reading.state.inconsistencies, Default::default());
}

#[test]
fn a_gap_in_the_middle_keeps_the_peak_before_it() {
    let mut t = TraceBuilder::new();
    t.alloc(MS, Kind::Device, 160 * PAGE, 2000 * MIB);
    t.lose();
    t.alloc(9 * SECOND, Kind::Device, 9000 * PAGE, 4000 * MIB);
    checkpoint(&mut t, 10 * SECOND, Counters { peak: 1000 * MIB, ..totals() });
    let reading = read(&t);
    let d = device(&reading);
    assert_eq!(d.peak.bytes, 2000 * MIB, "what a lost history adds up to is no peak");
    assert_eq!(d.peak.time_ns, MS);
    assert_eq!(d.live_bytes, (4 + 16 + 64) * MIB);
    assert_eq!(reading.state.history_from_ns, 10 * SECOND);
}

#[test]
fn without_a_whole_checkpoint_the_last_totals_count() {
    let mut t = TraceBuilder::new();
    t.lose();
    t.alloc(9 * SECOND, Kind::Device, 16 * PAGE, 4 * MIB);
    t.event(10 * SECOND, Event::Counters(totals()));
    let reading = read(&t);
    let d = device(&reading);
    assert_eq!(reading.state.certainty, Certainty::Lost);
    assert!(!reading.state.live_is_known());
    assert_eq!((d.allocations, d.frees, d.peak.bytes), (1000, 997, 999 * MIB));
    assert_eq!(d.live_bytes, 4 * MIB);
}

#[test]
fn a_recorder_that_cannot_punch_goes_on_with_checkpoints() {
    let mut t = TraceBuilder::new();
    t.alloc(4 * MS, Kind::Device, 9999 * PAGE, 64 * MIB);
    t.event(5 * MS, Event::Stopped { reason: StopReason::CannotPunch, errno: 95 });
    checkpoint(&mut t, 10 * SECOND, Counters { allocations: 7, ..totals() });
    let last = t.allocation(Kind::Device, 0, 700 * PAGE, 32 * MIB);
    let entries = [listed(15 * SECOND, Event::Alloc(last)), listed(0, Event::Counters(totals()))];
    t.state(20 * SECOND, Purpose::Checkpoint, &entries);
    let reading = read(&t);
    let d = device(&reading);
    assert_eq!((d.live_bytes, d.allocations), (32 * MIB, 1000));
    assert_eq!(reading.state.stopped.unwrap().errno, 95);
}

#[test]
fn the_state_at_any_moment() {
    let mut t = TraceBuilder::new();
    for n in 0..10 {
        t.alloc(n * SECOND, Kind::Device, (16 + n) * PAGE, PAGE);
    }
    for n in 0..10 {
        t.free((10 + n) * SECOND, Space::Device, (16 + n) * PAGE);
    }
    let bytes = t.bytes();
    let live = |until| {
        let reading = read_bytes(&bytes, until);
        reading.state.devices.get(&DeviceId(0)).map_or(0, |d| d.live_bytes / PAGE)
    };
    assert_eq!(live(Until::Time(0)), 1);
    assert_eq!(live(Until::Time(9 * SECOND)), 10);
    assert_eq!(live(Until::Time(14 * SECOND)), 5);
    assert_eq!(live(Until::End), 0);
    let peak = device(&read_bytes(&bytes, Until::End)).peak;
    assert_eq!(peak.bytes, 10 * PAGE);
    assert_eq!(live(Until::Offset(peak.offset.unwrap())), 10);
}

#[test]
fn every_cut_and_many_flips_are_read_without_a_panic() {
    let mut t = TraceBuilder::new();
    t.context(MS, 0);
    for n in 0..200 {
        t.alloc(n * MS, Kind::Device, (16 + n) * PAGE, n * 1000 + 1);
        t.free(n * MS, Space::Device, (16 + n / 2) * PAGE);
    }
    checkpoint(&mut t, SECOND, totals());
    let whole = t.bytes();
    let events = read_bytes(&whole, Until::End).state.events;
    let mut state = 12345u64;
    let mut random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize
    };
    for _ in 0..60 {
        let cut = 4096 + random() % (whole.len() - 4096);
        assert!(read_bytes(&whole[..cut], Until::End).state.events <= events);
        let mut flipped = whole.clone();
        // In the records of the event window.
        let at = 4096 + 262_144 + 64 + random() % 6_000;
        flipped[at] ^= 1 << (random() % 8);
        let reading = read_bytes(&flipped, Until::End);
        assert!(reading.state.events <= events);
        assert!(!reading.damage.ranges.is_empty(), "a flip at {at} is reported");
    }
}

#[test]
fn where_events_are_missing_nothing_is_called_wrong() {
    let mut t = TraceBuilder::new();
    for n in 1..16 {
        t.alloc(MS, Kind::Device, n * 16 * PAGE, MIB);
        t.alloc(MS, Kind::Block, n * 16 * PAGE, MIB);
    }
    // Their frees are missing.
    t.lose();
    for n in 1..16 {
        t.alloc(2 * MS, Kind::Device, n * 16 * PAGE, MIB);
        t.alloc(2 * MS, Kind::Block, n * 16 * PAGE, MIB);
        t.free(3 * MS, Space::Device, n * 16 * PAGE);
    }
    let reading = read(&t);
    assert_eq!(reading.state.certainty, Certainty::Lost);
    assert_eq!(reading.state.inconsistencies, Default::default());
    assert_eq!(reading.state.known_until_ns, Some(MS));
}

#[test]
fn a_record_that_is_broken_takes_the_certainty_away_until_a_checkpoint() {
    let mut t = TraceBuilder::new();
    for n in 1..40 {
        t.alloc(n * MS, Kind::Device, n * 16 * PAGE, MIB);
    }
    let mut bytes = t.bytes();
    let offset = |bytes: &[u8], n: usize| {
        vramtrace_format::TraceReader::new(bytes).unwrap().events().nth(n).unwrap().offset as usize
    };
    let (middle, last) = (offset(&bytes, 20), offset(&bytes, 38));
    bytes[middle + 9] ^= 0x55;
    assert_eq!(read_bytes(&bytes, Until::End).state.certainty, Certainty::Lost);
    assert_eq!(read_bytes(&bytes, Until::Time(10 * MS)).state.certainty, Certainty::Whole);
    bytes[middle + 9] ^= 0x55;
    bytes[last + 9] ^= 0x55;
    assert_eq!(read_bytes(&bytes, Until::End).state.certainty, Certainty::Lost);
}
