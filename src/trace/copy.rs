//! Copies a trace and appends definitions.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use vramtrace_format::window::{WINDOW_HEADER, slot_offset};
use vramtrace_format::{
    Appended, Define, Definition, HEADER_BYTES, Header, SLOT, ThreadId, TraceReader, WindowHeader,
    WindowKind, WindowWriter,
};

use super::Trace;

impl Trace {
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
    pub(super) fn write_behind(&self, definitions: &[Definition], out: &File) -> io::Result<()> {
        if definitions.is_empty() {
            return Ok(());
        }
        let mut windows = Windows::behind(self)?;
        let mut rest = definitions.iter().map(Define::new);
        let mut next = rest.next();
        while next.is_some() {
            let words: Vec<_> = (0..SLOT / 8).map(|_| AtomicU64::new(0)).collect();
            let header = windows.next();
            let window = WindowWriter::begin(&words, header);
            while let Some(define) = &mut next
                && window.define(ThreadId(0), 0, define) != Appended::Full
            {
                next = rest.next();
            }
            window.close();
            let bytes = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
            let bytes: Vec<u8> = bytes.collect();
            let (begin, rest) = bytes.split_at(WINDOW_HEADER);
            // Readers find a window by its beginning: it is written last.
            let place = slot_offset(header.slot.into());
            out.write_all_at(rest, place + WINDOW_HEADER as u64)?;
            out.write_all_at(begin, place)?;
        }
        Ok(())
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

/// The next places in the grid.
struct Windows {
    slot: u32,
    sequence: u64,
    file: u64,
}

impl Windows {
    fn behind(trace: &Trace) -> io::Result<Windows> {
        let reader = TraceReader::sparse(trace.bytes(), trace.data()).map_err(io::Error::other)?;
        let last = reader.definition_windows().last();
        let all = || reader.event_windows().iter().chain(reader.definition_windows());
        // A file may end inside its last window.
        let ends = all().map(|window| window.offset + window.header.bytes() as u64);
        let end = ends.max().unwrap_or(0).max(trace.len()).max(slot_offset(0));
        let slots = (end - HEADER_BYTES as u64).div_ceil(SLOT as u64);
        Ok(Windows {
            slot: u32::try_from(slots).map_err(io::Error::other)?,
            sequence: last.map_or(0, |window| window.header.sequence.saturating_add(1)),
            // The header page may be broken: the windows are right.
            file: all().next().map_or(reader.header().file_tag(), |window| window.header.file),
        })
    }

    fn next(&mut self) -> WindowHeader {
        let header = WindowHeader {
            kind: WindowKind::Definitions,
            slots: 1,
            sequence: self.sequence,
            slot: self.slot,
            base_time_ns: 0,
            file: self.file,
        };
        self.slot += 1;
        self.sequence += 1;
        header
    }
}
