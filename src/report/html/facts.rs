//! The facts of one process on the page, beside its stream of columns.

use serde::Serialize;
use vramtrace_format::Kind;

use super::phases::PagePhases;
use super::recorded::{PageMark, Recorded};
use super::tables::{Tables, tables};
use super::verdict::{self, Paragraph};
use crate::allocator::Conf;
use crate::analysis::Process;
use crate::analysis::frag::{self, FragMoment};
use crate::analysis::leaks::{self, Suppressions};
use crate::analysis::roles::Role;
use crate::analysis::whatif::{GRID, Recorded as RecordedRequests, capacities_of, predict};
use crate::report::json;
use crate::report::whatif::PredictedDevice;
use crate::symbols::Symbols;
use crate::trace::Trace;

/// One process.
#[derive(Debug, Serialize)]
pub struct ProcessPage {
    pub name: String,
    /// What it was made from, where it was not recorded.
    pub imported_from: Option<String>,
    pub has_times: bool,
    pub has_stacks: bool,
    /// Why the run ended out of memory.
    pub verdict: Vec<Paragraph>,
    #[serde(flatten)]
    pub tables: Tables,
    /// Kinds by their numbers.
    pub kinds: Vec<(u8, &'static str)>,
    /// In the order in which they are stacked.
    pub roles: Vec<&'static str>,
    pub phases: PagePhases,
    pub marks: Vec<PageMark>,
    pub more_marks: bool,
    pub gaps: Vec<(u64, u64)>,
    /// Device and ordinal.
    pub peaks: Vec<(u8, u64)>,
    pub ooms: Vec<(u8, u64)>,
    /// The last ordinal.
    pub last: u64,
    pub blocks: u64,
    pub memory: u64,
    /// Blocks of fewer bytes are not listed one by one; 0: all are.
    pub lumped_below: u64,
    pub lumped: u64,
    pub lanes_bytes: u64,
    pub memory_lanes_bytes: u64,
    pub advice: Advice,
    pub problems: Vec<String>,
}

/// What `frag`, `whatif` and `leaks` say.
#[derive(Debug, Default, Serialize)]
pub struct Advice {
    pub frag: Vec<json::frag::FragFacts>,
    pub whatif: Option<json::whatif::WhatifReport>,
    /// Why there is none.
    pub no_whatif: Option<String>,
    pub leaks: Option<json::leaks::LeaksReport>,
}

/// A replay of more blocks under every setting would take longer than the page.
const WHATIF_BLOCKS: u64 = 400_000;
/// Leaks that a page holds.
const LEAKS: usize = 50;

pub fn advice(process: &Process, trace: &Trace) -> Advice {
    let definitions = &process.definitions;
    let out_of_memory = process.ooms.iter().any(|oom| !oom.went_on);
    let at = if out_of_memory { FragMoment::OutOfMemory } else { FragMoment::Peak };
    let found = frag::find(trace, definitions, at)
        .or_else(|_| frag::find(trace, definitions, FragMoment::Peak));
    let frag = found.unwrap_or_default();
    let at = |frag: &frag::Frag| match frag.out_of_memory {
        Some(_) if out_of_memory => FragMoment::OutOfMemory,
        _ => FragMoment::Peak,
    };
    let frag = frag.iter().map(|one| json::frag::facts(one, trace.header(), at(one))).collect();
    let rules = Suppressions::default();
    let mut leaks = json::leaks::report(&[leaks::find(trace, &rules, 0)], &rules);
    leaks.leaks.truncate(LEAKS);
    let (whatif, no_whatif) = match whatif(process, trace) {
        Ok(report) => (Some(report), None),
        Err(why) => (None, Some(why)),
    };
    Advice { frag, whatif, no_whatif, leaks: Some(leaks) }
}

fn whatif(process: &Process, trace: &Trace) -> Result<json::whatif::WhatifReport, String> {
    let blocks = process.state.devices.values().map(|device| device.cache.allocations).max();
    match blocks {
        None | Some(0) => return Err("no blocks of PyTorch's cache were recorded".into()),
        Some(blocks) if blocks > WHATIF_BLOCKS => {
            return Err("the run is long: `vramtrace whatif` replays it".into());
        }
        Some(_) => {}
    }
    let conf = |name: &&str| {
        let name = if name.trim().is_empty() { "default" } else { name };
        Some((name.to_string(), Conf::parse(name).ok()?))
    };
    let confs: Vec<(String, Conf)> = GRID.iter().filter_map(conf).collect();
    let recorded = RecordedRequests::of(trace, &process.definitions);
    let predictions: Vec<_> =
        recorded.iter().map(|one| predict(one, &confs, capacities_of(one), &|| {})).collect();
    let devices: Vec<PredictedDevice> = recorded
        .iter()
        .zip(&predictions)
        .map(|(recorded, prediction)| PredictedDevice {
            pid: process.header.pid,
            rank: process.header.rank,
            recorded,
            prediction,
        })
        .collect();
    Ok(json::whatif::report(&devices))
}

pub fn process_page(
    name: &str,
    process: &Process,
    below: u64,
    recorded: Recorded,
    advice: Advice,
) -> ProcessPage {
    let stacks = recorded.owners.iter().map(|(stack, _, _)| *stack);
    let symbols = Symbols::of(&process.definitions, &process.header, stacks);
    ProcessPage {
        name: name.to_string(),
        imported_from: process.definitions.imported_from().map(str::to_string),
        has_times: process.definitions.has_times(),
        has_stacks: !process.definitions.stacks().is_empty(),
        verdict: verdict::out_of_memory(process),
        tables: tables(&recorded.owners, &symbols, &process.header),
        kinds: Kind::ALL.into_iter().map(|kind| (kind as u8, kind.name())).collect(),
        roles: Role::ALL.map(Role::name).into(),
        phases: recorded.phases,
        marks: recorded.marks,
        more_marks: recorded.more_marks,
        gaps: recorded.gaps,
        peaks: recorded.peaks.into_iter().map(|(device, at)| (device.0, at)).collect(),
        ooms: recorded.ooms.into_iter().map(|(device, at)| (device.0, at)).collect(),
        last: recorded.last,
        blocks: recorded.blocks,
        memory: recorded.memory,
        lumped_below: below,
        lumped: recorded.lumped,
        lanes_bytes: recorded.highest_lane,
        memory_lanes_bytes: recorded.highest_memory_lane,
        advice,
        problems: symbols.problems().to_vec(),
    }
}
