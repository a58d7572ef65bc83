//! Which driver calls a command used, from its traces.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde::Serialize;
use vramtrace_format::{Event, SiteId};
use vramtrace_reader::trace::{OpenError, Trace};

use crate::launch::RunResult;
use crate::launch::child::Status;
use crate::launch::monitor::Unrecorded;

#[derive(Debug, Serialize)]
pub struct DriverUsage {
    pub exit_code: Option<u8>,
    pub signal: Option<i32>,
    pub simulated: bool,
    pub processes: usize,
    /// Calls that took memory, by entry point.
    pub allocations: BTreeMap<String, u64>,
    /// Refused requests, by entry point.
    pub refusals: BTreeMap<String, u64>,
    /// Entry points whose memory is not followed.
    #[serde(rename = "passed_through")]
    pub passed: BTreeSet<String>,
    /// Lines that the recorder put on stderr.
    pub notes: Vec<String>,
    /// Libraries that replaced the beginning of the recorder's functions.
    #[serde(skip)]
    pub patched_by: BTreeSet<String>,
    #[serde(rename = "without_recorder")]
    pub without_shim: Vec<Unrecorded>,
    /// A process had the recorder.
    #[serde(skip)]
    pub with_shim: bool,
}

/// A trace that the command left cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", .trace.display())]
pub struct UnreadableTrace {
    trace: PathBuf,
    error: OpenError,
}

pub fn of(ended: &RunResult, simulated: bool) -> Result<DriverUsage, UnreadableTrace> {
    let traces = ended.output.traces();
    let (exit_code, signal) = match ended.status {
        Status::Exited(code) => (Some(code), None),
        Status::Signalled(signal) => (None, Some(signal)),
    };
    let mut usage = DriverUsage {
        exit_code,
        signal,
        simulated,
        processes: traces.len(),
        allocations: BTreeMap::new(),
        refusals: BTreeMap::new(),
        passed: BTreeSet::new(),
        notes: Vec::new(),
        patched_by: BTreeSet::new(),
        without_shim: ended.observed.without_shim.clone(),
        with_shim: ended.observed.with_shim,
    };
    for trace in &traces {
        add(&mut usage, trace).map_err(|error| UnreadableTrace { trace: trace.clone(), error })?;
    }
    Ok(usage)
}

fn add(usage: &mut DriverUsage, path: &Path) -> Result<(), OpenError> {
    let trace = Trace::open(path)?;
    let (definitions, _) = trace.definitions();
    usage.notes.extend(definitions.notes().iter().cloned());
    usage.patched_by.extend(definitions.patched_by().iter().cloned());
    let mut allocations: HashMap<SiteId, u64> = HashMap::new();
    let mut refusals: HashMap<SiteId, u64> = HashMap::new();
    let mut passed: BTreeSet<u16> = BTreeSet::new();
    trace.for_each_event(&mut |stamped| match stamped.event {
        Event::Alloc(alloc) => *allocations.entry(alloc.site).or_default() += 1,
        Event::Refused(refused) => *refusals.entry(refused.site).or_default() += 1,
        Event::PassedThrough { api } => drop(passed.insert(api)),
        _ => {}
    });
    let damage = trace.damage();
    if let Some(first) = damage.ranges.first() {
        usage.notes.push(format!("{} is damaged: {first}", path.display()));
    }
    let site_name = |site: SiteId| match definitions.site(site) {
        Some(site) => definitions.api_name(site.api),
        None => "unknown".into(),
    };
    for (site, count) in allocations {
        *usage.allocations.entry(site_name(site)).or_default() += count;
    }
    for (site, count) in refusals {
        *usage.refusals.entry(site_name(site)).or_default() += count;
    }
    usage.passed.extend(passed.into_iter().map(|api| definitions.api_name(api)));
    Ok(())
}
