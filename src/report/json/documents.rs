//! The documents of the commands that look into traces. Keys may be added, none is renamed or removed.

use serde::Serialize;
use vramtrace_format::{DeviceId, Header};

use crate::analysis::diff::Difference;
use crate::analysis::frag::{Frag, Pin};
use crate::analysis::leaks::{Leak, Leaks, Suppressions, UnusedRule};
use crate::analysis::oom::NotReported;
use crate::analysis::ranks::MergedHolder;
use crate::analysis::verify::Verification;
use crate::analysis::whatif::Prediction;
use crate::analysis::{
    Holder, Level, MergedLeak, MomentFacts, NamedHoldings, NamedStack, Process, StackClassifier,
    merge_leaks,
};
use crate::facts::{self, ProcessId};
use crate::report::oom::{ListedOom, ProcessRefusals};
use crate::trace::{DamageFound, Trace};

pub const DIFF: &str = "vramtrace.diff/1";
pub const FITS: &str = "vramtrace.fits/2";
pub const FRAG: &str = "vramtrace.frag/2";
pub const HOLDERS: &str = "vramtrace.holders/2";
pub const LEAKS: &str = "vramtrace.leaks/2";
pub const OOM: &str = "vramtrace.oom/2";
pub const VERIFY: &str = "vramtrace.verify/2";
pub const WHATIF: &str = "vramtrace.whatif/2";

/// A document: the name of its schema, facts, and the damage of the traces that they are of. Events in these ranges are
/// missing.
#[derive(Debug, Serialize)]
pub struct Document<'d, F> {
    schema: &'static str,
    #[serde(flatten)]
    facts: &'d F,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    damage: Vec<DamageFacts>,
}

impl<'d, F: Serialize> Document<'d, F> {
    /// To be called after the traces were read: reading them finds the damage.
    pub fn new<'t>(
        schema: &'static str,
        facts: &'d F,
        traces: impl IntoIterator<Item = &'t Trace>,
    ) -> Self {
        let damage = |trace: &Trace| {
            let found = trace.damage();
            (!found.ranges.is_empty()).then(|| DamageFacts {
                trace: trace.path().display().to_string(),
                damage: Damage::of(&found),
            })
        };
        Document { schema, facts, damage: traces.into_iter().filter_map(damage).collect() }
    }
}

/// Damaged ranges of a trace.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DamageFacts {
    pub trace: String,
    #[serde(flatten)]
    pub damage: Damage,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Damage {
    pub places: u64,
    pub bytes: u64,
    /// The first ten, as text.
    pub first: Vec<String>,
}

/// Maximum number of damaged ranges that are listed.
const LISTED: usize = 10;

impl Damage {
    pub fn of(found: &DamageFound) -> Damage {
        Damage {
            places: found.ranges.len() as u64,
            bytes: found.bytes(),
            first: found.ranges.iter().take(LISTED).map(|range| range.to_string()).collect(),
        }
    }
}

/// `diff --format json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DiffFacts<'d> {
    pub before: &'d str,
    pub after: &'d str,
    /// Null: none was given.
    pub tolerance_percent: Option<f64>,
    pub passed: bool,
    /// Why the comparison failed.
    pub reasons: &'d [String],
    pub devices: &'d [Difference],
}

/// `frag --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FragReport {
    pub devices: Vec<FragFacts>,
}

/// One device of one process.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FragFacts {
    #[serde(flatten)]
    frag: Frag,
    /// The lines of code whose blocks keep segments, the first 100: those that keep the most free memory first.
    holders: Vec<PinFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PinFacts {
    #[serde(flatten)]
    pub pin: Pin,
    /// The library that called the driver.
    pub library: Option<String>,
    /// Of the stack with the most bytes. Innermost first.
    #[serde(flatten)]
    pub stack: NamedStack,
}

impl FragFacts {
    pub fn of(frag: Frag, header: &Header) -> FragFacts {
        /// Maximum number of holders: a trace may have thousands.
        const PINS: usize = 100;
        let classifier = StackClassifier::new(&frag.symbols, header);
        let fact = |pin: &Pin| PinFacts {
            pin: *pin,
            library: classifier.library_at(pin.stack, Level::Tensor),
            stack: classifier.named(pin.stack),
        };
        FragFacts { holders: frag.pins.iter().take(PINS).map(fact).collect(), frag }
    }
}

/// `holders --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HoldersReport {
    #[serde(flatten)]
    pub at: MomentFacts,
    /// `driver`, or `tensor`: blocks of PyTorch's cache in place of its segments.
    pub level: Level,
    /// Largest first.
    pub holders: Vec<Holder>,
    /// Only of several processes: the holders, each once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<MergedHolder>,
    /// Peaks of which only the bytes are known: their events are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_known: Vec<PeakWithoutHolders>,
    /// Libraries whose symbols could not be read, and why.
    pub problems: Vec<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PeakWithoutHolders {
    #[serde(flatten)]
    process: ProcessId,
    #[serde(with = "facts::Ordinal")]
    device: DeviceId,
    bytes: u64,
    #[serde(rename = "at_s", with = "facts::Seconds")]
    time_ns: u64,
}

/// The value of `not_known` for one process.
pub fn not_known(process: &Process, who: &NamedHoldings) -> Vec<PeakWithoutHolders> {
    let peaks = who.live.not_known.iter().map(|(device, peak)| PeakWithoutHolders {
        process: ProcessId::of(&process.header),
        device: *device,
        bytes: peak.bytes,
        time_ns: peak.time_ns,
    });
    peaks.collect()
}

/// `leaks --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeaksReport {
    /// Of all processes. The certain ones come first, and of these the largest.
    pub leaks: Vec<Leak>,
    pub processes: Vec<Leaks>,
    /// Only of several processes: the leaks, each once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<MergedLeak>,
    /// Rules of the suppressions file that match no leak.
    pub unused_suppressions: Vec<UnusedRule>,
}

impl LeaksReport {
    pub fn of(all: &[Leaks], rules: &Suppressions) -> LeaksReport {
        let mut leaks: Vec<Leak> = all.iter().flat_map(|found| found.leaks.clone()).collect();
        leaks.sort_by_key(|leak| (!leak.is_sure(), std::cmp::Reverse(leak.bytes)));
        LeaksReport {
            leaks,
            merged: if all.len() > 1 { merge_leaks(all) } else { Vec::new() },
            unused_suppressions: rules.unused(all),
            processes: all.to_vec(),
        }
    }
}

/// `oom --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OomsReport<'r> {
    /// All out-of-memory failures of the run, in order of time.
    pub ooms: &'r [ListedOom<'r>],
    pub processes: Vec<ProcessRefusals<'r>>,
    /// Refused requests that a library did not report, each with the next error of an API call.
    pub not_reported: Vec<NotReported>,
}

/// `verify --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VerifyReport {
    pub holds: bool,
    pub traces: Vec<Verification>,
}

/// `whatif --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WhatifReport {
    pub devices: Vec<Prediction>,
}
