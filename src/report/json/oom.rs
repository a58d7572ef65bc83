//! `oom --json`: schema `vramtrace.oom/1`.

use serde::Serialize;
use vramtrace_format::{Cause as DriverCause, Header};

use super::in_use::InUseFacts;
use super::stack::{StackFacts, stack_facts, why_no_frames};
use crate::analysis::oom::{Advice, Explained, Oom, Swallowed, advice};
use crate::analysis::{GroupBy, StackClassifier};
use crate::report::oom::{ListedOom, ProcessRefusals};
use crate::report::wording::ordinal;
use crate::symbols::Symbols;
use crate::trace::Definitions;

pub const SCHEMA: &str = "vramtrace.oom/1";

/// `vramtrace.oom/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OomsReport {
    pub schema: &'static str,
    /// All out-of-memory failures of the run, in order of time.
    pub ooms: Vec<OomFacts>,
    pub processes: Vec<OomProcessFacts>,
    /// Refused requests that a library did not report, each with the next error of an API call.
    pub not_reported: Vec<NotReportedFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OomProcessFacts {
    pub pid: u32,
    pub rank: Option<u32>,
    pub trace: String,
    pub running: bool,
    pub devices: Vec<OomDeviceFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OomDeviceFacts {
    pub ordinal: Option<u8>,
    pub refusals: u64,
    pub absorbed: u64,
    /// Requests that passed a cap which only warns.
    pub warned: u64,
    pub ooms: u64,
    pub peak_bytes: u64,
    /// NVML's highest reading.
    pub peak_process_bytes: Option<u64>,
    /// The memory at the peak, split.
    pub in_use_at_peak: InUseFacts,
    pub cap_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OomFacts {
    /// From 1: the number that `--at` takes.
    pub number: usize,
    pub pid: u32,
    pub rank: Option<u32>,
    /// Ordinal as the process saw it; null: not known.
    pub device: Option<u8>,
    /// `tensor`: PyTorch could not allocate a block; `driver`: a driver call was refused.
    pub level: &'static str,
    /// Since the start of the trace.
    pub at_s: f64,
    pub size_bytes: u64,
    /// The driver's function; null at the level of tensors.
    pub api: Option<String>,
    /// `cap`, `group`, `bad_cap` or `driver`; null: no refused call is known.
    pub refused_by: Option<&'static str>,
    /// The cap, or the group's.
    pub limit_bytes: Option<u64>,
    /// The bytes that the limit had counted; for a group, those of all its processes.
    pub counted_bytes: Option<u64>,
    pub card_free_bytes: Option<u64>,
    /// Failed requests in this burst. The failure describes the last of them.
    pub requests: u64,
    pub first_at_s: f64,
    pub refusals: u64,
    /// Refusals on the device that were absorbed before it: harmless.
    pub absorbed_before: u64,
    pub went_on: bool,
    /// Only of the failures that were selected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_mortem: Option<PostMortemFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NotReportedFacts {
    pub pid: u32,
    pub rank: Option<u32>,
    pub device: Option<u8>,
    pub library: String,
    pub at_s: f64,
    pub size_bytes: u64,
    pub api: String,
    pub refused_by: &'static str,
    /// As in `post_mortem`.
    pub cause: &'static str,
    pub limit_bytes: Option<u64>,
    pub card_free_bytes: Option<u64>,
    /// The call that failed next.
    pub next_api: String,
    pub next_result: i32,
    pub next_at_s: f64,
    /// Null: 0, or the process did not end in order.
    pub exit_status: Option<i32>,
}

/// The refused requests that a library of this process did not report.
pub fn not_reported(
    all: &[Swallowed],
    symbols: &Symbols,
    header: &Header,
    definitions: &Definitions,
) -> Vec<NotReportedFacts> {
    let classifier = StackClassifier::new(symbols, header);
    let fact = |one: &Swallowed| {
        let refused = one.refusal.refused;
        let known = |bytes: u64| Some(bytes).filter(|bytes| *bytes > 0);
        Some(NotReportedFacts {
            pid: header.pid,
            rank: header.rank,
            device: ordinal(one.refusal.device),
            library: one.library(&classifier)?.to_string(),
            at_s: one.refusal.time_ns as f64 / 1e9,
            size_bytes: refused.size,
            api: definitions.site_api_name(refused.site),
            refused_by: refused.by.name(),
            cause: one.cause(definitions).name(),
            limit_bytes: known(refused.limit),
            card_free_bytes: known(refused.driver_free),
            next_api: definitions.api_name(one.error.api),
            next_result: one.error.result,
            next_at_s: one.error.time_ns as f64 / 1e9,
            exit_status: one.status,
        })
    };
    all.iter().filter_map(fact).collect()
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PostMortemFacts {
    /// `fragmentation`, `cap`, `bad_cap`, `card`, `mps`, `cgroup`, `torch` or `unknown`.
    pub cause: &'static str,
    /// The stack of the request, innermost first.
    #[serde(flatten)]
    pub stack: StackFacts,
    pub no_frames: Option<&'static str>,
    /// Bytes that the process had in use: the sum of the parts.
    pub used_bytes: u64,
    pub used: Vec<PartFacts>,
    /// Managed memory: included in the sum, but not in the figure of nvidia-smi.
    pub managed_bytes: u64,
    pub card_bytes: Option<u64>,
    /// Other processes on the card, as NVML listed them.
    pub neighbours: Vec<NeighbourFacts>,
    pub live_is_known: bool,
    /// PyTorch's cache; null where the trace has none.
    pub torch: Option<TorchAtOomFacts>,
    /// Largest first.
    pub holders: Vec<HeldFacts>,
    /// The step of a training that it ended; null: none, or they cannot be told.
    pub step: Option<AtStepFacts>,
    /// The time from which `grew` counts; null: not known.
    pub grew_since_s: Option<f64>,
    pub grew: Vec<GrownFacts>,
    /// Replayed up to the request; best first.
    pub settings: Vec<TriedSettingFacts>,
    pub advice: Vec<AdviceFacts>,
    pub problems: Vec<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AtStepFacts {
    /// From 1, as in `report --by step`.
    pub number: usize,
    /// It asked for more than any step before.
    pub differs: bool,
    /// The largest request of each earlier step: the lowest and the highest. Null: there is none.
    pub earlier_low_bytes: Option<u64>,
    pub earlier_high_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NeighbourFacts {
    pub pid: u32,
    /// Null: NVML did not know.
    pub bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PartFacts {
    /// `tensors`, `torch_cache`, `library`, `rounding`, `context`, `limits`, `unattributed`, ...
    pub what: &'static str,
    /// May be negative: `rounding`, `unattributed`.
    pub bytes: i64,
    pub library: Option<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TorchAtOomFacts {
    pub allocated_bytes: u64,
    pub reserved_bytes: u64,
    pub free_bytes: u64,
    pub largest_hole_bytes: u64,
    pub fits_in_one_piece: bool,
    pub releasable_bytes: u64,
    pub unusable_bytes: u64,
    pub segments: u64,
    pub segments_pinned: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HeldFacts {
    pub bytes: u64,
    pub count: u64,
    /// The share of all held bytes of the device, 0 to 1.
    pub share: f64,
    pub library: Option<String>,
    pub stacks: u64,
    /// What the driver took the memory for; absent where it was allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_memory: Option<&'static str>,
    #[serde(flatten)]
    pub stack: StackFacts,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_frames: Option<&'static str>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GrownFacts {
    pub bytes: u64,
    pub now_bytes: u64,
    /// As in `holders`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_memory: Option<&'static str>,
    #[serde(flatten)]
    pub stack: StackFacts,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TriedSettingFacts {
    pub conf: String,
    pub in_force: bool,
    pub capacity_bytes: u64,
    pub fits: bool,
    pub smallest_capacity_bytes: Option<u64>,
    pub compatible: bool,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AdviceFacts {
    /// `correct_cap`, `setting`, `cap`, `memory_fraction`, `card`, `empty_cache`,
    /// `smaller_request` or `other_processes`.
    pub what: &'static str,
    /// A PYTORCH_CUDA_ALLOC_CONF.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conf: Option<String>,
    pub bytes: Option<u64>,
    /// Bytes that a setting would leave unused, `under` a `cap`, a `card` or what was `reserved` before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spare_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub under: Option<&'static str>,
}

/// One out-of-memory failure. `explained`: its post-mortem.
pub fn facts(listed: &ListedOom, explained: Option<&Explained>, top: usize) -> OomFacts {
    let Oom { device, level, time_ns, size, refusal, requests, first_ns, .. } = listed.oom.clone();
    let refused = refusal.map(|at| at.refused);
    OomFacts {
        number: listed.number,
        pid: listed.header.pid,
        rank: listed.header.rank,
        device: ordinal(device),
        level: level.name(),
        at_s: time_ns as f64 / 1e9,
        size_bytes: size,
        api: (listed.oom.site.0 > 0).then(|| listed.definitions.site_api_name(listed.oom.site)),
        refused_by: refused.map(|refused| refused.by.name()),
        limit_bytes: refused.map(|refused| refused.limit).filter(|limit| *limit > 0),
        counted_bytes: refused.map(|refused| refused.counted),
        card_free_bytes: refused.map(|refused| refused.driver_free).filter(|free| *free > 0),
        requests,
        first_at_s: first_ns as f64 / 1e9,
        refusals: listed.oom.refusals,
        absorbed_before: listed.oom.absorbed,
        went_on: listed.oom.went_on,
        post_mortem: explained.map(|it| post_mortem(it, listed.header, top)),
    }
}

fn post_mortem(it: &Explained, header: &Header, top: usize) -> PostMortemFacts {
    let one = &it.one;
    let classifier = StackClassifier::new(&it.symbols, header);
    let roles = classifier.roles(one.oom.stack);
    let all = classifier.holders(&one.held, GroupBy::Line);
    let held = all.iter().map(|holder| holder.bytes).fold(0, u64::saturating_add).max(1);
    let segments = it.small.segments + it.large.segments;
    PostMortemFacts {
        cause: one.cause.name(),
        stack: stack_facts(&it.symbols, one.oom.stack, roles.lead, roles.caller),
        no_frames: it.stack().is_none().then(|| it.symbols.why_empty(one.oom.stack)),
        used_bytes: it.sum.bytes,
        used: it
            .sum
            .parts
            .iter()
            .map(|(what, bytes)| PartFacts {
                what: what.name(),
                bytes: *bytes,
                library: what.library().map(str::to_string),
            })
            .collect(),
        managed_bytes: it.sum.managed,
        card_bytes: one.card_bytes,
        neighbours: one
            .oom
            .neighbours
            .iter()
            .map(|(pid, bytes)| NeighbourFacts { pid: *pid, bytes: *bytes })
            .collect(),
        live_is_known: one.live_is_known,
        torch: (segments > 0 || one.reserved > 0).then(|| TorchAtOomFacts {
            allocated_bytes: one.allocated,
            reserved_bytes: one.reserved,
            free_bytes: one.free,
            largest_hole_bytes: one.largest_hole,
            fits_in_one_piece: one.free >= one.oom.size,
            releasable_bytes: one.releasable,
            unusable_bytes: it.small.unusable.saturating_add(it.large.unusable),
            segments,
            segments_pinned: one.pinned,
        }),
        holders: all
            .iter()
            .take(top)
            .map(|holder| HeldFacts {
                bytes: holder.bytes,
                count: holder.count,
                share: holder.bytes as f64 / held as f64,
                library: holder.library.clone(),
                stacks: holder.stacks,
                driver_memory: holder.cause.map(DriverCause::name),
                stack: stack_facts(&it.symbols, holder.stack, holder.lead, holder.caller),
                no_frames: why_no_frames(&it.symbols, holder.stack),
            })
            .collect(),
        step: it.step.map(|step| AtStepFacts {
            number: step.number,
            differs: step.differs(),
            earlier_low_bytes: step.earlier.map(|(low, _)| low),
            earlier_high_bytes: step.earlier.map(|(_, high)| high),
        }),
        grew_since_s: it.grew_from_ns.map(|ns| ns as f64 / 1e9),
        grew: it
            .grew
            .iter()
            .take(top)
            .map(|grown| {
                let roles = classifier.roles(grown.stack);
                GrownFacts {
                    bytes: grown.bytes(),
                    now_bytes: grown.now,
                    driver_memory: grown.cause.map(DriverCause::name),
                    stack: stack_facts(&it.symbols, grown.stack, roles.lead, roles.caller),
                }
            })
            .collect(),
        settings: one.remedy.iter().flat_map(settings).collect(),
        advice: advice(one).iter().map(advice_facts).collect(),
        problems: it.symbols.problems().to_vec(),
    }
}

/// The settings that were replayed up to the request.
fn settings(remedy: &crate::analysis::oom::Remedy) -> Vec<TriedSettingFacts> {
    let tried = remedy.settings.iter().map(|tried| TriedSettingFacts {
        conf: tried.conf.clone(),
        in_force: tried.in_force,
        capacity_bytes: remedy.capacity,
        fits: tried.fits,
        smallest_capacity_bytes: tried.smallest,
        compatible: tried.forbidden.is_none(),
    });
    tried.collect()
}

pub(super) fn advice_facts(advice: &Advice) -> AdviceFacts {
    let mut facts = AdviceFacts {
        what: advice.name(),
        conf: None,
        bytes: None,
        spare_bytes: None,
        under: None,
    };
    match advice {
        Advice::CorrectCap | Advice::Fraction => {}
        Advice::Setting { conf, spare, origin } => {
            facts.conf = Some(conf.clone());
            facts.spare_bytes = Some(*spare);
            facts.under = Some(origin.name());
        }
        Advice::Cap { bytes }
        | Advice::Card { bytes }
        | Advice::EmptyCache { bytes }
        | Advice::Smaller { bytes }
        | Advice::Others { bytes } => facts.bytes = Some(*bytes),
    }
    facts
}

/// The refused requests of a process, with or without an out-of-memory failure.
pub fn process(
    quiet: &ProcessRefusals,
    header: &Header,
    trace: String,
    running: bool,
    ooms: &[Oom],
) -> OomProcessFacts {
    let used = quiet.end.devices.iter().filter(|(_, device)| device.was_used());
    let devices = used.map(|(id, device)| OomDeviceFacts {
        ordinal: ordinal(*id),
        refusals: device.refused(),
        absorbed: quiet.refusals.get(id).map_or(0, |refusals| refusals.absorbed),
        warned: device.warned,
        ooms: ooms.iter().filter(|oom| oom.device == *id).count() as u64,
        peak_bytes: device.peak.bytes,
        peak_process_bytes: device.peak_sample.and_then(|at| at.sample.process_bytes),
        in_use_at_peak: InUseFacts::of(&device.peak.in_use),
        cap_bytes: device.cap_bytes,
    });
    OomProcessFacts {
        pid: header.pid,
        rank: header.rank,
        trace,
        running,
        devices: devices.collect(),
    }
}
