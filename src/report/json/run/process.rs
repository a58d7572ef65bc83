//! The line of a process, from all its events, or from the figures that a summary has.

use std::collections::BTreeMap;

use serde::Serialize;
use vramtrace_format::{DeviceId, Header, SummaryMoment};

use super::{AdviceRecord, JudgedLeak, SCHEMA, add, bounded, rounded, share};
use crate::analysis::leaks::{Leak, Leaks};
use crate::analysis::oom::{Advice, PostMortem, advice};
use crate::analysis::ranks::{Rank, RankDevice, RankEnd, Source, held_at};
use crate::analysis::{GroupBy, Process, StackClassifier};
use crate::replay::DeviceState;
use crate::report::json::in_use::InUseFacts;
use crate::report::text::oom;
use crate::report::text::stack::place;
use crate::report::wording::ordinal;
use crate::symbols::Symbols;
use crate::trace::DeviceInfo;

/// What a process held and how it ended. Sizes are bytes; a key that is null is not known.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessRecord {
    pub schema: &'static str,
    /// The same in all lines of one run.
    pub run: String,
    /// Of the batch system.
    pub job: Option<String>,
    pub host: String,
    pub pid: u32,
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    pub executable: String,
    pub trace: String,
    pub started_unix_s: f64,
    /// Up to the last event.
    pub duration_s: f64,
    /// `in_order`, `out_of_memory`, `cut_off` (killed, crashed or left by _exit), `running` or `unknown`.
    pub ended: &'static str,
    /// Where the figures come from: `events`; or, where that would have taken too long, `replay` (events, without roles,
    /// times and verdicts), `summary` or `totals` (the last that the recorder wrote).
    pub source: &'static str,
    pub devices: Vec<DeviceRecord>,
    /// The failure with which it ended.
    pub out_of_memory: Option<OomRecord>,
    pub advice: Option<AdviceRecord>,
    /// Null: not looked for.
    pub leaks: Option<Vec<JudgedLeak>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceRecord {
    /// As the process saw it.
    pub ordinal: Option<u8>,
    pub uuid: Option<String>,
    pub name: Option<String>,
    pub total_bytes: Option<u64>,
    pub cap_bytes: Option<u64>,
    pub group_cap_bytes: Option<u64>,
    /// Recorded allocations, without contexts.
    pub peak_bytes: u64,
    pub peak_at_s: f64,
    /// All memory of the process at the peak, split.
    pub in_use_at_peak: Option<InUseFacts>,
    /// The cap, else the size of the card.
    pub limit_bytes: Option<u64>,
    /// The part of the limit that was not used even at the peak, 0 to 1.
    pub never_used_share: Option<f64>,
    /// Bytes over time, up to the last event. Of a process that was not read in full: by the samples that its summary has;
    /// null without.
    pub held_gib_hours: Option<f64>,
    /// Most that it may differ by, where samples stand for events of a part of the time, or of all of it. 0: all is known by
    /// events.
    pub held_gib_hours_error: Option<f64>,
    pub live_bytes: u64,
    pub refused_by_cap: u64,
    pub refused_by_driver: u64,
    pub by_library_at_peak: Option<BTreeMap<String, u64>>,
    /// Null also where no blocks of a framework's cache were recorded.
    pub by_role_at_peak: Option<BTreeMap<String, u64>>,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OomRecord {
    pub device: Option<u8>,
    /// Since the start of the process's trace.
    pub at_s: f64,
    pub size_bytes: u64,
    /// As in `vramtrace oom --json`.
    pub cause: &'static str,
    /// The cause in words.
    pub text: String,
    /// `cap`, `group`, `bad_cap` or `driver`; null: no refused call is known.
    pub refused_by: Option<&'static str>,
    pub limit_bytes: Option<u64>,
    /// The line that asked.
    pub line: Option<String>,
}

impl DeviceRecord {
    /// The most that the process used of its limit.
    pub(super) fn most_used(&self) -> u64 {
        let counted = self.in_use_at_peak.as_ref().map(|in_use| in_use.counted_by_cap_bytes);
        counted.unwrap_or(self.peak_bytes)
    }

    fn of_info(id: DeviceId, info: Option<&DeviceInfo>) -> DeviceRecord {
        DeviceRecord {
            ordinal: ordinal(id),
            uuid: info.map(DeviceInfo::uuid_text),
            name: info.map(|info| info.name.clone()),
            total_bytes: info.map(|info| info.total_bytes),
            cap_bytes: None,
            group_cap_bytes: None,
            peak_bytes: 0,
            peak_at_s: 0.0,
            in_use_at_peak: None,
            limit_bytes: None,
            never_used_share: None,
            held_gib_hours: None,
            held_gib_hours_error: None,
            live_bytes: 0,
            refused_by_cap: 0,
            refused_by_driver: 0,
            by_library_at_peak: None,
            by_role_at_peak: None,
        }
    }

    /// With what follows from cap, card and peak.
    fn with_limit(mut self) -> DeviceRecord {
        let caps = [self.cap_bytes, self.group_cap_bytes, self.total_bytes];
        self.limit_bytes = caps.into_iter().flatten().filter(|bytes| *bytes > 0).min();
        let unused = |limit: u64| share(limit.saturating_sub(self.most_used()), limit);
        self.never_used_share = self.limit_bytes.map(unused);
        self
    }
}

/// The source of a process whose events were all read, with all that follows from them.
pub(super) const IN_FULL: &str = "events";

/// A process without its devices and findings.
fn begin(header: &Header, trace: &std::path::Path, source: &'static str) -> ProcessRecord {
    ProcessRecord {
        schema: SCHEMA,
        run: String::new(),
        job: None,
        host: header.host.clone(),
        pid: header.pid,
        rank: header.rank,
        world_size: header.world_size,
        executable: header.executable.clone(),
        trace: trace.display().to_string(),
        started_unix_s: rounded(header.start_unix_ns as f64 / 1e9),
        duration_s: 0.0,
        ended: "unknown",
        source,
        devices: Vec::new(),
        out_of_memory: None,
        advice: None,
        leaks: None,
    }
}

/// Of a process that was not read in full.
pub(super) fn of_rank(rank: &Rank) -> ProcessRecord {
    let classifier = StackClassifier::new(&rank.symbols, &rank.header);
    let held = held_at(rank, &classifier, SummaryMoment::Peak);
    let holders = classifier.holders(&held, GroupBy::Library);
    let source = match rank.source {
        Source::Events => "replay",
        Source::Summary => "summary",
        Source::Totals => "totals",
    };
    let device = |(id, device): (&DeviceId, &RankDevice)| {
        DeviceRecord {
            peak_bytes: device.peak_bytes,
            peak_at_s: rounded(device.peak_ns as f64 / 1e9),
            live_bytes: device.live_bytes,
            refused_by_cap: device.refused_by_cap,
            refused_by_driver: device.refused_by_driver,
            held_gib_hours: device.held_gib_hours.map(|[held, _]| rounded(held)),
            held_gib_hours_error: device.held_gib_hours.map(|[_, error]| rounded(error)),
            by_library_at_peak: (rank.source != Source::Totals).then(|| {
                let here = holders.iter().filter(|holder| holder.device == *id);
                by_library(here.map(|holder| {
                    let free = holder.stack.is_free_cache();
                    (free, holder.library.as_deref(), holder.bytes)
                }))
            }),
            ..DeviceRecord::of_info(*id, device.info.as_ref())
        }
        .with_limit()
    };
    ProcessRecord {
        duration_s: rounded(rank.last_ns as f64 / 1e9),
        ended: rank.end().name(),
        devices: rank.devices.iter().map(device).collect(),
        ..begin(&rank.header, &rank.trace, source)
    }
}

/// Of a process whose events were all read, after [`Process::look_closer`].
pub(super) fn of_process(process: &Process) -> ProcessRecord {
    let fatal = process.fatal.first();
    let end = match process.ended_in_order() {
        _ if fatal.is_some() => RankEnd::OutOfMemory,
        _ if process.running => RankEnd::Running,
        true => RankEnd::InOrder,
        false => RankEnd::CutOff,
    };
    ProcessRecord {
        duration_s: rounded(process.ending.last_ns as f64 / 1e9),
        ended: end.name(),
        devices: process.devices().map(|(id, device)| of_device(process, id, device)).collect(),
        out_of_memory: fatal.map(|fatal| oom_record(process, fatal)),
        advice: fatal.and_then(advice_record),
        ..begin(&process.header, &process.trace, IN_FULL)
    }
}

fn of_device(process: &Process, id: DeviceId, device: &DeviceState) -> DeviceRecord {
    let by_library_at_peak =
        process.who.as_ref().map(|who| {
            let classifier = StackClassifier::new(&who.symbols, &process.header);
            let holders = classifier.holders(&who.peak, GroupBy::Library);
            let here = holders.iter().filter(|holder| holder.device == id);
            by_library(here.map(|holder| {
                (holder.stack.is_free_cache(), holder.library.as_deref(), holder.bytes)
            }))
        });
    let roles = process.who.as_ref().and_then(|who| who.peak_roles.as_ref());
    let by_role_at_peak = roles.map(|roles| {
        let sums = roles.of_device(id).into_iter();
        sums.map(|(role, held)| (role.name().to_string(), held.bytes)).collect()
    });
    let over_time = process.held_over_time(id);
    DeviceRecord {
        cap_bytes: device.cap_bytes,
        group_cap_bytes: device.group_cap_bytes,
        peak_bytes: device.peak.bytes,
        peak_at_s: rounded(device.peak.time_ns as f64 / 1e9),
        in_use_at_peak: Some(InUseFacts::of(&device.peak.in_use)),
        held_gib_hours: over_time.map(|held| rounded(held.gib_hours())),
        held_gib_hours_error: over_time.map(|held| rounded(held.error_gib_hours())),
        live_bytes: device.live_bytes,
        refused_by_cap: device.refused_by_cap,
        refused_by_driver: device.refused_by_driver,
        by_library_at_peak,
        by_role_at_peak,
        ..DeviceRecord::of_info(id, process.definitions.device(id))
    }
    .with_limit()
}

/// Sums by the name of the library. What is free in a framework's cache is no library's.
fn by_library<'h>(
    holders: impl Iterator<Item = (bool, Option<&'h str>, u64)>,
) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (free, library, bytes) in holders.filter(|(_, _, bytes)| *bytes > 0) {
        add(&mut all, if free { "free in cache" } else { library.unwrap_or("unknown") }, bytes);
    }
    bounded(all)
}

fn oom_record(process: &Process, fatal: &PostMortem) -> OomRecord {
    let symbols = Symbols::of(&process.definitions, &process.header, [fatal.oom.stack]);
    let classifier = StackClassifier::new(&symbols, &process.header);
    let refused = fatal.oom.refusal.map(|at| at.refused);
    OomRecord {
        device: ordinal(fatal.oom.device),
        at_s: rounded(fatal.oom.time_ns as f64 / 1e9),
        size_bytes: fatal.oom.size,
        cause: fatal.cause.name(),
        text: oom::cause(fatal),
        refused_by: refused.map(|refused| refused.by.name()),
        limit_bytes: refused.map(|refused| refused.limit).filter(|limit| *limit > 0),
        line: place(&classifier.named(fatal.oom.stack)),
    }
}

fn advice_record(fatal: &PostMortem) -> Option<AdviceRecord> {
    let best = advice(fatal).into_iter().next()?;
    let conf = match &best {
        Advice::Setting { conf, .. } => Some(conf.clone()),
        _ => None,
    };
    Some(AdviceRecord { what: best.name(), conf, text: oom::advice(&best) })
}

/// The leaks of a process, each with whether the run fails by it.
pub(super) fn leaks(found: &Leaks, least: Option<u64>) -> Vec<JudgedLeak> {
    let judged = |leak: &Leak| JudgedLeak {
        fails: leak.fails(least),
        line: place(&leak.stack),
        leak: leak.clone(),
    };
    found.leaks.iter().map(judged).collect()
}
