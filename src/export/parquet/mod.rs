//! Exports traces to Parquet files, for DuckDB, Spark and data frames: a directory of tables, partitioned by run and
//! rank. docs/parquet.md names the columns.
//!
//! Each trace is read twice, and twice more for roles where it has blocks of a framework; as many traces at a time as there
//! are cores. Memory for a trace is bounded by the live set, nine bytes for each allocation where it has blocks, the
//! stacks, and the rows of a row group.

mod blocks;
mod place;
mod samples;
mod series;
mod stacks;
mod summary;
mod table;
mod watched;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use jiff::Timestamp;

use super::TracedProcess;
use super::sink::{Sink, TimeWindow};
use super::timeline::Timeline;
use crate::analysis::ranks::ProcessFigures;
use crate::analysis::{Level, parallel};
use crate::trace::Trace;
use blocks::Blocks;
use place::ExportDirectory;
use watched::Watched;

/// The tables, which are directories.
pub const TABLES: [&str; 5] = ["blocks", "stacks", "samples", "holders", "summary"];
/// Numbers of rows that were written, by table.
pub type Rows = [u64; TABLES.len()];

/// Writes the tables into the directory `to`, which must not exist. It exists only when it is complete.
pub fn export(traces: &[Trace], to: &Path, progress: parallel::Progress) -> io::Result<Rows> {
    let place = ExportDirectory::new(to)?;
    let (run, parts) = (run_of(traces), parts(traces));
    let all: Vec<&Trace> = traces.iter().collect();
    let written = parallel::each(&all, progress, |index, trace, done| {
        let (rank, number) = parts[index];
        let file = |table: &str| {
            let of_run =
                place.directory().own_directory(table.as_ref())?.own_directory(run.as_ref())?;
            let of_rank = of_run.own_directory(format!("rank={rank}").as_ref())?;
            of_rank.create(format!("part-{number}.parquet").as_ref())
        };
        write(trace, number, &file, done)
    });
    let mut rows = Rows::default();
    for of_process in written {
        rows.iter_mut().zip(of_process?).for_each(|(sum, rows)| *sum += rows);
    }
    place.keep()?;
    Ok(rows)
}

/// The directory of the run that all traces are of. Its name has the start of the first process, and the number that
/// `vramtrace run` gave it.
fn run_of(traces: &[Trace]) -> String {
    let first = traces.iter().map(Trace::header).min_by_key(|header| header.start_unix_ns);
    let start = first.map_or(0, |header| header.start_unix_ns);
    let start = Timestamp::from_nanosecond(start.into()).unwrap_or_default();
    let start = start.strftime("run=%Y%m%dT%H%M%SZ");
    let run = first.and_then(|header| header.run);
    run.map_or(start.to_string(), |number| format!("{start}-{number:016x}"))
}

/// The rank of each trace, -1 for none, and its number in the rank, from 0.
fn parts(traces: &[Trace]) -> Vec<(i64, u32)> {
    let mut next: HashMap<i64, u32> = HashMap::new();
    let of = |trace: &Trace| {
        let rank = trace.header().rank.map_or(-1, i64::from);
        let number = next.entry(rank).or_default();
        *number += 1;
        (rank, *number - 1)
    };
    traces.iter().map(of).collect()
}

/// Writes the tables of one process. `file` makes that of a table.
fn write(
    trace: &Trace,
    number: u32,
    file: &dyn Fn(&str) -> io::Result<File>,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<Rows> {
    let [blocks, stacks, samples, holders, summary] = TABLES.map(file);
    let (definitions, _) = trace.definitions();
    let mut watched = Watched::new();
    let (rank, state) = ProcessFigures::replayed_with(trace, None, &mut watched, progress);
    let mut blocks = Blocks::begin(blocks?, number)?;
    let process = TracedProcess { trace, number, pid: 0, label: String::new(), start_ns: 0 };
    let timeline = Timeline::new(process, &definitions, &TimeWindow::default(), &mut blocks);
    let stacks = stacks::write(stacks?, number, &definitions, &timeline.who)?;
    let exported = timeline.write(&mut |_, _| {})?;
    blocks.finish()?;
    Ok([
        exported.allocations,
        stacks,
        samples::write(samples?, number, trace.header().start_unix_ns, watched, &state)?,
        summary::write_holders(holders?, number, &rank)?,
        summary::write(summary?, number, &rank, &state)?,
    ])
}

/// `None`: not known.
fn numbered(number: u32) -> Option<u32> {
    (number != 0).then_some(number)
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Driver => "driver",
        Level::Tensor => "block",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TraceBuilder;

    #[test]
    fn processes_of_a_rank_lie_together() {
        let scratch = tempfile::tempdir().unwrap();
        let made = [(Some(8), Some(0), 20), (Some(7), Some(0), 10), (None, None, 15)];
        let traces: Vec<Trace> = made
            .into_iter()
            .enumerate()
            .map(|(index, (run, rank, start_s))| {
                let mut builder = TraceBuilder::new();
                builder.header.run = run;
                builder.header.rank = rank;
                builder.header.start_unix_ns = start_s * 1_000_000_000;
                let path = scratch.path().join(format!("{index}.vtrace"));
                std::fs::write(&path, builder.bytes()).unwrap();
                crate::trace::open(&path).unwrap()
            })
            .collect();
        assert_eq!(run_of(&traces), "run=19700101T000010Z-0000000000000007");
        assert_eq!(run_of(&traces[2..]), "run=19700101T000015Z");
        assert_eq!(parts(&traces), [(0, 0), (0, 1), (-1, 0)]);
    }
}
