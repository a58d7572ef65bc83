//! Predictions of other allocator settings, for people and for programs.

use serde::Serialize;
use std::collections::BTreeMap;

use super::layout::{BAD, BOLD, DIM, PLAIN, Table, WARN, clean, count, paint, several};
use crate::allocator::Outcome;
use crate::analysis::whatif::{Capacity, Origin, Prediction, Recorded, Setting};
use crate::units::{gib, seconds, size};

pub const SCHEMA: &str = "vramtrace.whatif/1";

/// `vramtrace.whatif/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
pub struct Report {
    pub schema: &'static str,
    pub devices: Vec<DeviceFacts>,
}

/// One device of one process.
#[derive(Debug, Serialize)]
pub struct DeviceFacts {
    pub ordinal: u8,
    pub pid: u32,
    pub rank: Option<u32>,
    /// The setting that the run was recorded under; null: the trace does not tell.
    pub in_force: Option<String>,
    /// As recorded.
    pub recorded_peak_reserved_bytes: u64,
    pub recorded_peak_allocated_bytes: u64,
    /// The history begins here; null: it is whole.
    pub from_s: Option<f64>,
    /// The last request, if it got nothing and the run allocated nothing after it.
    pub out_of_memory: Option<OutOfMemoryFacts>,
    /// Best first.
    pub settings: Vec<SettingFacts>,
    /// What the trace cannot tell.
    pub caveats: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct OutOfMemoryFacts {
    /// Since the start; in a trace without times a mere order.
    pub at_s: f64,
    pub asked_bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct SettingFacts {
    pub conf: String,
    pub in_force: bool,
    pub peak_reserved_bytes: u64,
    pub peak_allocated_bytes: u64,
    pub driver_allocations: u64,
    pub driver_frees: u64,
    pub retries: u64,
    /// By capacity in bytes.
    pub fits: BTreeMap<String, bool>,
    pub at_capacity: Vec<AtCapacity>,
    pub smallest_capacity_bytes: Option<u64>,
    pub compatible: bool,
    pub reason: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct AtCapacity {
    pub capacity_bytes: u64,
    /// `asked`, `cap` or `card`.
    pub origin: &'static str,
    pub fits: bool,
    pub peak_reserved_bytes: u64,
    pub retries: u64,
    /// Of the capacity, at the fullest moment; null where it does not fit.
    pub spare_bytes: Option<u64>,
}

/// One device of one process, predicted.
#[derive(Debug)]
pub struct Device<'p> {
    pub pid: u32,
    pub rank: Option<u32>,
    pub recorded: &'p Recorded,
    pub prediction: &'p Prediction,
}

pub fn report(devices: &[Device]) -> Report {
    Report { schema: SCHEMA, devices: devices.iter().map(facts).collect() }
}

fn facts(device: &Device) -> DeviceFacts {
    let Device { recorded, prediction, .. } = device;
    DeviceFacts {
        ordinal: recorded.device.0,
        pid: device.pid,
        rank: device.rank,
        in_force: recorded.in_force.text.as_ref().map(|_| recorded.in_force.name().to_string()),
        recorded_peak_reserved_bytes: recorded.peak_reserved,
        recorded_peak_allocated_bytes: recorded.peak_allocated,
        from_s: recorded.from_ns.map(|ns| ns as f64 / 1e9),
        out_of_memory: recorded
            .out_of_memory
            .last
            .map(|oom| OutOfMemoryFacts { at_s: oom.time_ns as f64 / 1e9, asked_bytes: oom.size }),
        settings: prediction
            .settings
            .iter()
            .map(|setting| setting_facts(setting, &prediction.capacities))
            .collect(),
        caveats: caveats(recorded, prediction),
    }
}

fn setting_facts(setting: &Setting, capacities: &[Capacity]) -> SettingFacts {
    let at = || capacities.iter().zip(&setting.at);
    SettingFacts {
        conf: setting.name.clone(),
        in_force: setting.in_force,
        peak_reserved_bytes: setting.free.peak_reserved,
        peak_allocated_bytes: setting.free.peak_allocated,
        driver_allocations: setting.free.driver_allocations,
        driver_frees: setting.free.driver_frees,
        retries: setting.free.retries,
        fits: at().map(|(capacity, o)| (capacity.bytes.to_string(), o.fits())).collect(),
        at_capacity: at()
            .map(|(capacity, outcome)| AtCapacity {
                capacity_bytes: capacity.bytes,
                origin: origin_name(capacity.origin),
                fits: outcome.fits(),
                peak_reserved_bytes: outcome.peak_reserved,
                retries: outcome.retries,
                spare_bytes: spare(outcome, capacity.bytes),
            })
            .collect(),
        smallest_capacity_bytes: setting.smallest,
        compatible: setting.forbidden.is_none(),
        reason: setting.forbidden.clone(),
    }
}

/// The name in JSON.
pub(super) fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Asked => "asked",
        Origin::Cap => "cap",
        Origin::Card => "card",
    }
}

fn spare(outcome: &Outcome, capacity: u64) -> Option<u64> {
    outcome.fits().then(|| capacity.saturating_sub(outcome.peak_total))
}

/// How far the replay of the setting in force may be from what was recorded before it is told.
const AGREES: f64 = 0.01;

/// What the trace cannot tell, in words.
fn caveats(recorded: &Recorded, prediction: &Prediction) -> Vec<String> {
    let mut caveats = Vec::new();
    if let Some(from) = recorded.from_ns {
        caveats.push(format!(
            "the beginning of the history is gone: replayed from {} on, with the segments and \
             blocks that were there",
            seconds(from)
        ));
    }
    if !recorded.knows_requests {
        caveats.push(
            "the trace tells sizes of blocks, not of requests: good to half a per cent".into(),
        );
        let rounds = recorded.in_force.conf.as_ref();
        if rounds.is_some_and(|conf| conf.roundup_power2_divisions.iter().any(|n| *n > 1)) {
            caveats.push(
                "recorded with roundup_power2_divisions: the sizes are rounded up already, and \
                 other settings would need less than is said here"
                    .into(),
            );
        }
    }
    if recorded.in_force.conf.is_none() {
        caveats.push(format!(
            "the setting in force, \"{}\", cannot be replayed",
            clean(recorded.in_force.name())
        ));
    }
    if let Some(now) = prediction.in_force().filter(|_| recorded.peak_reserved > 0)
        && recorded.from_ns.is_none()
    {
        let off = now.free.peak_reserved as f64 / recorded.peak_reserved as f64 - 1.0;
        // A limit that was met makes the recorded peak lower than one without.
        if off < -AGREES || (off > AGREES && now.free.peak_total < limit(recorded)) {
            let why = match recorded.knows_streams {
                true => "",
                false => "; streams and private pools (CUDA graphs) are not in the trace",
            };
            caveats.push(format!(
                "the setting in force, replayed, reserves {} where the run reserved {}{why}: take \
                 the figures as that rough",
                gib(now.free.peak_reserved),
                gib(recorded.peak_reserved)
            ));
        }
    }
    if recorded.out_of_memory.survived > 0 {
        caveats.push(format!(
            "the run went on after {} that got nothing: they are not replayed",
            several(recorded.out_of_memory.survived, "request")
        ));
    }
    if recorded.emptied > 0 {
        caveats.push(format!(
            "the program emptied the cache {} (torch.cuda.empty_cache): so does the replay",
            several(recorded.emptied, "time")
        ));
    }
    let idle_garbage = |setting: &Setting| {
        setting.conf.garbage_collection_threshold > 0.0
            && setting.conf.per_process_memory_fraction.is_none()
    };
    if prediction.settings.iter().any(idle_garbage) {
        caveats.push(
            "garbage_collection_threshold does nothing without a memory fraction \
             (torch.cuda.set_per_process_memory_fraction, or per_process_memory_fraction)"
                .into(),
        );
    }
    caveats
}

fn limit(recorded: &Recorded) -> u64 {
    recorded.cap_bytes.into_iter().chain(recorded.card_bytes).min().unwrap_or(u64::MAX)
}

/// For people. `name`: what the trace is called.
pub fn text(name: &str, device: &Device) -> String {
    let Device { recorded, prediction, .. } = device;
    let mut out = format!(
        "{}  GPU {}  {}  recorded under {}\n",
        paint(BOLD, &clean(name)),
        recorded.device.0,
        several(recorded.log.allocations(), "allocation"),
        clean(recorded.in_force.name())
    );
    if let Some(oom) = recorded.out_of_memory.last {
        out.push_str(&format!(
            "{} at {}: a request of {} got nothing; replayed up to it and with it\n",
            paint(BAD, "ended out of memory"),
            seconds(oom.time_ns),
            size(oom.size)
        ));
    }
    out.push('\n');
    out.push_str(&table(prediction));
    for setting in &prediction.settings {
        if let Some(why) = &setting.forbidden {
            let text = format!("  unsafe  {}: {}", setting.name, clean(why));
            out.push_str(&format!("{}\n", paint(WARN, &text)));
        }
    }
    let least = prediction.settings.iter().map(|setting| setting.free.peak_allocated).min();
    out.push_str(&format!(
        "\n  Live at the peak: {} at the least, whatever the setting.\n",
        gib(least.unwrap_or(0))
    ));
    match prediction.advice() {
        Some(best) if best.name == "default" => {
            out.push_str("  Try it without a setting: unset PYTORCH_CUDA_ALLOC_CONF\n");
        }
        Some(best) => {
            let line = format!("export PYTORCH_CUDA_ALLOC_CONF={}", shell(&best.name));
            out.push_str(&format!("  Try  {}\n", paint(BOLD, &line)));
        }
        None => out.push_str("  None of these is notably better than the setting in force.\n"),
    }
    for caveat in caveats(recorded, prediction) {
        out.push_str(&paint(DIM, &format!("  Note: {caveat}.")));
        out.push('\n');
    }
    out
}

/// A list of divisions has characters that a shell would take for its own.
pub(super) fn shell(conf: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || ":,_.-".contains(c);
    match conf.chars().all(plain) {
        true => conf.to_string(),
        false => format!("'{}'", clean(conf)),
    }
}

fn table(prediction: &Prediction) -> String {
    let capacities = &prediction.capacities;
    let mut table = Table::new(2, &format!("lrrrr{}", "r".repeat(capacities.len())));
    let titles = capacities.iter().map(|capacity| {
        let name = match capacity.origin {
            Origin::Asked => "in",
            Origin::Cap => "in the cap,",
            Origin::Card => "on the card,",
        };
        format!("{name} {}", gib(capacity.bytes))
    });
    let head = ["setting", "reserved", "unused", "mallocs", "fits in"].map(String::from);
    table.cells(head.into_iter().chain(titles).map(|title| (title, DIM)));
    for setting in &prediction.settings {
        let free = &setting.free;
        let unused = free.peak_reserved.saturating_sub(free.peak_allocated);
        let mark = match (setting.in_force, setting.forbidden.is_some()) {
            (true, _) => " (in force)",
            (_, true) => " (unsafe)",
            _ => "",
        };
        let style = if setting.in_force { BOLD } else { PLAIN };
        let first = [
            (format!("{}{mark}", clean(&setting.name)), style),
            (gib(free.peak_reserved), style),
            (format!("{} %", 100 * unused / free.peak_reserved.max(1)), style),
            (count(free.driver_allocations), style),
            (setting.smallest.map_or("?".into(), gib), style),
        ];
        let verdicts = capacities.iter().zip(&setting.at).map(|(c, o)| verdict(o, c.bytes));
        table.cells(first.into_iter().chain(verdicts));
    }
    table.render()
}

fn verdict(outcome: &Outcome, capacity: u64) -> (String, anstyle::Style) {
    match (outcome.failure, outcome.retries) {
        (Some(failure), _) if failure.outside => ("no, for others".into(), BAD),
        (Some(_), _) => ("no".into(), BAD),
        (None, 0) => {
            let spare = gib(capacity.saturating_sub(outcome.peak_total));
            (format!("yes, {spare} to spare"), PLAIN)
        }
        (None, 1) => ("yes, 1 retry".into(), PLAIN),
        (None, retries) => (format!("yes, {} retries", count(retries)), PLAIN),
    }
}
