//! One trace file.

use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use memmap2::{Advice, Mmap, UncheckedAdvice};
use vramtrace_format::{
    Damage, DamageKind, Error, Events, Header, Stamped, TraceReader, proc, secrets,
};

use super::Definitions;
use super::holes::data_ranges;
use super::tail::Tail;

/// A mapped trace, finished or as far as it had been written when it was opened.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    map: Option<Mmap>,
    /// The map is of the file alone: its pages can be read again.
    of_file: bool,
    /// Where it holds data: the rest was erased.
    data: Vec<Range<u64>>,
    header: Header,
    running: bool,
    /// What was found broken in what was read so far.
    damage: Mutex<DamageFound>,
}

/// Broken parts of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DamageFound {
    /// In the order in which they were met.
    pub ranges: Vec<Damage>,
    /// Records that the recorder began and did not finish (it was killed): no damage.
    pub unfinished: u64,
    /// Events of a newer recorder, passed over; and definitions.
    pub unknown: u64,
    pub unknown_definitions: u64,
}

impl DamageFound {
    /// After the events were read, or some of them.
    pub(crate) fn of(reader: &TraceReader, events: &Events) -> DamageFound {
        DamageFound {
            ranges: [reader.damage(), events.damage()].concat(),
            unfinished: events.unfinished(),
            unknown: events.unknown(),
            unknown_definitions: 0,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|damage| damage.bytes).sum()
    }

    /// The same place counts once, however often it was met.
    fn add(&mut self, found: &DamageFound) {
        let new = found.ranges.iter().filter(|range| !self.ranges.contains(range));
        let new: Vec<Damage> = new.copied().collect();
        self.ranges.extend(new);
        self.unfinished = self.unfinished.max(found.unfinished);
        self.unknown = self.unknown.max(found.unknown);
        self.unknown_definitions = self.unknown_definitions.max(found.unknown_definitions);
    }
}

impl Trace {
    /// Maps the file and reads its header page.
    pub fn open(path: &Path) -> Result<Trace, OpenError> {
        // A FIFO would wait for a writer.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(OpenError::NotAFile);
        }
        let map = match meta.len() {
            // An empty mapping is another error: the reader's message is better.
            0 => None,
            // SAFETY: recorders write to a trace and never make it shorter. Words that change while
            // we read are seen old or new; each record carries its check.
            _ => Some(unsafe { Mmap::map(&file) }?),
        };
        if let Some(map) = &map {
            // A hint: nothing depends on it.
            let _ = map.advise(Advice::Sequential);
        }
        let mut data = data_ranges(&file)?;
        let mut header = match TraceReader::sparse(map.as_deref().unwrap_or_default(), &data) {
            Ok(reader) => reader.header().clone(),
            Err(error) => Tail::header_beside(path).ok_or(error)?,
        };
        // Older recorders wrote all of it.
        header.command = secrets::mask(header.command);
        let running = is_running(&header);
        // Before the trace: a window that leaves the tail is in the trace.
        let tail = Tail::of(path, &header);
        let mut damage = DamageFound::default();
        if header.has_tail && tail.is_none() && !running {
            // Killed, and its tail is not here: its last second may be missing.
            let offset = file.metadata()?.len();
            damage.ranges.push(Damage { offset, bytes: 0, kind: DamageKind::TailMissing });
        }
        let of_file = tail.is_none();
        let map = match tail {
            Some(tail) => {
                data = data_ranges(&file)?;
                Some(tail.over(&file, &mut data)?)
            }
            None => map,
        };
        let damage = Mutex::new(damage);
        let path = path.to_path_buf();
        let trace = Trace { path, map, of_file, data, header, running, damage };
        trace.release();
        Ok(trace)
    }

    /// Lets go of the memory that its pages take in this process. They are read again where needed:
    /// who opens a thousand traces has no thousand of them in memory.
    pub fn release(&self) {
        if let (Some(map), true) = (&self.map, self.of_file) {
            // SAFETY: a shared map of a file, only read. Its pages come back from the file.
            let _ = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Under the name of the file that it was made of.
    pub fn shown_as(mut self, path: &Path) -> Trace {
        self.path = path.to_path_buf();
        self
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Its process was running when the trace was opened.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Where it holds data; the rest was erased.
    pub(super) fn data(&self) -> &[Range<u64>] {
        &self.data
    }

    /// Bytes of the file, holes included.
    pub fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Bytes of it that hold data: what the recorder wrote and did not let go.
    pub fn data_bytes(&self) -> u64 {
        self.data.iter().map(|range| range.end - range.start).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// From when on every event is there. 0: from the start.
    pub fn history_from_ns(&self) -> u64 {
        self.reader().map_or(0, |reader| reader.history_from_ns())
    }

    /// Over the mapped bytes. `None`: the header page was damaged since the trace was opened.
    pub(crate) fn reader(&self) -> Option<TraceReader<'_>> {
        TraceReader::sparse(self.bytes(), &self.data).ok()
    }

    /// Every event, in file order.
    pub fn for_each_event(&self, visit: &mut dyn FnMut(&Stamped)) {
        let Some(reader) = self.reader() else { return };
        let mut events =
            if self.running { reader.tail(Default::default()) } else { reader.events() };
        for stamped in &mut events {
            visit(&stamped);
        }
        self.note_damage(&DamageFound::of(&reader, &events));
    }

    /// What was found broken in all that was read of it so far.
    pub fn damage(&self) -> DamageFound {
        self.damage.lock().map(|found| found.clone()).unwrap_or_default()
    }

    /// Its last second may be missing: its process was killed, and its tail is not here.
    pub(crate) fn missing_tail(&self) -> Option<Damage> {
        self.damage().ranges.into_iter().find(|damage| damage.kind == DamageKind::TailMissing)
    }

    pub(crate) fn note_damage(&self, found: &DamageFound) {
        if let Ok(mut known) = self.damage.lock() {
            known.add(found);
        }
    }

    /// All definitions, and what of them is broken.
    pub fn definitions(&self) -> (Definitions, Vec<Damage>) {
        let mut all = Definitions::default();
        let Some(reader) = self.reader() else { return (all, Vec::new()) };
        let mut definitions = reader.definitions();
        for definition in &mut definitions {
            all.add(definition);
        }
        let damage = definitions.damage().to_vec();
        let ranges = [reader.damage(), &damage].concat();
        let unknown_definitions = definitions.unknown();
        self.note_damage(&DamageFound { ranges, unknown_definitions, ..DamageFound::default() });
        (all, damage)
    }
}

/// Why a file could not be opened as a trace.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("not a regular file")]
    NotAFile,
    #[error("{0}")]
    Format(#[from] Error),
}

/// Does the process that writes the trace run, here? Pids are reused: its start must match too.
pub(super) fn is_running(header: &Header) -> bool {
    if header.pid == 0 || header.host != host_name() {
        return false;
    }
    proc::is_alive(header.pid, header.process_start_ticks)
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string()
}
