//! Writes a trace file from begin to end, for traces that the recorder did not write.
//!
//! ```no_run
//! # use vramtrace_reader::trace::{TraceWriter, WriterMemory};
//! # use vramtrace_format::{Event, Header, ThreadId};
//! let memory = WriterMemory::default();
//! let file = std::fs::File::create("run.vtrace")?;
//! let mut trace = TraceWriter::begin(&memory, file, &Header::default())?;
//! trace.event(ThreadId(1), 0, &Event::Ended)?;
//! trace.finish()?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use vramtrace_format::window::WINDOW_HEADER;
use vramtrace_format::{
    Appended, Define, Definition, Event, HEADER_BYTES, Header, SLOT, ThreadId, WindowHeader,
    WindowKind, WindowWriter, slot_offset,
};

/// The windows that a [`TraceWriter`] fills, one of each kind at a time.
#[derive(Debug)]
pub struct WriterMemory {
    events: Box<[AtomicU64]>,
    definitions: Box<[AtomicU64]>,
}

impl Default for WriterMemory {
    fn default() -> WriterMemory {
        let window = || (0..SLOT / 8).map(|_| AtomicU64::new(0)).collect();
        WriterMemory { events: window(), definitions: window() }
    }
}

/// Writes a trace. Events and definitions may be given in any order: readers take the definitions first.
#[derive(Debug)]
pub struct TraceWriter<'m> {
    file: File,
    /// The number by which windows refer to their file.
    tag: u64,
    next_slot: u32,
    events: Stream<'m>,
    definitions: Stream<'m>,
    bytes: Vec<u8>,
}

/// The windows of one kind.
#[derive(Debug)]
struct Stream<'m> {
    words: &'m [AtomicU64],
    sequence: u64,
    open: Option<WindowWriter<'m>>,
}

impl<'m> TraceWriter<'m> {
    /// Writes the header page. The file must be empty; `header.uuid` should be the file's own.
    pub fn begin(
        memory: &'m WriterMemory,
        file: File,
        header: &Header,
    ) -> io::Result<TraceWriter<'m>> {
        file.write_all_at(&header.to_page(), 0)?;
        Ok(TraceWriter::behind(memory, file, header.file_tag(), 0, 0))
    }

    /// Writes behind the windows of a trace: from a slot on, definitions with this sequence number on.
    pub(super) fn behind(
        memory: &'m WriterMemory,
        file: File,
        tag: u64,
        next_slot: u32,
        sequence: u64,
    ) -> TraceWriter<'m> {
        TraceWriter {
            file,
            tag,
            next_slot,
            events: Stream { words: &memory.events, sequence: 0, open: None },
            definitions: Stream { words: &memory.definitions, sequence, open: None },
            bytes: Vec::with_capacity(SLOT),
        }
    }

    pub fn event(&mut self, thread: ThreadId, time_ns: u64, event: &Event) -> io::Result<()> {
        loop {
            let window = self.window(WindowKind::Events, time_ns)?;
            match window.append(thread, time_ns, event) {
                Appended::At { .. } => return Ok(()),
                Appended::Full => self.close(WindowKind::Events)?,
            }
        }
    }

    pub fn define(&mut self, definition: &Definition) -> io::Result<()> {
        let mut define = Define::new(definition);
        loop {
            let window = self.window(WindowKind::Definitions, 0)?;
            match window.define(ThreadId(0), 0, &mut define) {
                Appended::At { .. } => return Ok(()),
                Appended::Full => self.close(WindowKind::Definitions)?,
            }
        }
    }

    /// Writes the open windows. The file's length is a whole number of slots.
    pub fn finish(mut self) -> io::Result<File> {
        self.close(WindowKind::Definitions)?;
        self.close(WindowKind::Events)?;
        let length = slot_offset(u64::from(self.next_slot)).max(HEADER_BYTES as u64);
        self.file.set_len(length)?;
        Ok(self.file)
    }

    /// The open window of this kind; a new one, whose first record has this time, if none is.
    fn window(&mut self, kind: WindowKind, time_ns: u64) -> io::Result<&WindowWriter<'m>> {
        let stream = match kind {
            WindowKind::Events => &mut self.events,
            WindowKind::Definitions => &mut self.definitions,
        };
        if stream.open.is_none() {
            let header = WindowHeader {
                kind,
                slots: 1,
                sequence: stream.sequence,
                slot: self.next_slot,
                base_time_ns: time_ns,
                file: self.tag,
            };
            self.next_slot =
                self.next_slot.checked_add(1).ok_or(io::Error::other("the trace is too long"))?;
            stream.sequence += 1;
            stream.open = Some(WindowWriter::begin(stream.words, header));
        }
        stream.open.as_ref().ok_or(io::Error::other("no window"))
    }

    /// Writes the open window of this kind to its place, and clears its memory.
    fn close(&mut self, kind: WindowKind) -> io::Result<()> {
        let stream = match kind {
            WindowKind::Events => &mut self.events,
            WindowKind::Definitions => &mut self.definitions,
        };
        let Some(window) = stream.open.take() else { return Ok(()) };
        window.close();
        self.bytes.clear();
        for word in stream.words {
            self.bytes.extend(word.swap(0, Ordering::Relaxed).to_ne_bytes());
        }
        // Readers find a window by its beginning: it is written last.
        let (place, (begin, rest)) =
            (slot_offset(window.header().slot.into()), self.bytes.split_at(WINDOW_HEADER));
        self.file.write_all_at(rest, place + WINDOW_HEADER as u64)?;
        self.file.write_all_at(begin, place)
    }
}

#[cfg(test)]
mod tests {
    use vramtrace_format::{Alloc, SiteId, Space, StackId, TraceReader};

    use super::*;

    #[test]
    fn many_windows_read_back_in_order() {
        let memory = WriterMemory::default();
        let file = tempfile::tempfile().unwrap();
        let header = Header { uuid: *b"sixteen random !", ..Header::default() };
        let mut trace = TraceWriter::begin(&memory, file, &header).unwrap();
        let alloc = |n: u64| {
            Event::Alloc(Alloc {
                key: n << 9,
                space: Space::Block,
                size: n,
                site: SiteId(1),
                stack: StackId(0),
                requested: None,
            })
        };
        let note = |n: u64| Definition::Note { text: format!("{n} {}", "x".repeat(300)) };
        // Some hours apart: stamps wrap at 19.
        let time = |n: u64| n * 3_600_000_000_000 / 1_000;
        for n in 0..30_000 {
            trace.event(ThreadId(1), time(n), &alloc(n)).unwrap();
            if n % 20 == 0 {
                trace.define(&note(n)).unwrap();
            }
        }
        // Longer than any record.
        let long = Definition::Note { text: "y".repeat(20_000) };
        trace.define(&long).unwrap();
        let file = trace.finish().unwrap();
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let reader = TraceReader::new(&bytes).unwrap();
        let mut events = reader.events();
        for n in 0..30_000 {
            let at = events.next().unwrap();
            assert_eq!((at.event, at.time_ns), (alloc(n), time(n) & !63));
        }
        assert!(events.next().is_none() && events.damage().is_empty());
        let mut definitions = reader.definitions();
        let all: Vec<Definition> = definitions.by_ref().collect();
        assert_eq!(all.len(), 1_501);
        assert_eq!((&all[1], &all[1_500]), (&note(20), &long));
        assert!(definitions.damage().is_empty() && reader.damage().is_empty());
        assert!(reader.event_windows().len() > 3, "{}", reader.event_windows().len());
    }

    #[test]
    fn a_trace_without_anything_is_a_trace() {
        let memory = WriterMemory::default();
        let file = tempfile::tempfile().unwrap();
        let trace = TraceWriter::begin(&memory, file, &Header::default()).unwrap();
        let file = trace.finish().unwrap();
        assert_eq!(file.metadata().unwrap().len(), HEADER_BYTES as u64);
    }
}
