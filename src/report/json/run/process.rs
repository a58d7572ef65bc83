//! The line of a process, from all its events, or from the figures that a summary has.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use vramtrace_format::{DeviceId, SummaryMoment};

use super::{AdviceRecord, JudgedLeak, SCHEMA, add, bounded, rounded, share};
use crate::analysis::leaks::{Leak, Leaks};
use crate::analysis::oom::{Advice, PostMortem, advice};
use crate::analysis::ranks::{DeviceFigures, ProcessFigures, Source, held_at};
use crate::analysis::roles::HeldByRole;
use crate::analysis::{GroupBy, Holder, Process, StackClassifier};
use crate::replay::InUse;
use crate::report::text::oom;
use crate::report::text::stack::place;
use crate::report::wording::ordinal;
use crate::symbols::Symbols;

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
    #[serde(flatten)]
    pub figures: DeviceFigures,
    pub name: Option<String>,
    /// All memory of the process at the peak, split.
    #[cfg_attr(test, schemars(with = "Option<crate::replay::InUseFacts>"))]
    pub in_use_at_peak: Option<InUse>,
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

/// The source of a process whose events were all read, with all that follows from them.
pub(super) const IN_FULL: &str = "events";

/// `in_full`: the process, where its events were all read, after [`Process::look_closer`].
pub(super) fn record(figures: &ProcessFigures, in_full: Option<&Process>) -> ProcessRecord {
    let fatal = in_full.and_then(|process| process.fatal.first());
    let source = match figures.source {
        _ if in_full.is_some() => IN_FULL,
        Source::Events => "replay",
        Source::Summary => "summary",
        Source::Totals => "totals",
    };
    let header = &figures.header;
    ProcessRecord {
        schema: SCHEMA,
        run: String::new(),
        job: None,
        host: header.host.clone(),
        pid: header.pid,
        rank: header.rank,
        world_size: header.world_size,
        executable: header.executable.clone(),
        trace: figures.trace.display().to_string(),
        started_unix_s: rounded(header.start_unix_ns as f64 / 1e9),
        duration_s: rounded(figures.last_ns as f64 / 1e9),
        ended: figures.end().name(),
        source,
        devices: devices(figures, in_full),
        out_of_memory: in_full.zip(fatal).map(|(process, fatal)| oom_record(process, fatal)),
        advice: fatal.and_then(advice_record),
        leaks: None,
    }
}

fn devices(figures: &ProcessFigures, in_full: Option<&Process>) -> Vec<DeviceRecord> {
    let who = in_full.and_then(|process| process.who.as_ref());
    let symbols = who.map_or(&figures.symbols, |who| &who.symbols);
    let classifier = StackClassifier::new(symbols, &figures.header);
    let held = match (in_full, who) {
        (None, _) if figures.source == Source::Totals => None,
        (None, _) => Some(Cow::Owned(held_at(figures, &classifier, SummaryMoment::Peak))),
        (Some(_), who) => who.map(|who| Cow::Borrowed(&who.peak)),
    };
    let holders = held.map(|held| classifier.holders(&held, GroupBy::Library));
    let roles = who.and_then(|who| who.peak_roles.as_ref());
    let of_roles = |roles: &HeldByRole, id| {
        let sums = roles.of_device(id).into_iter();
        sums.map(|(role, held)| (role.name().to_string(), held.bytes)).collect()
    };
    let device = |device: &DeviceFigures| {
        let of_total = [device.cap_bytes, device.group_cap_bytes, device.total_bytes];
        let limit_bytes = of_total.into_iter().flatten().filter(|bytes| *bytes > 0).min();
        let in_use = device.in_use_at_peak.filter(|_| in_full.is_some());
        let most_used = in_use.map_or(device.peak_bytes, |in_use| in_use.counted_by_cap());
        let unused = |limit: u64| share(limit.saturating_sub(most_used), limit);
        DeviceRecord {
            name: device.info.as_ref().map(|info| info.name.clone()),
            in_use_at_peak: in_use,
            limit_bytes,
            never_used_share: limit_bytes.map(unused),
            held_gib_hours: device.held_gib_hours.map(|[held, _]| rounded(held)),
            held_gib_hours_error: device.held_gib_hours.map(|[_, error]| rounded(error)),
            by_library_at_peak: holders.as_ref().map(|holders| by_library(holders, device.id)),
            by_role_at_peak: roles.map(|roles| of_roles(roles, device.id)),
            figures: device.clone(),
        }
    };
    figures.devices.values().map(device).collect()
}

/// Sums of a device by the name of the library. What is free in a framework's cache is no library's.
fn by_library(holders: &[Holder], id: DeviceId) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for holder in holders.iter().filter(|holder| holder.device == id && holder.bytes > 0) {
        let name = match holder.stack.is_free_cache() {
            true => "free in cache",
            false => holder.library.as_deref().unwrap_or("unknown"),
        };
        add(&mut all, name, holder.bytes);
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
        text: oom::why(fatal),
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
