//! `vramtrace ps`: the recorded processes that run now, what they hold of each device, and their groups.

use vramtrace_format::LiveSite;
use vramtrace_format::live::LiveState;
use vramtrace_format::uuid;
use vramtrace_reader::facts;
use vramtrace_reader::report::json::ps::{
    GroupDeviceFacts, GroupFacts, LiveDeviceFacts, LiveProcessFacts, PsReport, SCHEMA, SiteFacts,
};
use vramtrace_reader::report::text::layout::{BAD, Table, paint_if};
use vramtrace_reader::units::{clean, count, limit, shorten, size};

use super::reading::show;
use crate::console::message;
use crate::error::Outcome;
use crate::live_processes;
use crate::live_processes::group::{self, Group};
use crate::live_processes::process::{self, LiveProcess};

#[derive(clap::Args)]
#[command(
    long_about = "List your running processes that are recorded or capped, with what they hold of \
        each device, and the groups that share a cap.\n\n\
        Figures are at most a millisecond older than a process's last CUDA call. Where more is \
        in use than a cap allows, the bytes that must be freed first stand beside the cap.",
    after_help = "Examples:\n  vramtrace ps\n  vramtrace ps --json | jq '.processes[].pid'"
)]
pub struct Args {
    /// As JSON, schema vramtrace.ps/2
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    let (processes, problems) = process::all();
    let groups = group::all();
    live_processes::lines(&problems).iter().for_each(message);
    let report = PsReport {
        processes: processes.iter().map(process_facts).collect(),
        groups: groups.iter().map(group_facts).collect(),
    };
    show([], args.json, SCHEMA, || &report, || text(&report))
}

/// Bytes in use above the cap; 0 without a cap.
fn over_cap(counted: u64, cap: Option<u64>) -> u64 {
    cap.map_or(0, |cap| counted.saturating_sub(cap))
}

fn process_facts(process: &LiveProcess) -> LiveProcessFacts {
    let devices = process.devices.iter().map(|device| LiveDeviceFacts {
        device: (device.ordinal != u8::MAX).then_some(device.ordinal),
        uuid: uuid::text(&device.uuid, false),
        live_bytes: device.live,
        peak_bytes: device.peak,
        counted_bytes: device.counted,
        cap_bytes: device.cap,
        must_go_bytes: over_cap(device.counted, device.cap.filter(|_| !device.only_warns)),
        cap_mode: if device.only_warns { "warn" } else { "refuse" },
        total_bytes: device.total_bytes,
        live_allocations: device.live_allocations,
        allocations: device.allocations,
        refused_by_cap: device.refused_by_cap,
        refused_by_driver: device.refused_by_driver,
        would_have_refused: device.warned,
        free_cache_bytes: device.free_cache,
        resident_bytes: device.resident,
        paused_bytes: device.paused,
    });
    LiveProcessFacts {
        pid: process.pid,
        is_recorded: matches!(process.state, LiveState::Loaded | LiveState::Recording),
        command: process.command(),
        recording_off_by: process.off_by.iter().map(|by| facts::name_of_switch(*by)).collect(),
        trace: (!process.trace.is_empty()).then(|| process.trace.clone()),
        group: process.group.clone(),
        updated_at_s: process.updated_ns as f64 / 1e9,
        devices: devices.collect(),
        sites: process.sites.iter().map(site_facts).collect(),
    }
}

fn site_facts(site: &LiveSite) -> SiteFacts {
    SiteFacts {
        device: (site.ordinal != u8::MAX).then_some(site.ordinal),
        bytes: site.bytes,
        count: site.count,
        library: (!site.library.is_empty()).then(|| clean(&site.library)),
        level: if site.of_framework { "tensor" } else { "driver" },
        stack: site.stack.0,
    }
}

fn group_facts(group: &Group) -> GroupFacts {
    let devices = group.devices.iter().map(|(_, device)| GroupDeviceFacts {
        uuid: uuid::text(&device.uuid, false),
        cap_bytes: device.limit,
        must_go_bytes: over_cap(device.counted, device.limit),
        counted_bytes: device.counted,
        total_bytes: device.total_bytes,
    });
    GroupFacts { name: group.name.clone(), pids: group.members.clone(), devices: devices.collect() }
}

/// The cap, and the bytes that must be freed before a new request is granted.
fn cap_text(cap: Option<u64>, must_go: u64) -> String {
    match (cap, must_go) {
        (None, _) => "-".into(),
        (Some(cap), 0) => limit(cap),
        (Some(cap), over) => format!("{}, {} must go", limit(cap), size(over)),
    }
}

fn text(report: &PsReport) -> String {
    if report.processes.is_empty() {
        return "no recorded process of this user is running\n".into();
    }
    let titles = ["pid", "device", "live", "peak", "counted", "cap", "refused", "command"];
    let mut table = Table::titled(0, "rlrrrrrl", &titles);
    for process in &report.processes {
        let note = match (process.recording_off_by.is_empty(), process.is_recorded) {
            (false, _) => " (recording off)",
            (true, true) => "",
            (true, false) => " (not recorded)",
        };
        let group = process.group.as_ref().map(|name| format!(" [{}]", clean(name)));
        let command = shorten(&clean(&process.command), 50);
        // Of the first device's row.
        let mut command = format!("{command}{}{note}", group.unwrap_or_default());
        let mut pid = process.pid.to_string();
        if process.devices.is_empty() {
            let dash = || String::from("-");
            table.row([pid, dash(), dash(), dash(), dash(), dash(), dash(), command]);
            continue;
        }
        for device in &process.devices {
            let refused = device.refused_by_cap.saturating_add(device.refused_by_driver);
            let warns = device.cap_bytes.filter(|_| device.cap_mode == "warn");
            let cap = match warns {
                Some(cap) => format!("{} warns", limit(cap)),
                None => cap_text(device.cap_bytes, device.must_go_bytes),
            };
            table.row([
                std::mem::take(&mut pid),
                device.device.map_or("?".into(), |ordinal| format!("cuda:{ordinal}")),
                size(device.live_bytes),
                size(device.peak_bytes),
                size(device.counted_bytes),
                cap,
                paint_if(refused, BAD, count(refused)),
                std::mem::take(&mut command),
            ]);
        }
    }
    let mut out = table.render();
    if report.groups.is_empty() {
        return out;
    }
    let titles = ["group", "counted", "cap", "processes", "device"];
    let mut table = Table::titled(0, "lrrrl", &titles);
    for group in &report.groups {
        for device in &group.devices {
            let cap = cap_text(device.cap_bytes, device.must_go_bytes);
            let members = group.pids.len().to_string();
            let counted = size(device.counted_bytes);
            table.row([clean(&group.name), counted, cap, members, device.uuid.clone()]);
        }
    }
    out.push('\n');
    out.push_str(&table.render());
    out
}
