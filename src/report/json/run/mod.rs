//! `run --json`: schema `vramtrace.run/3`, an object a line: one for each process, then one for the job. Keys may be
//! added, none is renamed or removed.
//!
//! Changed since version 1, which was one indented object that replaced the file: the keys of the run are those of the
//! line of the job; peaks and leaks are in the lines of the processes.

mod records;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::analysis::leaks::Leaks;
use crate::analysis::ranks::{ProcessFigures, failed, read_within};
use crate::analysis::{Collect, Moment, Process, RolesOf, Wanted, parallel};
use crate::trace::Trace;

pub use records::*;

pub const SCHEMA: &str = "vramtrace.run/3";

/// A line.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "record", rename_all = "snake_case")]
#[allow(clippy::large_enum_variant)]
pub enum RunRecord<'r> {
    Process(&'r ProcessRecord),
    Job(&'r JobRecord),
}

/// Maximum number of failed processes of a long run that are read.
const MAX_FAILED: usize = 8;

/// The lines of a run.
#[derive(Debug)]
pub struct RunRecords {
    /// In the order of the traces.
    pub processes: Vec<ProcessRecord>,
    pub job: JobRecord,
}

/// Leaks that were looked for before, in the order of the traces.
#[derive(Clone, Copy, Debug, Default)]
pub struct Judged<'l> {
    pub leaks: Option<&'l [Leaks]>,
    /// The least bytes of a leak by which the run fails.
    pub least: Option<u64>,
}

/// Of a run with more than `most_bytes` of traces only those processes are read in full that failed, and the one with the
/// highest peak, up to so many bytes: the others have their summaries, and the lines say so.
pub fn read(traces: &[Trace], judged: Judged, most_bytes: u64, ended: RunEnd) -> RunRecords {
    let ranks = read_within(traces, most_bytes, &|_, _| {});
    let mut chosen = worth_reading(traces, &ranks, most_bytes);
    // What failed comes first.
    chosen.sort_by_key(|index| (ranks[*index].end(), *index));
    let mut sum = 0u64;
    chosen.retain(|index| {
        sum = sum.saturating_add(traces[*index].len());
        sum <= most_bytes
    });
    let of_chosen: Vec<&Trace> = chosen.iter().map(|index| &traces[*index]).collect();
    let in_full = parallel::each(&of_chosen, &|_, _| {}, |_, trace, _| in_full(trace, judged));
    let mut processes: Vec<ProcessRecord> =
        ranks.iter().map(|rank| records::record(rank, None)).collect();
    for (index, record) in chosen.into_iter().zip(in_full) {
        processes[index] = record;
    }
    for (index, record) in processes.iter_mut().enumerate() {
        if let Some(leaks) = judged.leaks.and_then(|leaks| leaks.get(index)) {
            record.leaks = Some(records::leaks(leaks, judged.least));
        }
        (record.run, record.job) = (ended.run.clone(), ended.job.clone());
    }
    let job = records::of_run(&processes, &ranks, ended);
    RunRecords { processes, job }
}

/// Indexes of the processes to be read in full, in order: of a run with more than `most_bytes` of traces those that failed,
/// and the one with the highest peak. The others have their summaries.
pub fn worth_reading(traces: &[Trace], ranks: &[ProcessFigures], most_bytes: u64) -> Vec<usize> {
    if traces.iter().map(Trace::len).fold(0, u64::saturating_add) <= most_bytes {
        return (0..traces.len()).collect();
    }
    let mut chosen: Vec<usize> = failed(ranks).iter().take(MAX_FAILED).map(|it| it.index).collect();
    let highest = (0..ranks.len()).rev().max_by_key(|index| ranks[*index].peak_bytes());
    chosen.extend(highest);
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

fn in_full(trace: &Trace, judged: Judged) -> ProcessRecord {
    let leaks = judged.leaks.is_none();
    let roles = Some(RolesOf::Blocks);
    let collect = Collect { roles, leaks, over_time: true, points: true, ..Collect::default() };
    let mut process = Process::read_with(trace, Moment::End, collect, &mut |_, _| {});
    process.look_closer(trace, Wanted::ALL);
    let mut record = records::record(&ProcessFigures::of(&process), Some(&process));
    record.leaks = process.leaks.map(|found| records::leaks(&found, judged.least));
    record
}
