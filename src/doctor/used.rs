//! What a command used, from the traces that it left.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::Path;

use memmap2::Mmap;
use vramtrace_format::reader::TraceReader;
use vramtrace_format::{Definition, Event, SiteId};

use crate::launch::Ended;
use crate::launch::child::Status;

#[derive(Debug)]
pub struct Used {
    pub status: Status,
    pub simulated: bool,
    pub processes: usize,
    /// Calls that took memory, by entry point.
    pub allocations: BTreeMap<String, u64>,
    /// Refused requests, by entry point.
    pub refusals: BTreeMap<String, u64>,
    /// Entry points whose memory is not followed.
    pub passed: BTreeSet<String>,
    /// Lines that the recorder put on stderr.
    pub notes: Vec<String>,
    /// Processes that used the driver without the recorder: pid and name.
    pub without_shim: Vec<(i32, String)>,
    /// A process had the recorder.
    pub with_shim: bool,
}

/// An error names the trace that cannot be read.
pub fn of(ended: &Ended, simulated: bool) -> Result<Used, String> {
    let traces = ended.output.traces();
    let mut used = Used {
        status: ended.status,
        simulated,
        processes: traces.len(),
        allocations: BTreeMap::new(),
        refusals: BTreeMap::new(),
        passed: BTreeSet::new(),
        notes: Vec::new(),
        without_shim: ended.seen.without_shim.clone(),
        with_shim: ended.seen.with_shim,
    };
    for trace in &traces {
        add(&mut used, trace).map_err(|why| format!("{}: {why}", trace.display()))?;
    }
    Ok(used)
}

fn add(used: &mut Used, trace: &Path) -> Result<(), String> {
    let file = File::open(trace).map_err(|error| error.to_string())?;
    // SAFETY: traces are never shrunk by their writer.
    let bytes = unsafe { Mmap::map(&file) }.map_err(|error| error.to_string())?;
    let reader = TraceReader::new(&bytes).map_err(|error| error.to_string())?;
    let mut names: HashMap<u16, String> = HashMap::new();
    let mut sites: HashMap<SiteId, u16> = HashMap::new();
    for definition in reader.definitions() {
        match definition {
            Definition::Api { id, name } => drop(names.insert(id, name)),
            Definition::Site { id, api, .. } => drop(sites.insert(id, api)),
            Definition::Note { text } => used.notes.push(text),
            _ => {}
        }
    }
    let mut allocations: HashMap<SiteId, u64> = HashMap::new();
    let mut refusals: HashMap<SiteId, u64> = HashMap::new();
    let mut passed: BTreeSet<u16> = BTreeSet::new();
    for stamped in reader.events() {
        match stamped.event {
            Event::Alloc(alloc) => *allocations.entry(alloc.site).or_default() += 1,
            Event::Refused(refused) => *refusals.entry(refused.site).or_default() += 1,
            Event::PassedThrough { api } => drop(passed.insert(api)),
            _ => {}
        }
    }
    let api_name = |api: &u16| names.get(api).cloned().unwrap_or_else(|| format!("api {api}"));
    let site_name = |site: &SiteId| sites.get(site).map_or("unknown".into(), api_name);
    for (site, count) in allocations {
        *used.allocations.entry(site_name(&site)).or_default() += count;
    }
    for (site, count) in refusals {
        *used.refusals.entry(site_name(&site)).or_default() += count;
    }
    used.passed.extend(passed.iter().map(api_name));
    Ok(())
}
