//! Copies a trace, or adds to one: definitions behind its windows.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use vramtrace_format::window::slot_offset;
use vramtrace_format::{Definition, HEADER_BYTES, Header, SLOT, TraceReader};

use super::own::{check_own, header_of};
use super::{Trace, TraceWriter, WriterMemory};
use crate::files::{Access, Directory};

/// Adds definitions to the file of an ended trace. Nothing that is in it changes. An error if its process runs, if
/// others may have written the file, or if it changed since this was opened.
pub fn append(trace: &Trace, definitions: &[Definition]) -> io::Result<()> {
    if trace.is_running() {
        return Err(io::Error::other("its process is running"));
    }
    let (directory, name) = Directory::of(trace.path())?;
    let file = directory.open(name, Access::Write)?;
    check_own(&file)?;
    if file.metadata()?.len() != trace.len()
        || header_of(&file)?.file_tag() != trace.header().file_tag()
    {
        return Err(io::Error::other("it changed since it was read"));
    }
    write_behind(trace, definitions, &file)
}

/// Writes this trace into an empty file: every byte as it is, but for secrets of the command line,
/// holes as holes, and behind them the definitions, in windows of their own.
pub fn copy_with(trace: &Trace, definitions: &[Definition], out: &File) -> io::Result<()> {
    for range in trace.data() {
        let bytes = &trace.bytes()[range.start as usize..range.end as usize];
        out.write_all_at(bytes, range.start)?;
    }
    out.set_len(trace.len())?;
    let reader = TraceReader::sparse(trace.bytes(), trace.data()).map_err(io::Error::other)?;
    // Older recorders wrote all of the command line.
    let (command, written) = (&trace.header().command, reader.header());
    if written.command != *command {
        let masked = Header { command: command.clone(), ..written.clone() };
        out.write_all_at(&masked.to_page(), 0)?;
    }
    write_behind(trace, definitions, out)
}

/// Writes definitions behind the windows of `out`, which holds this trace.
fn write_behind(trace: &Trace, definitions: &[Definition], out: &File) -> io::Result<()> {
    if definitions.is_empty() {
        return Ok(());
    }
    let reader = TraceReader::sparse(trace.bytes(), trace.data()).map_err(io::Error::other)?;
    let last = reader.definition_windows().last();
    let all = || reader.event_windows().iter().chain(reader.definition_windows());
    // A file may end inside its last window.
    let ends = all().map(|window| window.offset + window.header.bytes() as u64);
    let end = ends.max().unwrap_or(0).max(trace.len()).max(slot_offset(0));
    let slot = (end - HEADER_BYTES as u64).div_ceil(SLOT as u64);
    let slot = u32::try_from(slot).map_err(io::Error::other)?;
    let sequence = last.map_or(0, |window| window.header.sequence.saturating_add(1));
    // The header page may be broken: the windows are right.
    let tag = all().next().map_or(reader.header().file_tag(), |window| window.header.file);
    let memory = WriterMemory::default();
    let mut to = TraceWriter::behind(&memory, out.try_clone()?, tag, slot, sequence);
    definitions.iter().try_for_each(|definition| to.define(definition))?;
    to.finish().map(drop)
}
