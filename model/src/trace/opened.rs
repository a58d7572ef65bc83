//! One opened trace: its bytes, header, data ranges and damage.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use vramtrace_format::{Damage, DamageKind, Events, Header, Stamped, TraceReader};

use super::{Bytes, Definitions, HostFiles};

/// What a trace is made of. Of a running process, it has what was written when it was opened.
#[derive(Debug)]
pub struct Opened {
    pub path: PathBuf,
    pub bytes: Box<dyn Bytes>,
    /// Byte ranges with data. The rest was erased.
    pub data: Vec<Range<u64>>,
    pub header: Header,
    pub running: bool,
    /// Its process was killed, and its last events are in memory of this host alone.
    pub tail_in_memory: bool,
    /// `None`: libraries and notebooks that it names are not opened.
    pub files: Option<Arc<dyn HostFiles>>,
    /// The damage that was found so far.
    pub damage: Vec<Damage>,
}

/// An opened trace.
#[derive(Debug)]
pub struct Trace {
    opened: Opened,
    damage: Mutex<DamageFound>,
    /// The number of times that its events were decoded from the first one on.
    decodes: AtomicU32,
    /// Host and pid of each process of the run.
    run: Arc<HashSet<(String, u32)>>,
}

/// Damaged parts of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DamageFound {
    /// In the order in which they were found.
    pub ranges: Vec<Damage>,
    /// Records that the recorder had not finished when it was killed. They are no damage.
    pub unfinished: u64,
    /// Events of a newer recorder, which were skipped.
    pub unknown: u64,
    /// Definitions of a newer recorder, which were skipped.
    pub unknown_definitions: u64,
}

impl DamageFound {
    /// The damage after all or some of the events were read.
    pub(crate) fn of(reader: &TraceReader, events: &Events) -> DamageFound {
        DamageFound {
            ranges: [reader.damage(), events.damage()].concat(),
            unfinished: events.unfinished(),
            unknown: events.unknown(),
            unknown_definitions: 0,
        }
    }

    /// Bytes of all damaged parts.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|damage| damage.bytes).sum()
    }

    /// Adds damage. Damage at the same place counts once.
    fn add(&mut self, found: &DamageFound) {
        let known: HashSet<Damage> = self.ranges.iter().copied().collect();
        self.ranges.extend(found.ranges.iter().filter(|range| !known.contains(range)));
        self.unfinished = self.unfinished.max(found.unfinished);
        self.unknown = self.unknown.max(found.unknown);
        self.unknown_definitions = self.unknown_definitions.max(found.unknown_definitions);
    }
}

impl Trace {
    pub fn new(mut opened: Opened) -> Trace {
        let ranges = std::mem::take(&mut opened.damage);
        let damage = Mutex::new(DamageFound { ranges, ..DamageFound::default() });
        Trace { opened, damage, decodes: AtomicU32::new(0), run: Arc::default() }
    }

    /// Releases the memory that the mapped pages take in this process. The kernel reads them again when
    /// needed, so that a thousand opened traces are not in memory at once.
    pub fn release(&self) {
        self.opened.bytes.release();
    }

    pub fn path(&self) -> &Path {
        &self.opened.path
    }

    /// The same trace under the name of the file from which it was imported.
    pub fn shown_as(mut self, path: &Path) -> Trace {
        self.opened.path = path.to_path_buf();
        self
    }

    /// The same trace as one of a run: host and pid of each of its processes.
    pub fn of_run(self, run: Arc<HashSet<(String, u32)>>) -> Trace {
        Trace { run, ..self }
    }

    /// Whether the run has a process with this pid on the host of this one.
    pub fn is_of_run(&self, pid: u32) -> bool {
        self.run.contains(&(self.header().host.clone(), pid))
    }

    pub fn header(&self) -> &Header {
        &self.opened.header
    }

    /// Its process was running when the trace was opened.
    pub fn is_running(&self) -> bool {
        self.opened.running
    }

    /// Its process was killed, and its last events are in memory of this host alone: in the user's directory there.
    pub fn tail_in_memory(&self) -> bool {
        self.opened.tail_in_memory
    }

    /// Byte ranges with data. The rest was erased.
    pub fn data(&self) -> &[Range<u64>] {
        &self.opened.data
    }

    /// Bytes of the file, holes included.
    pub fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Bytes of the file without holes: written and not erased.
    pub fn data_bytes(&self) -> u64 {
        self.opened.data.iter().map(|range| range.end - range.start).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.opened.bytes
    }

    /// Time from which on no event is missing, ns since the start. 0: none is missing.
    pub fn history_from_ns(&self) -> u64 {
        self.reader().map_or(0, |reader| reader.history_from_ns())
    }

    /// A reader of the mapped bytes. `None`: the header page was damaged after the trace was opened.
    pub fn reader(&self) -> Option<TraceReader<'_>> {
        TraceReader::sparse(self.bytes(), &self.opened.data).ok()
    }

    /// Calls `visit` for every event, in file order.
    pub fn for_each_event(&self, visit: &mut dyn FnMut(&Stamped)) {
        self.count_decode();
        let Some(reader) = self.reader() else { return };
        let mut events =
            if self.opened.running { reader.tail(Default::default()) } else { reader.events() };
        for stamped in &mut events {
            visit(&stamped);
        }
        self.note_damage(&DamageFound::of(&reader, &events));
    }

    pub(crate) fn count_decode(&self) {
        self.decodes.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of times that its events were decoded so far. Tests bound it.
    pub fn decodes(&self) -> u32 {
        self.decodes.load(Ordering::Relaxed)
    }

    /// All damage that was found so far.
    pub fn damage(&self) -> DamageFound {
        let mut found = self.damage.lock().map(|found| found.clone()).unwrap_or_default();
        // Somebody cut the file while it was read.
        if let Some(offset) = self.opened.bytes.cut_at() {
            let bytes = self.len().saturating_sub(offset);
            found.ranges.push(Damage { offset, bytes, kind: DamageKind::Cut });
        }
        found
    }

    /// The damage of a missing tail: the events of the last second may be missing.
    pub fn missing_tail(&self) -> Option<Damage> {
        self.damage().ranges.into_iter().find(|damage| damage.kind.is_of_tail())
    }

    pub(crate) fn note_damage(&self, found: &DamageFound) {
        if let Ok(mut known) = self.damage.lock() {
            known.add(found);
        }
    }

    /// All definitions, and the damage in them.
    pub fn definitions(&self) -> (Definitions, Vec<Damage>) {
        let mut all = Definitions::of(self.opened.files.clone());
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
