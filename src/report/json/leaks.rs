//! `leaks --json`: schema `vramtrace.leaks/1`.

use serde::Serialize;

use super::is_zero;
use super::stack::{StackFacts, autograd_name, stack_facts, why_no_frames};
use crate::analysis::StackClassifier;
use crate::analysis::leaks::{KeptReason, LargerPieces, Leak, Leaks, Sampled, Suppressions};
use crate::analysis::{MergedLeak, merge_leaks};
use crate::replay::OffSpan;
use crate::report::leak_evidence::evidence;
use crate::report::wording::ordinal;

pub const SCHEMA: &str = "vramtrace.leaks/1";

/// `vramtrace.leaks/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeaksReport {
    pub schema: &'static str,
    /// Of all processes. The certain ones come first, and of these the largest.
    pub leaks: Vec<LeakFacts>,
    pub processes: Vec<LeakProcessFacts>,
    /// Only of several processes: the leaks, each once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<MergedLeakFacts>,
    /// Rules of the suppressions file that match no leak.
    pub unused_suppressions: Vec<RuleFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RuleFacts {
    /// Line of the suppressions file.
    pub line: usize,
    pub rule: String,
}

/// One leak of a run.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MergedLeakFacts {
    /// The verdict on the leak with the highest confidence. The frames are those of this leak.
    pub verdict: &'static str,
    pub level: &'static str,
    pub confidence: f64,
    #[serde(flatten)]
    pub stack: StackFacts,
    /// The name where no line of the program is known: a node of the autograd graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub library: Option<String>,
    /// Of all processes together.
    pub bytes: u64,
    pub in_processes: Vec<LeakOfProcess>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeakOfProcess {
    pub pid: u32,
    pub rank: Option<u32>,
    pub device: Option<u8>,
    pub bytes: u64,
}

/// Empty for fewer than two processes.
fn merged_facts(all: &[Leaks]) -> Vec<MergedLeakFacts> {
    if all.len() < 2 {
        return Vec::new();
    }
    let fact = |merged: MergedLeak| {
        let (process, leak) = merged.shown;
        let (found, leak) = (&all[process], &all[process].leaks[leak]);
        let classifier = StackClassifier::new(&found.symbols, &found.header);
        let roles = classifier.roles_at(leak.stack, leak.level);
        let of = |&(process, leak): &(usize, usize)| {
            let (found, leak) = (&all[process], &all[process].leaks[leak]);
            LeakOfProcess {
                pid: found.header.pid,
                rank: found.header.rank,
                device: ordinal(leak.device),
                bytes: leak.bytes,
            }
        };
        MergedLeakFacts {
            verdict: leak.verdict.name(),
            level: leak.level.name(),
            confidence: (leak.confidence * 1000.0).round() / 1000.0,
            stack: stack_facts(&found.symbols, leak.stack, roles.lead, roles.caller),
            name: autograd_name(&classifier, leak.stack, roles.lead),
            library: classifier.library_name(&roles).map(str::to_string),
            bytes: merged.bytes,
            in_processes: merged.places.iter().map(of).collect(),
        }
    };
    merge_leaks(all).into_iter().map(fact).collect()
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeakFacts {
    /// `growing`, `never_freed` or `freed_at_end`.
    pub verdict: &'static str,
    /// `driver` or `tensor`.
    pub level: &'static str,
    /// Ordinal as the process saw it; null: not known.
    pub device: Option<u8>,
    /// Live at the end; for `freed_at_end`, before that.
    pub bytes: u64,
    /// The standard error of `bytes`, which samples of blocks estimate; absent where they are exact.
    #[serde(skip_serializing_if = "is_zero")]
    pub error_bytes: u64,
    /// Of samples of blocks those that were recorded; so are `allocations` and `frees`.
    pub count: u64,
    pub rate_bytes_per_s: Option<f64>,
    /// Of memory that the driver holds for itself: `graphs`, `streams`, `modules`, or `unattributed`: by no known call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_memory: Option<&'static str>,
    /// Bytes of one executable graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub each_bytes: Option<u64>,
    /// From the end of the trace until this leak alone fills the cap or the card.
    pub exhausted_in_s: Option<f64>,
    /// 0 to 1.
    pub confidence: f64,
    /// Innermost first.
    #[serde(flatten)]
    pub stack: StackFacts,
    pub library: Option<String>,
    /// Distinct stacks that are part of it. The frames are those of the largest.
    pub stacks: u64,
    pub allocations: u64,
    pub frees: u64,
    pub evidence: Vec<String>,
    /// Lowest live bytes in equal parts of the time from `from_s` on.
    pub shape: Vec<u64>,
    pub pid: u32,
    pub rank: Option<u32>,
    /// Why there are no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_frames: Option<&'static str>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeakProcessFacts {
    pub pid: u32,
    pub rank: Option<u32>,
    pub trace: String,
    pub running: bool,
    /// The observed time, in seconds since the trace began. Leaks are judged from the end of the
    /// warm-up on.
    pub from_s: f64,
    pub warm_up_until_s: f64,
    pub until_s: f64,
    /// Earlier events are not in the file.
    pub beginning_lost: bool,
    /// The part of the time in which samples of the recorder stand for erased events; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<SampledFacts>,
    /// When the recording was switched off; absent where it never was.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recording_off: Vec<OffSpan>,
    pub live_is_known: bool,
    /// Memory that is held and is no leak.
    pub kept: Vec<KeptFacts>,
    /// Pools of frameworks whose blocks are not known, and free memory in pools.
    pub pooled: Vec<PooledFacts>,
    /// Executable graphs that are kept, and are no leak.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held_by_driver: Vec<HeldByDriverFacts>,
    /// Executable graphs are kept whose bytes cannot be told: NVML has no figure of the process.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub driver_is_unknown: bool,
    /// Pools of the program that keep ever larger pieces, and are no leak.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub larger_pieces: Vec<LargerPiecesFacts>,
    pub suppressed: Vec<SuppressedFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LargerPiecesFacts {
    pub device: Option<u8>,
    pub bytes: u64,
    pub pieces: u64,
    /// Bytes if each piece that is too small were freed before a larger one is allocated.
    pub exact_bytes: u64,
    pub rate_bytes_per_s: Option<f64>,
    #[serde(flatten)]
    pub stack: StackFacts,
    pub library: Option<String>,
}

fn larger_pieces(found: &Leaks) -> Vec<LargerPiecesFacts> {
    let classifier = StackClassifier::new(&found.symbols, &found.header);
    let fact = |of: &LargerPieces| {
        let roles = classifier.roles(of.stack);
        LargerPiecesFacts {
            device: ordinal(of.device),
            bytes: of.bytes,
            pieces: of.pieces,
            exact_bytes: of.exact_bytes,
            rate_bytes_per_s: of.bytes_per_second,
            stack: stack_facts(&found.symbols, of.stack, roles.lead, roles.caller),
            library: classifier.library_name(&roles).map(str::to_string),
        }
    };
    found.larger_pieces.iter().map(fact).collect()
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SampledFacts {
    /// Seconds since the trace began.
    pub from_s: f64,
    pub until_s: f64,
    /// The time for which there is one value: the shortest and the longest.
    pub finest_s: f64,
    pub coarsest_s: f64,
}

pub(super) fn sampled_facts(sampled: &Sampled) -> SampledFacts {
    let seconds = |ns: u64| ns as f64 / 1e9;
    SampledFacts {
        from_s: seconds(sampled.from_ns),
        until_s: seconds(sampled.until_ns),
        finest_s: seconds(sampled.finest_ns),
        coarsest_s: seconds(sampled.coarsest_ns),
    }
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptFacts {
    /// `steady`: as after the warm-up; `stopped`: grew and stopped; `moves`: grows and shrinks.
    pub why: &'static str,
    pub level: &'static str,
    pub device: Option<u8>,
    pub bytes: u64,
    pub count: u64,
    pub stacks: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PooledFacts {
    pub library: String,
    pub device: Option<u8>,
    pub bytes: u64,
    /// It is the free memory in the pool. The blocks of the pool are judged one by one.
    pub free: bool,
    /// Not null: the pool grows.
    pub rate_bytes_per_s: Option<f64>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HeldByDriverFacts {
    /// `filling`: new ones come; `stopped`: no new ones; `reused`: they are launched again.
    pub why: &'static str,
    pub device: Option<u8>,
    pub bytes: u64,
    pub graphs: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SuppressedFacts {
    /// Line of the suppressions file.
    pub line: usize,
    pub leaks: u64,
    pub bytes: u64,
}

/// Rules that match none of these leaks.
pub fn unused(rules: &Suppressions, all: &[Leaks]) -> Vec<RuleFacts> {
    rules.unused(all).into_iter().map(|(line, rule)| RuleFacts { line, rule }).collect()
}

/// The document.
pub fn report(all: &[Leaks], rules: &Suppressions) -> LeaksReport {
    let mut leaks: Vec<LeakFacts> = all.iter().flat_map(facts).collect();
    leaks.sort_by_key(|leak| (leak.confidence < 0.5, std::cmp::Reverse(leak.bytes)));
    let processes = all.iter().map(process_facts).collect();
    let unused_suppressions = unused(rules, all);
    LeaksReport { schema: SCHEMA, leaks, processes, merged: merged_facts(all), unused_suppressions }
}

/// The leaks of one process.
pub fn facts(found: &Leaks) -> Vec<LeakFacts> {
    let classifier = StackClassifier::new(&found.symbols, &found.header);
    let fact = |leak: &Leak| {
        let roles = classifier.roles_at(leak.stack, leak.level);
        LeakFacts {
            verdict: leak.verdict.name(),
            level: leak.level.name(),
            device: ordinal(leak.device),
            bytes: leak.bytes,
            error_bytes: leak.error,
            count: leak.count,
            rate_bytes_per_s: leak.rate(),
            driver_memory: leak.driver.map(|driver| driver.name()),
            each_bytes: leak.driver.and_then(|driver| driver.each),
            exhausted_in_s: leak.exhausted_in_s,
            confidence: (leak.confidence * 1000.0).round() / 1000.0,
            stack: stack_facts(&found.symbols, leak.stack, roles.lead, roles.caller),
            library: classifier.library_name(&roles).map(str::to_string),
            stacks: leak.stacks,
            allocations: leak.allocations,
            frees: leak.frees,
            evidence: evidence(found, leak),
            shape: leak.shape.clone(),
            pid: found.header.pid,
            rank: found.header.rank,
            no_frames: why_no_frames(&found.symbols, leak.stack),
        }
    };
    found.leaks.iter().map(fact).collect()
}

fn process_facts(found: &Leaks) -> LeakProcessFacts {
    let at = |ns: u64| ns as f64 / 1e9;
    LeakProcessFacts {
        pid: found.header.pid,
        rank: found.header.rank,
        trace: found.trace.display().to_string(),
        running: found.running,
        from_s: at(found.from_ns),
        warm_up_until_s: at(found.warm_ns),
        until_s: at(found.until_ns),
        beginning_lost: found.beginning_lost,
        sampled: found.sampled.as_ref().map(sampled_facts),
        recording_off: found.off.clone(),
        live_is_known: found.live_is_known,
        kept: found
            .kept
            .iter()
            .map(|kept| KeptFacts {
                why: match kept.why {
                    KeptReason::Steady => "steady",
                    KeptReason::Stopped => "stopped",
                    KeptReason::Moves => "moves",
                },
                level: kept.level.name(),
                device: ordinal(kept.device),
                bytes: kept.bytes,
                count: kept.count,
                stacks: kept.stacks,
            })
            .collect(),
        pooled: found
            .pooled
            .iter()
            .map(|pooled| PooledFacts {
                library: pooled.library.clone(),
                device: ordinal(pooled.device),
                bytes: pooled.bytes,
                free: pooled.free,
                rate_bytes_per_s: pooled.bytes_per_second,
            })
            .collect(),
        held_by_driver: found
            .held_by_driver
            .iter()
            .map(|held| HeldByDriverFacts {
                why: held.why.name(),
                device: ordinal(held.device),
                bytes: held.bytes,
                graphs: held.graphs,
            })
            .collect(),
        driver_is_unknown: found.driver_is_unknown,
        larger_pieces: larger_pieces(found),
        suppressed: found
            .suppressed
            .iter()
            .map(|s| SuppressedFacts { line: s.line, leaks: s.leaks, bytes: s.bytes })
            .collect(),
    }
}
