//! The text of a report against golden files, and its JSON key by key.

use std::path::Path;

use serde_json::{Value, json};
use vramtrace_format::physical::{GIB, MIB, PAGE};
use vramtrace_format::{
    Definition, DeviceId, Event, Kind, PoolId, Purpose, RefusedBy, Space, StopReason,
};

use super::html;
use super::json::process as json;
use super::text::layout::WIDTH;
use super::text::{ReportOptions, details, overview};
use crate::analysis::oom;
use crate::analysis::ranks::{self, ProcessFigures};
use crate::analysis::whatif::Recorded;
use crate::analysis::{Collect, Level, Moment, Process, RolesOf, Wanted, read_all};
use crate::testing::{MS, SECOND, TraceBuilder, cached, cap_event, listed};
use crate::trace::open;

fn written(builder: &TraceBuilder) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    builder.write(file.path());
    file
}

fn process(builder: &TraceBuilder) -> Process {
    process_at(builder, Moment::End)
}

fn process_at(builder: &TraceBuilder, moment: Moment) -> Process {
    let file = written(builder);
    let trace = open(file.path()).unwrap();
    let process = Process::read(&trace, moment);
    Process { trace: Path::new("run/vramtrace.node7.4711.vtrace").into(), ..process }
}

fn rank_of(builder: &TraceBuilder) -> ProcessFigures {
    let file = written(builder);
    let rank = ranks::read(&[open(file.path()).unwrap()], &|_, _| {}).remove(0);
    ProcessFigures { trace: Path::new("run/vramtrace.node7.4711.vtrace").into(), ..rank }
}

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

fn shown(process: &Process) -> String {
    plain(&details(process, ReportOptions { top: 3, full: true, moment: Moment::End }))
}

/// A run with allocations of several kinds, a cap, refusals, a free and samples of NVML.
fn training() -> TraceBuilder {
    let mut t = TraceBuilder::new();
    t.event(MS, cap_event(0, 8 * GIB));
    t.context(MS, 0);
    t.sample(2 * MS, Some(518 * MIB), 518 * MIB);
    t.alloc(SECOND, Kind::Device, 1 << 40, 4 * GIB);
    t.alloc(2 * SECOND, Kind::Device, 2 << 40, GIB);
    for n in 0..5 {
        t.alloc(3 * SECOND, Kind::Device, (3 << 40) + n * 512, 100);
    }
    t.alloc(4 * SECOND, Kind::Pool, 4 << 40, 20 * MIB);
    t.event(4 * SECOND, Event::PoolState { pool: PoolId(1), reserved: 32 * MIB, used: 20 * MIB });
    t.alloc(5 * SECOND, Kind::Managed, 5 << 40, 256 * MIB);
    t.alloc(5 * SECOND, Kind::Imported, 6 << 40, 512 * MIB);
    t.alloc(5 * SECOND, Kind::HostPinned, 0x7f00, 64 * MIB);
    t.refused(6 * SECOND, Kind::Device, 4 * GIB, RefusedBy::Cap, 8 * GIB);
    t.refused(7 * SECOND, Kind::Array, 64 * GIB, RefusedBy::Driver, 0);
    t.free(8 * SECOND, Space::Device, 2 << 40);
    t.sample(9 * SECOND, Some(4800 * MIB), 518 * MIB);
    t.event(10 * SECOND, Event::Ended);
    t
}

/// Compares text with `tests/data/report/NAME.txt`. `BLESS=1 cargo test` writes the file.
fn expect(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/report/{name}.txt"));
    for line in text.lines() {
        assert!(line.chars().count() <= WIDTH, "wider than {WIDTH} columns: {line}\n{text}");
        assert_eq!(line, line.trim_end(), "trailing spaces");
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{}: BLESS=1 writes it anew\n{text}", path.display());
}

#[test]
fn a_process_in_full() {
    expect("process", &shown(&process(&training())));
}

#[test]
fn the_moment_of_the_peak() {
    let process = process_at(&training(), Moment::Peak);
    let text =
        plain(&details(&process, ReportOptions { top: 3, full: true, moment: Moment::Peak }));
    expect("peak", &text);
}

#[test]
fn a_process_that_took_nothing() {
    expect("nothing", &shown(&process(&TraceBuilder::new())));
}

#[test]
fn everything_that_limits_the_figures_is_printed() {
    let mut t = TraceBuilder::new();
    t.header.command = vec!["sh".into(), "-c".into(), "evil \u{1b}[31m\n".into()];
    t.lose();
    t.alloc(8 * SECOND, Kind::Device, 99 * PAGE, MIB);
    let alloc = t.allocation(Kind::Vmm, 0, 7, 30 * MIB);
    let totals = vramtrace_format::Counters {
        peak: GIB,
        peak_time_ns: 2 * SECOND,
        allocations: 12_345,
        frees: 12_344,
        ..crate::testing::counters(0)
    };
    let entries = [listed(3 * SECOND, Event::Alloc(alloc)), listed(0, Event::Counters(totals))];
    t.state(9 * SECOND, Purpose::Checkpoint, &entries);
    t.alloc_on(10 * SECOND, Kind::Array, 1, 0xa0, 3 * GIB / 2);
    t.free(11 * SECOND, Space::Device, 512);
    t.event(12 * SECOND, Event::Stopped { reason: StopReason::DiskFull, errno: 28 });
    t.define(Definition::Note { text: "VRAMTRACE_CPA: unknown".into() });
    let mut process = process(&t);
    process.damage.ranges.push(vramtrace_format::Damage {
        offset: 70_000,
        bytes: 48,
        kind: vramtrace_format::DamageKind::Record,
    });
    expect("limits", &shown(&process));
}

#[test]
fn processes_on_several_devices_and_hosts_or_on_none() {
    let mut two = TraceBuilder::new();
    two.alloc(SECOND, Kind::Device, 16 * PAGE, GIB);
    two.alloc_on(SECOND, Kind::Device, 1, 1 << 40, 2 * GIB);
    let mut none = TraceBuilder::new();
    none.header.pid = 1;
    none.header.host = "node8".into();
    none.event(SECOND, Event::Ended);
    // Its first card is the second of the others.
    let mut other = TraceBuilder::new().rank(2, 3);
    let (id, uuid, name) = (DeviceId(0), [0x11; 16], "NVIDIA H200".into());
    other.define(Definition::Device { id, uuid, name, total_bytes: 24 * GIB, mig: false });
    other.alloc(SECOND, Kind::Device, 16 * PAGE, GIB);
    let processes = [rank_of(&two), rank_of(&none), rank_of(&other)];
    expect("devices", &plain(&overview(&processes, None, " run/", 5)));
}

/// The report of one process as JSON, from there on.
fn json_of(process: Process) -> Value {
    serde_json::to_value(json::report(&[process], 2)).unwrap()["processes"][0].take()
}

/// The values at these places, as in `devices/0/name`.
#[track_caller]
fn has(value: &Value, expected: &[(&str, Value)]) {
    for (place, expected) in expected {
        assert_eq!(value.pointer(&format!("/{place}")), Some(expected), "{place}");
    }
}

/// The outputs that are kept of recorded traces have the other keys.
#[test]
fn json_adds_up_to_what_nvml_shows() {
    let process = json_of(process(&training()));
    let expected = [
        ("rank", Value::Null),
        ("stopped", Value::Null),
        ("started_unix_s", json!(1767225600.0)),
        ("host_pinned/live_bytes", json!(64 * MIB)),
        ("host_pinned/peak_bytes", json!(64 * MIB)),
        ("devices/0/live_bytes", json!(4 * GIB + PAGE + (32 + 256) * MIB)),
        ("devices/0/process_bytes", json!(4800 * MIB)),
        ("devices/0/by_kind/imported/live_bytes", json!(512 * MIB)),
    ];
    has(&process, &expected);
    let device = &process["devices"][0];
    let figure = |key: &str| device[key].as_u64().unwrap();
    let sum = figure("live_bytes") - device["by_kind"]["managed"]["live_bytes"].as_u64().unwrap()
        + figure("context_bytes")
        + figure("unattributed_bytes");
    assert_eq!(sum, figure("process_bytes"));
}

#[test]
fn json_says_null_not_zero_without_nvml() {
    let mut t = TraceBuilder::new();
    t.lose();
    t.context(MS, 0);
    t.alloc(SECOND, Kind::Device, 16 * PAGE, GIB);
    t.sample(2 * SECOND, None, 518 * MIB);
    t.event(3 * SECOND, Event::Stopped { reason: StopReason::FileSizeLimit, errno: 0 });
    let process = json_of(process(&t));
    let expected = [
        ("devices/0/process_bytes", Value::Null),
        ("devices/0/peak_process_bytes", Value::Null),
        ("devices/0/unattributed_bytes", Value::Null),
        ("devices/0/cap_bytes", Value::Null),
        ("devices/0/context_bytes", json!(518 * MIB)),
        ("ended_in_order", json!(false)),
        ("stopped/at_s", json!(3.0)),
        ("live_is_known", json!(false)),
    ];
    has(&process, &expected);
    assert!(process["stopped"]["reason"].as_str().unwrap().contains("size limit"));
}

#[test]
fn when_the_contexts_are_gone_the_last_look_is_shown() {
    let mut t = training();
    t.event(11 * SECOND, Event::ContextDestroyed { context: vramtrace_format::ContextId(1) });
    let process = process(&t);
    let text = shown(&process);
    assert!(text.contains("shows (at 9.000 s: the contexts ended since)"), "{text}");
    assert!(text.contains("4.69 GiB  this process"), "{text}");
    assert_eq!(json_of(process)["devices"][0]["process_bytes"], 4800 * MIB);
}

/// A run of PyTorch that ends out of memory, with post-mortem and holders.
fn torch() -> Process {
    let file = written(&cached());
    let trace = open(file.path()).unwrap();
    let mut process = Process::read(&trace, Moment::End);
    process.look_closer(&trace, Wanted::ALL);
    Process { trace: Path::new("run/vramtrace.node7.4711.vtrace").into(), ..process }
}

/// The replays of a what-if are its own: of one out-of-memory, and of a whole trace.
fn decodes_of_whatif(path: &Path) -> (u32, u32) {
    let trace = open(path).unwrap();
    let definitions = trace.definitions().0;
    let ended = oom::ended(&oom::list(&trace, &definitions).0.ooms);
    let mut examined = oom::PostMortems::new(&definitions, ended);
    trace.visit(&definitions, &mut [&mut examined]);
    let mut post_mortems = examined.finish();
    let before = trace.decodes();
    post_mortems.iter_mut().for_each(|one| one.find_remedy(&trace, &definitions));
    let remedy = trace.decodes() - before;
    Recorded::of(&trace, &definitions);
    (remedy, trace.decodes() - before - remedy)
}

#[test]
fn a_report_decodes_a_trace_twice() {
    let file = written(&cached());
    let (remedy, whatif) = decodes_of_whatif(file.path());
    assert!(remedy > 0 && whatif > 0);
    let decodes = |moment, collect, wanted| {
        let traces = [open(file.path()).unwrap()];
        let mut processes = read_all(&traces, moment, collect, &|_, _| {});
        processes[0].look_closer(&traces[0], wanted);
        assert_eq!(processes[0].failures.len(), usize::from(wanted.fatal));
        assert!(processes[0].who.as_ref().unwrap().peak_roles.is_some());
        traces[0].decodes() - if wanted.fatal { remedy } else { 0 }
    };
    let collect = Collect { roles: Some(RolesOf::Blocks), leaks: true, ..Collect::default() };
    assert_eq!(decodes(Moment::End, collect, Wanted::ALL), 2);
    // The state at another moment takes a pass of its own.
    let holders = Wanted { holders: true, ..Wanted::default() };
    assert_eq!(decodes(Moment::Peak, collect, holders), 3);
    assert_eq!(decodes(Moment::End, Collect::default(), holders), 3, "roles were not collected");

    let traces = vec![open(file.path()).unwrap()];
    let processes = read_all(&traces, Moment::End, html::COLLECT, &|_, _| {});
    let names = vec!["a.vtrace".to_string()];
    let mut run = html::PageRun { label: "a".into(), names, processes, traces };
    html::write(&mut run, &mut Vec::new()).unwrap();
    assert_eq!(run.traces[0].decodes(), 2 + remedy);
}

/// `holders`, `diff` and `holders --by role`.
#[test]
fn what_is_held_at_a_moment_takes_two_decodes() {
    let file = written(&cached());
    let decodes = |moment: Moment, collected, wants_roles| {
        let traces = [open(file.path()).unwrap()];
        let read = if moment.is_peak() { Moment::End } else { moment };
        let collect = Collect { roles: collected, ..Collect::default() };
        let process = &read_all(&traces, read, collect, &|_, _| {})[0];
        let (held, roles) = process.held_at(&traces[0], moment, Level::Tensor, wants_roles);
        assert!(!held.held.is_empty());
        assert_eq!(roles.is_some_and(|roles| !roles.held.is_empty()), wants_roles);
        traces[0].decodes()
    };
    let peaks = [Moment::Peak, Moment::AllocatedPeak];
    for collected in [RolesOf::Blocks, RolesOf::All] {
        assert_eq!(peaks.map(|moment| decodes(moment, Some(collected), true)), [2, 2]);
        assert_eq!(decodes(Moment::End, Some(collected), true), 2);
        // The state at another moment takes a pass of its own.
        assert_eq!(decodes(Moment::At(SECOND), Some(collected), true), 3);
    }
    assert_eq!(peaks.map(|moment| decodes(moment, None, false)), [2, 2]);
    assert_eq!(decodes(Moment::End, None, false), 1);
}

#[test]
fn a_run_that_ended_out_of_memory_says_why_and_what_helps() {
    let text = shown(&torch());
    // The last lines report that its libraries do not exist on this machine.
    let (text, _) = text.split_once("\n  ! /usr/lib/libcuda").unwrap();
    expect("torch", text);
}

/// With more events the first pass keeps points, from which the peaks are read again.
#[test]
fn a_long_trace_is_decoded_once() {
    const EVENTS: u64 = 100_000;
    let mut t = TraceBuilder::new();
    t.module("/opt/libc10_cuda.so", 0x2000_0000);
    t.code(1, "main", "/home/me/train.py", 3);
    t.stack(1, &[], &[1], &[]);
    t.alloc(0, Kind::Device, 1 << 40, 64 * MIB);
    for n in 1..EVENTS / 2 {
        let key = (1 << 40) + n % 32 * MIB;
        t.alloc_by(n * 2_000, Kind::Block, key, MIB, 1);
        if n == 3 * EVENTS / 8 {
            t.alloc(n * 2_000, Kind::Device, 1 << 41, 16 * MIB);
        }
        t.free(n * 2_000 + 1_000, Space::Block, key);
    }
    let file = written(&t);
    let wanted = Wanted::ALL;
    let held = |points| {
        let collect = Collect { roles: Some(RolesOf::Blocks), points, ..Collect::default() };
        let traces = [open(file.path()).unwrap()];
        let mut processes = read_all(&traces, Moment::End, collect, &|_, _| {});
        processes[0].look_closer(&traces[0], wanted);
        let who = processes[0].who.take().unwrap();
        assert_eq!(who.peak.at_ns[&DeviceId(0)], (3 * EVENTS / 8) * 2_000);
        (traces[0].decodes(), who.peak, who.peak_roles)
    };
    let (with, without) = (held(true), held(false));
    assert_eq!((with.0, without.0), (1, 2));
    assert_eq!((with.1, with.2), (without.1, without.2));
}
