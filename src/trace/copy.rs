//! Copies a trace, or adds to one: definitions behind its windows.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use vramtrace_format::window::slot_offset;
use vramtrace_format::{Definition, HEADER_BYTES, Header, SLOT, TraceReader};

use super::own::{check_own, header_of};
use super::{Trace, TraceWriter, WriterMemory};
use crate::files::{Access, Directory};

impl Trace {
    /// Adds definitions to the file of an ended trace. Nothing that is in it changes. An error if its process runs, if
    /// others may have written the file, or if it changed since this was opened.
    pub fn append(&self, definitions: &[Definition]) -> io::Result<()> {
        if self.is_running() {
            return Err(io::Error::other("its process is running"));
        }
        let (directory, name) = Directory::of(self.path())?;
        let file = directory.open(name, Access::Write)?;
        check_own(&file)?;
        if file.metadata()?.len() != self.len()
            || header_of(&file)?.file_tag() != self.header().file_tag()
        {
            return Err(io::Error::other("it changed since it was read"));
        }
        self.write_behind(definitions, &file)
    }

    /// Writes this trace into an empty file: every byte as it is, but for secrets of the command line,
    /// holes as holes, and behind them the definitions, in windows of their own.
    pub fn copy_with(&self, definitions: &[Definition], out: &File) -> io::Result<()> {
        for range in self.data() {
            let bytes = &self.bytes()[range.start as usize..range.end as usize];
            out.write_all_at(bytes, range.start)?;
        }
        out.set_len(self.len())?;
        self.mask_command(out)?;
        self.write_behind(definitions, out)
    }

    /// Writes definitions behind the windows of `out`, which holds this trace.
    fn write_behind(&self, definitions: &[Definition], out: &File) -> io::Result<()> {
        if definitions.is_empty() {
            return Ok(());
        }
        let reader = TraceReader::sparse(self.bytes(), self.data()).map_err(io::Error::other)?;
        let last = reader.definition_windows().last();
        let all = || reader.event_windows().iter().chain(reader.definition_windows());
        // A file may end inside its last window.
        let ends = all().map(|window| window.offset + window.header.bytes() as u64);
        let end = ends.max().unwrap_or(0).max(self.len()).max(slot_offset(0));
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

    /// Older recorders wrote all of the command line.
    fn mask_command(&self, out: &File) -> io::Result<()> {
        let reader = TraceReader::sparse(self.bytes(), self.data()).map_err(io::Error::other)?;
        let (command, written) = (&self.header().command, reader.header());
        if written.command != *command {
            let masked = Header { command: command.clone(), ..written.clone() };
            out.write_all_at(&masked.to_page(), 0)?;
        }
        Ok(())
    }
}
