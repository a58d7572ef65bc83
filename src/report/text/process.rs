//! The report on one process: per device its peak, live memory and refused requests, and with
//! `--full` the sum up to the figure of nvidia-smi.

use vramtrace_format::physical::MIB;
use vramtrace_format::{DeviceId, Kind};

use super::layout::{
    BAD, BOLD, DIM, PLAIN, Table, WARN, WIDTH, caution, line, paint, paint_if, room, section,
    wrapped,
};
use super::{engine, holders, oom, phases, sleeps, sum, torch};
use crate::analysis::oom::Swallowed;
use crate::analysis::ranks::ProcessEnd;
use crate::analysis::{Level, Moment, Process, VerdictKind};
use crate::replay::{Certainty, DeviceState, RecorderCost};
use crate::report::{WordedVerdict, shell, wording};
use crate::units::{clean, count, limit, seconds, several, shorten, size};

/// What the report on a process contains.
#[derive(Clone, Copy, Debug)]
pub struct ReportOptions {
    /// Maximum number of rows of each table.
    pub top: usize,
    /// All tables; otherwise only what fits one screen.
    pub full: bool,
    /// The moment up to which the trace was replayed.
    pub moment: Moment,
}

/// The whole report on one process.
pub fn details(process: &Process, shown: ReportOptions) -> String {
    let mut out = head(process, shown);
    out.push_str(&oom::fatal(process));
    out.push_str(&leak(process, "", &format!(" {}", shell::path(&process.trace))));
    if let Some(classifier) = process.classifier() {
        let named = |one: &Swallowed| one.named(&classifier, &process.definitions);
        let not_reported = process.swallowed.iter().filter_map(named);
        not_reported.for_each(|one| out.push_str(&oom::swallowed("", &one)));
    }
    warnings(process).iter().for_each(|text| out.push_str(&caution(WARN, text)));
    let mut any = false;
    for (id, device) in process.devices() {
        any = true;
        out.push('\n');
        out.push_str(&device_head(process, id));
        out.push_str(&figures(process, id, device, shown));
        out.push_str(&torch::of_device(process, id, device));
        if shown.full {
            out.push_str(&kinds(device));
            out.push_str(&sum::of_device(process, device, shown.top));
        }
        out.push_str(&holders::of_device(process, id, shown));
        out.extend(engine::setting(process, id).map(|text| line(4, PLAIN, &text)));
        if shown.full {
            out.push_str(&engine::of_device(process, id));
            out.push_str(&sleeps::of_device(process, id, shown));
        }
    }
    if !any {
        out.push_str("\n  no GPU memory was used\n");
    }
    let host = process.state.host_pinned;
    if host.peak_bytes >= wording::MUCH_PINNED {
        let (now, peak) = (size(host.live_bytes), size(host.peak_bytes));
        let pieces = several(host.live_allocations, "allocation");
        let text = format!("pinned on the host: {now} in {pieces}, {peak} at its peak");
        out.push_str(&line(4, PLAIN, &text));
    }
    out + &holders::problems(process)
}

/// The verdict on a process that leaks; empty on others. `name`: before it. `given`: the arguments that name the process in
/// a command, each after a space.
pub(super) fn leak(process: &Process, name: &str, given: &str) -> String {
    let found = WordedVerdict::of(process);
    if found.verdict.kind != VerdictKind::Leak {
        return String::new();
    }
    let title = format!("\n{}  {name}{}\n", paint(BAD, "LEAK"), paint(BOLD, &found.text));
    let line = oom::labelled("line", PLAIN, found.line.as_slice());
    title + &line + &oom::next(found.verdict.next, given)
}

/// Command, process, start, end, trace file and the recorder's own cost.
fn head(process: &Process, shown: ReportOptions) -> String {
    let header = &process.header;
    let command = match header.command.is_empty() {
        true => header.executable.clone(),
        false => header.command.join(" "),
    };
    let mut table = Table::new(2, "ll");
    let mut add = |what: &str, text: String| table.row([what.into(), text]);
    let ran = wording::age(process.ending.last_ns);
    match process.definitions.imported_from() {
        Some(form) => {
            let start = Some(header.start_unix_ns).filter(|start| *start > 0);
            let of = start.map_or(String::new(), |start| format!(" of {}", date(start)));
            let times = match process.definitions.has_times() {
                true => format!("{of}, traced for {ran}"),
                false => ", without times".to_string(),
            };
            add("source", format!("imported from a {}{times}", clean(form)));
        }
        None => {
            let rank = match (header.rank, header.world_size) {
                (Some(rank), Some(world)) => format!(", rank {rank} of {world}"),
                (Some(rank), None) => format!(", rank {rank}"),
                (None, _) => String::new(),
            };
            add("process", format!("pid {} on {}{rank}", header.pid, clean(&header.host)));
            add("started", format!("{}, traced for {ran}", date(header.start_unix_ns)));
            add("ended", ended(process));
        }
    }
    let events = several(process.ending.events, "event");
    let (path, bytes) = (clean(&process.trace.to_string_lossy()), size(process.trace_bytes));
    add("trace", format!("{path} ({events}, {bytes})"));
    if let Some(cost) = process.ending.recorder_cost {
        add("recorder", recorder(&cost, process.ending.last_ns));
    }
    if shown.moment != Moment::End {
        let but = match process.over_time.values().any(|of| !of.reserved.points.is_empty()) {
            false => "",
            true => ", but for the curves: they are of the whole run",
        };
        let at = seconds(process.state.time_ns);
        let moment = format!("{at}: all figures below are of this moment{but}");
        add("shown", paint(WARN, &moment));
    }
    line(0, BOLD, &shorten(clean(&command).trim_end(), WIDTH)) + &table.render()
}

/// The time and the bytes that the recorder itself used.
fn recorder(cost: &RecorderCost, ran_ns: u64) -> String {
    let hooks = match cost.in_calls_ns.unwrap_or(0) {
        0 => "too few calls to time".to_string(),
        ns => {
            let share = ns as f64 * 100.0 / ran_ns.max(1) as f64;
            let of =
                if share < 1000.0 { format!(" ({share:.2} % of the time)") } else { String::new() };
            format!("about {} in calls{of}", seconds(ns))
        }
    };
    format!("{hooks}, {} written, {}", size(cost.written_bytes), several(cost.stacks, "stack"))
}

fn date(unix_ns: u64) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(unix_ns)).unwrap_or_default();
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// How the process ended.
fn ended(process: &Process) -> String {
    let fatal = process.ended_out_of_memory();
    if !fatal.is_empty() {
        let how = if process.ended_in_order() { "" } else { ", and NOT in order" };
        let of_torch = fatal.iter().any(|oom| oom.level == Level::Tensor);
        let what = if of_torch { "torch.OutOfMemoryError" } else { "out of memory" };
        return paint(BAD, &format!("{what}{how}"));
    }
    match process.end() {
        ProcessEnd::InOrder => "in order".into(),
        ProcessEnd::Running => "not yet: it is running; this is how far its trace goes".into(),
        _ => {
            let off = process.ending.off.last().is_some_and(|off| off.until_ns.is_none());
            let so = if off { ", while the recording was off" } else { "; all up to then is here" };
            let left =
                process.ending.exit_status.map(|status| format!("by _exit, with status {status}"));
            let how = left.unwrap_or("in a way that was not recorded".into());
            paint(WARN, &(how + so))
        }
    }
}

/// Gaps in the trace: the figures below them may be incomplete.
fn warnings(process: &Process) -> Vec<String> {
    let state = &process.state;
    let mut lines = Vec::new();
    if let Some(stop) = &process.ending.stopped {
        let (at, reason) = (seconds(stop.time_ns), wording::stop_text(stop));
        lines.push(format!("recording stopped at {at}: {reason}; a cap went on"));
    }
    lines.extend(wording::sampling(state));
    lines.extend(wording::off_lines(&process.ending.off, process.running));
    if state.history_from_ns > 0 && !state.history_after_off {
        let from = seconds(state.history_from_ns);
        lines.push(format!(
            "the file's history begins at {from}: earlier events were erased to bound its size; peaks and totals of the \
             device still count from the start"
        ));
        if let Some(sampled) = process.erased_time() {
            let resolution = wording::resolution(sampled.finest_ns, sampled.coarsest_ns);
            lines.push(format!(
                "samples of the time before (leaks, report --at) have one value for each {resolution}"
            ));
        }
    }
    match state.certainty {
        Certainty::Lost => lines.push(
            "events are missing and no checkpoint follows: what is live here may be wrong".into(),
        ),
        Certainty::Resuming { .. } => lines.push(
            "events are missing and the checkpoint that follows is not whole: more may be live"
                .into(),
        ),
        Certainty::Whole | Certainty::Resumed => {}
    }
    let damage = &process.damage;
    if !damage.ranges.is_empty() {
        lines.push(format!(
            "the file is damaged in {} ({}); all that is whole was read:",
            several(damage.ranges.len() as u64, "place"),
            size(damage.bytes())
        ));
        lines.extend(damage.ranges.iter().take(3).map(|range| format!("  {range}")));
    }
    if damage.unknown > 0 {
        let records = several(damage.unknown, "record");
        lines.push(format!("{records} of a newer version skipped"));
    }
    let odd = &state.inconsistencies;
    let odd = [odd.replaced, odd.unknown_frees, odd.unknown_restores, odd.unknown_sites]
        .into_iter()
        .fold(odd.blocks_without_memory, u64::saturating_add);
    if odd > 0 {
        let events = several(odd, "event");
        lines.push(format!("{events} contradict earlier ones: `vramtrace verify` has them"));
    }
    lines.extend(process.definitions.notes.iter().take(5).map(|note| clean(note)));
    lines
}

fn device_head(process: &Process, id: DeviceId) -> String {
    if id == DeviceId::UNKNOWN {
        return line(0, BOLD, &wording::gpu_name(id));
    }
    let name = wording::device_name(id, &process.definitions);
    let name = paint(BOLD, &format!("GPU {}  {}", id.0, clean(&name)));
    let defined = process.definitions.device(id).map_or(String::new(), |defined| {
        let uuid = paint(DIM, &format!("  {}", defined.uuid_text()));
        format!("  {}{uuid}", size(defined.total_bytes))
    });
    format!("{name}{defined}\n")
}

/// Caps, peak, live bytes, counts of allocations and of refused requests.
fn figures(process: &Process, id: DeviceId, device: &DeviceState, shown: ReportOptions) -> String {
    let mut table = Table::new(4, "lrl");
    let mut add = |what: &str, bytes: String, text: String| table.row([what.into(), bytes, text]);
    let of = &device.peak.in_use;
    let at = match (device.peak.time_ns, device.peak.bytes) {
        (0, 0) => String::new(),
        (time_ns, _) => format!(", at {}", seconds(time_ns)),
    };
    let what = format!("{}{at}", wording::headline_name(of));
    add("peak", paint(BOLD, &size(of.headline())), what);
    if device.peak.bytes > 0 {
        // As `= allocated 11.01 GiB + context 518.00 MiB`.
        let parts = Some(sum::parts(of)).filter(|parts| parts.len() > 1);
        let parts = parts.map(|parts| format!("= {}", sum::on_one_line(parts)));
        for part in
            parts.iter().flat_map(|on_one| wrapped(on_one, room(BEFORE).min(WIDTH - BEFORE)))
        {
            add("", String::new(), paint(DIM, &part));
        }
        if of.managed > 0 && of.in_nvidia_smi().is_some() {
            let what = "besides: nvidia-smi leaves it out, a cap counts it";
            add("  managed", size(of.managed), what.into());
        }
        if let Some((bytes, at_ns)) = highest_reading(device) {
            let what = format!("the highest reading of NVML, at {}", seconds(at_ns));
            add("  highest", size(bytes), what);
        }
    }
    for phase in process.phases_at_peak(id, device) {
        add("  in phase", String::new(), phases::path(&phase));
    }
    if let Some(cap) = device.cap_bytes {
        let counts = match device.cap_only_warns {
            false => format!("{} counted by the cap at the peak", size(of.counted_by_cap())),
            true => "only warns: a request that does not fit is reported, and granted".to_string(),
        };
        add("cap", limit(cap), counts);
    }
    if let Some(cap) = device.group_cap_bytes {
        add("group's cap", limit(cap), "for all its processes together".into());
    }
    if device.cap_only_warns {
        let warned = paint_if(device.warned, WARN, count(device.warned));
        add("would refuse", warned, "requests that passed the cap".into());
    }
    if let Some(soft) = device.soft_limit {
        let times = match device.soft_crossings {
            0 => "never passed".to_string(),
            n => paint(WARN, &format!("passed {}", several(n, "time"))),
        };
        add("soft limit", limit(soft), times);
    }
    let when = match (shown.moment, process.running) {
        (Moment::End, true) => "live now".to_string(),
        (Moment::End, false) => "live at the end".to_string(),
        _ => format!("live at {}", seconds(process.state.time_ns)),
    };
    let live = several(device.live_allocations, "allocation");
    let live = format!("{live}, {} asked for", size(device.requested_bytes));
    add(&when, size(device.live_bytes), live);
    add("allocations", count(device.allocations), several(device.frees, "free"));
    let refused = device.refused();
    let by = match refused {
        0 => String::new(),
        _ => {
            let (cap, driver) = (count(device.refused_by_cap), count(device.refused_by_driver));
            format!("{cap} by the cap, {driver} by the driver")
        }
    };
    add("refused", paint_if(refused, BAD, count(refused)), by);
    table.render()
}

/// The characters of a row before its text.
const BEFORE: usize = 34;

/// NVML's highest reading and its time, if the memory that was recorded was highest at another moment.
fn highest_reading(device: &DeviceState) -> Option<(u64, u64)> {
    /// A lower reading than this above the headline is rounding: nvidia-smi counts whole MiB.
    const NOTICEABLE: u64 = 2 * MIB;
    let noticeable = device.peak.in_use.headline().saturating_add(NOTICEABLE);
    device.highest_reading().filter(|(bytes, _)| *bytes > noticeable)
}

/// One row per kind of allocation that the device has or had.
fn kinds(device: &DeviceState) -> String {
    let titles = ["by kind", "live", "highest", "at peak", "allocations", ""];
    let mut table = Table::titled(4, "lrrrrd", &titles);
    for kind in Kind::ALL {
        let sums = device.kind(kind);
        if sums.allocations == 0 && sums.peak_bytes == 0 {
            continue;
        }
        let at_peak = device.peak.offset.map(|_| size(device.peak.by_kind[kind as usize]));
        let at_peak = at_peak.unwrap_or("-".into());
        let note = match kind {
            Kind::Pool => format!("{} of it in use", size(sums.requested_bytes)),
            Kind::Graph => format!("{} of it in use", size(device.graph_used)),
            Kind::Imported => "another's memory: in no sum".into(),
            Kind::Managed => "nvidia-smi leaves it out".into(),
            _ => String::new(),
        };
        let (live, highest) = (size(sums.live_bytes), size(sums.peak_bytes));
        table.row([kind.name().into(), live, highest, at_peak, count(sums.allocations), note]);
    }
    section(table.render())
}
