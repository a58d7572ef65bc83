//! The report on one process: per device its peak, live memory and refused requests, and with
//! `--full` the sum up to the figure of nvidia-smi.

use vramtrace_format::physical::MIB;
use vramtrace_format::{DeviceId, Kind};

use super::layout::{BAD, BOLD, DIM, PLAIN, Table, WARN, WIDTH, paint};
use super::options::ReportOptions;
use super::{engine, holders, in_use, oom, phases, sleeps, sum, torch};
use crate::analysis::oom::Swallowed;
use crate::analysis::{Level, Moment, Process, largest};
use crate::replay::{Certainty, DeviceState, KindSums, RecorderCost};
use crate::report::wording;
use crate::units::{clean, count, gib, limit, seconds, several, shorten, size};

/// The whole report on one process.
pub fn details(process: &Process, shown: ReportOptions) -> String {
    let mut out = head(process, shown);
    out.push_str(&oom::fatal(process));
    if let Some(classifier) = process.classifier() {
        let named = |one: &Swallowed| one.named(&classifier, &process.definitions);
        let not_reported = process.swallowed.iter().filter_map(named);
        not_reported.for_each(|one| out.push_str(&oom::swallowed("", &one)));
    }
    out.push_str(&warnings(process));
    let mut any = false;
    for (id, device) in process.devices() {
        any = true;
        out.push('\n');
        out.push_str(&device_head(process, id));
        out.push_str(&figures(process, id, device, shown));
        out.push_str(&torch::of_device(process, id, device));
        if !shown.full {
            out.push_str(&holders::in_short(process, id, shown));
            continue;
        }
        out.push_str(&kinds(device));
        out.push_str(&sum::of_device(process, device, shown));
        out.push_str(&refusals(process, id, device, shown.top));
        out.push_str(&largest_live(process, id, device, shown.top));
        out.push_str(&holders::of_device(process, id, shown));
        out.push_str(&engine::of_device(process, id));
        out.push_str(&sleeps::of_device(process, id, shown));
    }
    if !any {
        out.push_str("\n  no GPU memory was used\n");
    }
    if shown.full {
        out.push_str(&host_memory(process));
    }
    out.push_str(&holders::problems(process));
    out
}

/// Command, process, start, end, trace file and the recorder's own cost.
fn head(process: &Process, shown: ReportOptions) -> String {
    let header = &process.header;
    let command = match header.command.is_empty() {
        true => header.executable.clone(),
        false => header.command.join(" "),
    };
    let rank = match (header.rank, header.world_size) {
        (Some(rank), Some(world)) => format!(", rank {rank} of {world}"),
        (Some(rank), None) => format!(", rank {rank}"),
        (None, _) => String::new(),
    };
    let mut out = paint(BOLD, &shorten(&clean(&command), WIDTH));
    out.push('\n');
    let mut table = Table::new(2, "ll");
    match process.definitions.imported_from() {
        Some(form) => table.row(["source".into(), imported(process, &clean(form))]),
        None => {
            let host = clean(&header.host);
            table.row(["process".into(), format!("pid {} on {host}{rank}", header.pid)]);
            let ran = wording::age(process.ending.last_ns);
            let started = format!("{}, traced for {ran}", date(header.start_unix_ns));
            table.row(["started".into(), started]);
            table.styled([("ended".into(), PLAIN), ended(process)]);
        }
    }
    let events = several(process.ending.events, "event");
    let (path, bytes) = (clean(&process.trace.to_string_lossy()), size(process.trace_bytes));
    table.row(["trace".into(), format!("{path} ({events}, {bytes})")]);
    if let Some(cost) = process.ending.recorder_cost {
        table.row(["recorder".into(), recorder(&cost, process.ending.last_ns)]);
    }
    if shown.moment != Moment::End {
        let but = match process.curves.is_empty() {
            true => "",
            false => ", but for the curves: they are of the whole run",
        };
        let at = seconds(process.state.time_ns);
        let moment = format!("{at}: all figures below are of this moment{but}");
        table.styled([("shown".into(), PLAIN), (moment, WARN)]);
    }
    out.push_str(&table.render());
    out
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

fn date(unix_ns: u64) -> impl std::fmt::Display {
    let time = jiff::Timestamp::from_nanosecond(i128::from(unix_ns)).unwrap_or_default();
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// The source of an imported trace. `form`: the format that it was imported from.
fn imported(process: &Process, form: &str) -> String {
    if !process.definitions.has_times() {
        return format!("imported from a {form}, without times");
    }
    let ran = wording::age(process.ending.last_ns);
    match process.header.start_unix_ns {
        0 => format!("imported from a {form}, traced for {ran}"),
        start => format!("imported from a {form} of {}, traced for {ran}", date(start)),
    }
}

/// How the process ended.
fn ended(process: &Process) -> (String, anstyle::Style) {
    let fatal = process.ended_out_of_memory();
    if !fatal.is_empty() {
        let how = if process.ended_in_order() { "" } else { ", and NOT in order" };
        let of_torch = fatal.iter().any(|oom| oom.level == Level::Tensor);
        let what = if of_torch { "torch.OutOfMemoryError" } else { "out of memory" };
        return (format!("{what}{how}"), BAD);
    }
    match (process.ending.ended_ns, process.running) {
        (Some(_), _) => ("in order".into(), PLAIN),
        (None, true) => ("not yet: it is running; this is how far its trace goes".into(), PLAIN),
        (None, false) if process.ending.off.last().is_some_and(|off| off.until_ns.is_none()) => {
            let text =
                "NOT in order: killed, crashed or left by _exit, while the recording was off";
            (text.into(), WARN)
        }
        (None, false) => {
            let text = "NOT in order: killed, crashed or left by _exit; all up to then is here";
            (text.into(), WARN)
        }
    }
}

/// Warnings about gaps in the trace: the figures below them may be incomplete.
fn warnings(process: &Process) -> String {
    let state = &process.state;
    let mut lines = Vec::new();
    if let Some(stop) = &process.ending.stopped {
        let reason = wording::stop_text(stop);
        lines.push(format!("recording stopped at {}: {reason}", seconds(stop.time_ns)));
        lines.push("  what came later is not in the file; a cap went on".into());
    }
    lines.extend(wording::sampling_lines(state));
    lines.extend(wording::off_lines(&process.ending.off, process.running));
    if state.history_from_ns > 0 && !state.history_after_off {
        lines.push(format!(
            "the file's history begins at {}: earlier events were erased to bound its size;",
            seconds(state.history_from_ns)
        ));
        lines.push("  peaks and totals of the device still count from the start".into());
        if let Some(sampled) = process.erased_time() {
            lines.push(format!(
                "  samples of the recorder tell of the time before (leaks, report --at), one value for each {}",
                wording::resolution(sampled.finest_ns, sampled.coarsest_ns)
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
    for (n, what) in [
        (odd.replaced, "allocated again while live"),
        (odd.unknown_frees, "freed though not known"),
        (odd.unknown_restores, "free refused though not known"),
        (odd.unknown_sites, "without a known origin"),
        (odd.blocks_without_memory, "PyTorch's block, live when the memory below it went"),
    ] {
        if n > 0 {
            lines.push(format!("{}: {what}", several(n, "allocation")));
        }
    }
    lines.extend(process.definitions.notes().iter().take(5).map(|note| clean(note)));
    lines.iter().map(|line| format!("  {} {}\n", paint(WARN, "!"), paint(WARN, line))).collect()
}

fn device_head(process: &Process, id: DeviceId) -> String {
    let name = wording::device_name(id, &process.definitions);
    if id == DeviceId::UNKNOWN {
        return format!("{}\n", paint(BOLD, &wording::gpu_name(id)));
    }
    let mut line = paint(BOLD, &format!("GPU {}  {}", id.0, clean(&name)));
    if let Some(defined) = process.definitions.device(id) {
        line.push_str(&format!("  {}", gib(defined.total_bytes)));
        line.push_str(&paint(DIM, &format!("  {}", defined.uuid_text())));
    }
    line.push('\n');
    line
}

/// Caps, peak, live bytes, counts of allocations and of refused requests.
fn figures(process: &Process, id: DeviceId, device: &DeviceState, shown: ReportOptions) -> String {
    let mut table = Table::new(4, "lrl");
    in_use::add_peak(&mut table, device);
    for phase in process.phases_at_peak(id, device) {
        table.row(["  in phase".into(), String::new(), phases::path(&phase)]);
    }
    caps(&mut table, device);
    let when = match (shown.moment, process.running) {
        (Moment::End, true) => "live now".to_string(),
        (Moment::End, false) => "live at the end".to_string(),
        _ => format!("live at {}", seconds(process.state.time_ns)),
    };
    let live = format!(
        "{}, {} asked for",
        several(device.live_allocations, "allocation"),
        gib(device.requested_bytes)
    );
    table.row([when, gib(device.live_bytes), live]);
    let frees = several(device.frees, "free");
    table.row(["allocations".into(), count(device.allocations), frees]);
    let refused = device.refused();
    let by = match refused {
        0 => String::new(),
        _ => format!(
            "{} by the cap, {} by the driver",
            count(device.refused_by_cap),
            count(device.refused_by_driver)
        ),
    };
    let style = if refused > 0 { BAD } else { PLAIN };
    table.styled([("refused".into(), PLAIN), (count(refused), style), (by, PLAIN)]);
    table.render()
}

/// The caps and the soft limit of a device. For a cap that only warns: the number of requests that
/// passed it.
fn caps(table: &mut Table, device: &DeviceState) {
    if let Some(cap) = device.cap_bytes {
        let counts = match device.cap_only_warns {
            false => format!(
                "{} counted by the cap at the peak",
                gib(device.peak.in_use.counted_by_cap())
            ),
            true => "only warns: a request that does not fit is reported, and granted".to_string(),
        };
        table.row(["cap".into(), limit(cap), counts]);
    }
    if let Some(cap) = device.group_cap_bytes {
        table.row(["group's cap".into(), limit(cap), "for all its processes together".into()]);
    }
    if device.cap_only_warns {
        let style = if device.warned > 0 { WARN } else { PLAIN };
        let (name, what) = ("would refuse".into(), "requests that passed the cap".into());
        table.styled([(name, PLAIN), (count(device.warned), style), (what, PLAIN)]);
    }
    if let Some(soft) = device.soft_limit {
        let times = match device.soft_crossings {
            0 => "never passed".to_string(),
            n => format!("passed {}", several(n, "time")),
        };
        let style = if device.soft_crossings > 0 { WARN } else { PLAIN };
        table.styled([("soft limit".into(), PLAIN), (gib(soft), PLAIN), (times, style)]);
    }
}

/// One row per kind of allocation that the device has or had.
fn kinds(device: &DeviceState) -> String {
    let used: Vec<Kind> = Kind::ALL
        .into_iter()
        .filter(|kind| {
            let sums = device.kind(*kind);
            sums.allocations > 0 || sums.peak_bytes > 0
        })
        .collect();
    if used.is_empty() {
        return String::new();
    }
    let mut table = Table::new(4, "lrrrrl");
    table.head(&["by kind", "live", "highest", "at peak", "allocations", ""]);
    for kind in used {
        let sums = device.kind(kind);
        let at_peak = match device.peak.offset {
            Some(_) => gib(device.peak.by_kind[kind as usize]),
            None => "-".into(),
        };
        let note = match kind {
            Kind::Pool => format!("{} of it in use", gib(device.pool_used)),
            Kind::Graph => format!("{} of it in use", gib(device.graph_used)),
            Kind::Imported => "another's memory: in no sum".into(),
            Kind::Managed => "nvidia-smi leaves it out".into(),
            Kind::Device | Kind::Pitched if mostly_unused(sums) => {
                format!("{} asked for, in pages of 2 MiB", gib(sums.requested_bytes))
            }
            _ => String::new(),
        };
        table.styled([
            (kind.name().into(), PLAIN),
            (gib(sums.live_bytes), PLAIN),
            (gib(sums.peak_bytes), PLAIN),
            (at_peak, PLAIN),
            (count(sums.allocations), PLAIN),
            (note, DIM),
        ]);
    }
    format!("\n{}", table.render())
}

/// Whether the pages hold more than 32 MiB, and more than a fifth of their bytes, that no request
/// asked for.
fn mostly_unused(sums: &KindSums) -> bool {
    let gap = sums.live_bytes.saturating_sub(sums.requested_bytes);
    gap > 32 * MIB && gap > sums.live_bytes / 5
}

/// The last refused requests on a device, `top` at most.
fn refusals(process: &Process, id: DeviceId, device: &DeviceState, top: usize) -> String {
    let all = device.refused().saturating_add(device.warned);
    let here = || process.state.last_refusals.iter().filter(|refusal| refusal.device == id);
    let shown = here().count().min(top);
    if shown == 0 {
        return String::new();
    }
    let mut table = Table::new(4, "rrllrrrl");
    let what = match device.refused() {
        0 => "would have been refused",
        _ if device.warned > 0 => "refused, or would have been",
        _ => "refused",
    };
    let which = match shown as u64 == all {
        true => what.to_string(),
        false => format!("the last {shown} {what}"),
    };
    table.head(&[&which, "at", "by", "API", "asked for", "counted", "limit", ""]);
    for refusal in here().skip(here().count() - shown) {
        let refused = &refusal.refused;
        let under = match (refused.limit, refused.driver_free) {
            (0, 0) => String::new(),
            (0, free) => format!("{} free", gib(free)),
            (bytes, _) => limit(bytes),
        };
        let code = match refused.result {
            2 => String::new(),
            code => wording::cuda_result(code),
        };
        table.styled([
            (String::new(), PLAIN),
            (seconds(refusal.time_ns), PLAIN),
            (refused.by.name().into(), BAD),
            (process.definitions.site_api_name(refused.site), PLAIN),
            (size(refused.size), PLAIN),
            (gib(refused.counted), PLAIN),
            (under, PLAIN),
            (code, PLAIN),
        ]);
    }
    format!("\n{}", table.render())
}

/// The largest live allocations on a device, `top` at most.
fn largest_live(process: &Process, id: DeviceId, device: &DeviceState, top: usize) -> String {
    let largest = largest(&process.state, &process.definitions, id, top);
    if largest.is_empty() {
        return String::new();
    }
    let mut table = Table::new(4, "lrllrrl");
    let title = match largest.len() as u64 == device.live_allocations {
        true => "live".to_string(),
        false => "largest live".to_string(),
    };
    table.head(&[&title, "size", "kind", "API", "made at", "age", ""]);
    for live in &largest {
        let place = live.pool.map(|pool| {
            format!("pool {pool}, stream {}", wording::stream(live.stream.unwrap_or(0)))
        });
        table.row([
            live.key.clone(),
            size(live.size_bytes),
            live.kind.into(),
            live.api.clone(),
            seconds(live.allocated_ns),
            wording::age(live.age_ns),
            place.unwrap_or_default(),
        ]);
    }
    let mut out = format!("\n{}", table.render());
    let rest = device.live_allocations.saturating_sub(largest.len() as u64);
    if rest > 0 {
        let bytes = largest.iter().fold(0u64, |sum, live| sum.saturating_add(live.size_bytes));
        let left = size(device.requested_bytes.saturating_sub(bytes));
        out.push_str(&paint(DIM, &format!("    and {} more, {left} together", count(rest))));
        out.push('\n');
    }
    out
}

/// Pinned and registered host memory.
fn host_memory(process: &Process) -> String {
    let state = &process.state;
    let mut table = Table::new(4, "lrl");
    for (name, sums) in [("pinned", &state.host_pinned), ("registered", &state.host_registered)] {
        if sums.allocations > 0 || sums.peak_bytes > 0 {
            let peak = format!("highest {}", gib(sums.peak_bytes));
            table.row([name.into(), format!("{} live", gib(sums.live_bytes)), peak]);
        }
    }
    let lines = table.render();
    match lines.is_empty() {
        true => String::new(),
        false => format!("\n{}\n{lines}", paint(BOLD, "Host memory known to the GPU (no VRAM)")),
    }
}
