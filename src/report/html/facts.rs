//! The facts of one process on the page: all that is not in its stream of columns.

use serde::Serialize;

use super::failures::{Failure, failures};
use super::phases::PagePhases;
use super::recorded::{OwnerKind, PageMark};
use super::second_pass::SecondPass;
use super::steps::PageStep;
use super::tables::{Tables, tables};
use super::verdict::{self, Paragraph};
use crate::allocator::Conf;
use crate::analysis::leaks::Suppressions;
use crate::analysis::roles::Role;
use crate::analysis::whatif::{
    GRID, NOT_OF_SAMPLES, Recorded as RecordedRequests, capacities_of, predict,
};
use crate::analysis::{Places, Process};
use crate::report::{json, text};
use crate::symbols::Symbols;
use crate::trace::Trace;

/// One process.
#[derive(Debug, Serialize)]
pub(super) struct ProcessPage {
    pub name: String,
    /// The format that the trace was imported from. `None`: it was recorded.
    pub imported_from: Option<String>,
    pub has_times: bool,
    pub has_stacks: bool,
    /// The name of the program.
    pub program: String,
    /// How it ended without a failure. `None`: with one, or the trace does not tell.
    pub ended: Option<String>,
    /// Why the run ended out of memory; empty if it did not.
    pub verdict: Vec<Paragraph>,
    /// The failures with which the run ended.
    pub failures: Vec<Failure>,
    #[serde(flatten)]
    pub tables: Tables,
    /// The number and the name of each kind of allocation.
    pub kinds: Vec<(u8, &'static str)>,
    /// The names of roles, in the order in which the page stacks them.
    pub roles: Vec<&'static str>,
    pub phases: PagePhases,
    /// The steps of a training.
    pub steps: Vec<PageStep>,
    pub marks: Vec<PageMark>,
    /// There were more marks than the page holds.
    pub more_marks: bool,
    /// First and last ordinal of each gap in the history.
    pub gaps: Vec<(u64, u64)>,
    /// Device, and ordinal of its peak.
    pub peaks: Vec<(u8, u64)>,
    /// Device, and ordinal of the last out-of-memory failure of PyTorch's cache.
    pub ooms: Vec<(u8, u64)>,
    /// The last ordinal.
    pub last: u64,
    /// Records of blocks.
    pub blocks: u64,
    /// Records of driver allocations.
    pub memory: u64,
    /// Allocations of fewer bytes are not listed one by one; 0: all are.
    pub lumped_below: u64,
    /// The number of these allocations.
    pub lumped: u64,
    pub advice: Advice,
    /// Why symbols could not be read.
    pub problems: Vec<String>,
}

/// The results of `vramtrace frag`, `whatif` and `leaks`.
#[derive(Debug, Default, Serialize)]
pub(super) struct Advice {
    pub frag: Vec<json::frag::FragFacts>,
    pub whatif: Option<json::whatif::WhatifReport>,
    /// Why `whatif` was not computed.
    pub no_whatif: Option<String>,
    pub leaks: Option<json::leaks::LeaksReport>,
}

/// The most blocks for which `whatif` is computed. With more, it would take longer than the rest of
/// the page.
const WHATIF_BLOCKS: u64 = 400_000;
/// The most leaks that a page holds.
const LEAKS: usize = 50;

/// The prediction for all settings of [`GRID`], or why there is none.
pub(super) type Prediction = Result<json::whatif::WhatifReport, String>;

pub(super) fn whatif(process: &Process, trace: &Trace) -> Prediction {
    let blocks = process.state.devices.values().map(|device| device.cache.allocations).max();
    if process.definitions.samples_blocks() {
        return Err(NOT_OF_SAMPLES.into());
    }
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
    let predict = |one| predict(one, &confs, capacities_of(one), &|| {});
    let devices = recorded.iter().map(predict).collect();
    Ok(json::whatif::WhatifReport { schema: json::whatif::SCHEMA, devices })
}

/// Assembles the facts, and fills [`Process::fatal`].
pub(super) fn process_page(
    name: &str,
    process: &mut Process,
    trace: &Trace,
    pass: SecondPass,
    whatif: Prediction,
) -> ProcessPage {
    let SecondPass { recorded, lumped_below, mut fatal, frag, leaks } = pass;
    for one in &mut fatal {
        one.find_remedy(trace, &process.definitions);
    }
    process.fatal = fatal;
    let no_leak = leaks.as_ref().is_some_and(|found| found.leaks.is_empty());
    let ended = text::verdict::ended(process, no_leak);
    let leaks = leaks.map(|leaks| {
        let mut leaks = json::leaks::report(&[leaks], &Suppressions::default());
        leaks.leaks.truncate(LEAKS);
        leaks
    });
    let frag = frag.into_iter().map(|one| json::frag::facts(one, trace.header())).collect();
    let (whatif, no_whatif) = match whatif {
        Ok(report) => (Some(report), None),
        Err(why) => (None, Some(why)),
    };
    let advice = Advice { frag, whatif, no_whatif, leaks };
    let of_failures = process.fatal.iter().map(|one| one.oom.stack);
    let stacks = recorded.owners.iter().map(|(stack, _, _)| *stack).chain(of_failures);
    let symbols = Symbols::of(&process.definitions, &process.header, stacks);
    ProcessPage {
        name: name.to_string(),
        imported_from: process.definitions.imported_from().map(str::to_string),
        has_times: process.definitions.has_times(),
        has_stacks: !process.definitions.stacks().is_empty(),
        program: Places::of(&process.header).program().to_string(),
        ended,
        verdict: verdict::out_of_memory(process),
        failures: failures(&process.fatal, &recorded.fatal, &symbols, &process.header),
        tables: tables(&recorded.owners, &symbols, &process.header),
        kinds: OwnerKind::all(),
        roles: Role::ALL.map(Role::name).into(),
        phases: recorded.phases,
        steps: recorded.steps,
        marks: recorded.marks,
        more_marks: recorded.more_marks,
        gaps: recorded.gaps,
        peaks: recorded.peaks.into_iter().map(|(device, at)| (device.0, at)).collect(),
        ooms: recorded.ooms.into_iter().map(|(device, at)| (device.0, at)).collect(),
        last: recorded.last,
        blocks: recorded.blocks,
        memory: recorded.memory,
        lumped_below,
        lumped: recorded.lumped,
        advice,
        problems: symbols.problems().to_vec(),
    }
}
