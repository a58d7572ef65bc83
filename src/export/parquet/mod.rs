//! Exports traces to Parquet files, for DuckDB, Spark and data frames: a directory of tables, partitioned by run and
//! rank. docs/parquet.md names the columns.
//!
//! Each trace is read twice, and twice more for roles where it has blocks of a framework; as many traces at a time as there
//! are cores. Memory for a trace is bounded by the live set, nine bytes for each allocation (18 where it has
//! blocks), the stacks, and the rows of a row group.

mod events;
mod lives;
mod partition;
mod place;
mod samples;
mod series;
mod stacks;
mod summary;
mod table;
mod tables;
mod watched;

use std::fs::File;
use std::io;
use std::path::Path;

use vramtrace_format::{Kind, Stamped};

use super::owners::Owners;
use super::requester::who_of;
use super::roles::KnownRoles;
use crate::analysis::ranks::ProcessFigures;
use crate::analysis::{Level, parallel};
use crate::files::Directory;
use crate::replay::Until;
use crate::symbols::Symbols;
use crate::trace::Trace;
use events::{EventWriter, Known};
use lives::Lives;
use partition::{Partition, partitions};
use place::Place;
pub use tables::{Rows, Table, TablesWanted};
use watched::Watched;

/// Writes the wanted tables into the directory `to`, which must not exist or be empty. It exists only when it is complete.
pub fn export(
    traces: &[Trace],
    wanted: &TablesWanted,
    to: &Path,
    progress: parallel::Progress,
) -> io::Result<Rows> {
    let place = Place::new(to)?;
    let all: Vec<&Trace> = traces.iter().collect();
    let partitions = partitions(traces, wanted.run.as_deref());
    let written = parallel::each(&all, progress, |index, trace, done| {
        Process { trace, partition: &partitions[index], wanted, to: place.directory() }.write(done)
    });
    let mut rows = Rows::default();
    for of_process in written {
        rows.iter_mut().zip(of_process?).for_each(|(sum, rows)| *sum += rows);
    }
    place.keep()?;
    Ok(rows)
}

/// The tables of one process.
struct Process<'a> {
    trace: &'a Trace,
    partition: &'a Partition,
    wanted: &'a TablesWanted,
    to: &'a Directory,
}

impl Process<'_> {
    /// `None`: the table is not wanted.
    fn file(&self, table: Table) -> io::Result<Option<File>> {
        if !self.wanted.has(table) {
            return Ok(None);
        }
        let [run, rank, file] = self.partition.names();
        let table = self.to.own_directory(table.name().as_ref())?;
        let of_run = table.own_directory(run.as_ref())?;
        of_run.own_directory(rank.as_ref())?.create(file.as_ref()).map(Some)
    }

    fn write(&self, progress: &mut dyn FnMut(u64, u64)) -> io::Result<Rows> {
        let mut rows = Rows::default();
        let (trace, process) = (self.trace, self.partition.process);
        let (definitions, _) = trace.definitions();
        let wanted = |table| self.wanted.has(table);
        let mut watched = wanted(Table::Samples).then(Watched::new);
        let mut lives = wanted(Table::Blocks).then(Lives::default);
        let mut observers = (watched.as_mut(), lives.as_mut());
        let (rank, state) = ProcessFigures::replayed_with(trace, None, &mut observers, progress);
        if let Some(file) = self.file(Table::Summary)? {
            rows[Table::Summary as usize] = summary::write(file, process, &rank, &state)?;
        }
        if let Some(file) = self.file(Table::Holders)? {
            rows[Table::Holders as usize] = summary::write_holders(file, process, &rank)?;
        }
        if let (Some(file), Some(watched)) = (self.file(Table::Samples)?, watched) {
            let start = trace.header().start_unix_ns;
            let history = state.history.as_deref();
            let written = samples::write(file, process, start, watched, history, state.time_ns)?;
            rows[Table::Samples as usize] = written;
        }
        let has_roles = definitions.sites().any(|site| site.kind == Some(Kind::Block));
        let named = wanted(Table::Stacks) || wanted(Table::Blocks) && has_roles;
        let symbols = named.then(|| Symbols::of_all(&definitions, trace.header()));
        if let (Some(file), Some(symbols)) = (self.file(Table::Stacks)?, &symbols) {
            let who = who_of(&definitions, trace, symbols, true);
            rows[Table::Stacks as usize] = stacks::write(file, process, &definitions, &who)?;
        }
        let files = (self.file(Table::Events)?, self.file(Table::Blocks)?);
        if let (None, None) = files {
            return Ok(rows);
        }
        let symbols = symbols.as_ref().filter(|_| has_roles && wanted(Table::Blocks));
        let roles = symbols.map(|symbols| KnownRoles::of(trace, &definitions, symbols));
        let known = Known {
            process,
            lives: lives.unwrap_or_default(),
            roles: roles.unwrap_or_default(),
            owners: Owners::of(trace, &definitions),
            end_ns: state.time_ns,
            definitions,
        };
        let mut writer = EventWriter::new(&known, files.0, files.1)?;
        trace.replay_until(&known.definitions, Until::End, &mut writer, &mut |_, _| {});
        let (events, blocks) = writer.finish()?;
        rows[Table::Events as usize] = events;
        rows[Table::Blocks as usize] = blocks;
        Ok(rows)
    }
}

/// The time of rows: that of the event, or of the one before it where a thread's stamp is slightly less.
#[derive(Clone, Copy, Debug, Default)]
struct Clock(u64);

impl Clock {
    /// ns since the start of the trace.
    fn at(&mut self, at: &Stamped) -> u64 {
        self.0 = self.0.max(at.time_ns);
        self.0
    }
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
