//! One opened trace file: its mapping, header, data ranges and damage.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use vramtrace_format::{
    Damage, DamageKind, Error, Events, HEADER_BYTES, Header, Stamped, TailPlace, TraceReader,
    secrets,
};

use super::holes::data_ranges;
use super::process::{is_running, is_this_host};
use super::tail::Tail;
use super::tail_place::Beside;
use super::{Definitions, compressed};
use crate::files::{self, Map};
use crate::units::size;

/// A mapped trace. Of a running process, it has what was written when it was opened.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    map: Option<Map>,
    /// Byte ranges with data. The rest was erased.
    data: Vec<Range<u64>>,
    header: Header,
    running: bool,
    /// Its process was killed, and its last events are in memory of this host alone.
    tail_in_memory: bool,
    /// Libraries and notebooks that it names are not opened.
    by_other_user: bool,
    /// The damage that was found so far.
    damage: Mutex<DamageFound>,
    /// The number of times that its events were decoded from the first one on.
    decodes: AtomicU32,
}

/// Bytes of data of a trace that [`Trace::open_of`] opens. A recorder writes 2 GiB if it is not told otherwise.
const MOST_OF_USER: u64 = 64 << 30;
/// Of these, bytes of definitions, which are held in memory. Trainings have 1 to 5 MiB.
const MOST_DEFINITIONS: u64 = 64 << 20;

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
    /// Maps the file and reads its header page.
    pub fn open(path: &Path) -> Result<Trace, OpenError> {
        Trace::open_beside(path, &Beside::of(path))
    }

    /// As [`Trace::open`]; `beside`: the directory of the file.
    pub(super) fn open_beside(path: &Path, beside: &Beside) -> Result<Trace, OpenError> {
        let file = files::open(path)?;
        let file = compressed::unpacked(&file)?.unwrap_or(file);
        Trace::of_file(path, file, beside)
    }

    /// The trace of a running process of this user, who may have put anything there: a regular file of that user that is
    /// not compressed, nor reached through a link. Nothing is written for it, and no file that it names is opened for
    /// another user.
    pub fn open_of(owner: u32, path: &Path) -> Result<Trace, OpenError> {
        let file = files::open_of(owner, path)?;
        Trace::of_file(path, file, &Beside::of_user(owner, path))
    }

    fn of_file(path: &Path, file: File, beside: &Beside) -> Result<Trace, OpenError> {
        let length = file.metadata()?.len();
        // An empty mapping is another error: the reader's message is better.
        let map = (length > 0).then(|| Map::of(&file)).transpose()?;
        if let Some(map) = &map {
            map.read_in_order();
        }
        let mut data = data_ranges(&file)?;
        let owner = beside.owner;
        let bytes: u64 = data.iter().map(|range| range.end - range.start).sum();
        if owner.is_some() && bytes > MOST_OF_USER {
            return Err(io::Error::other(format!("has more than {}", size(MOST_OF_USER))).into());
        }
        let mut header = match TraceReader::sparse(map.as_deref().unwrap_or_default(), &data) {
            Ok(reader) if owner.is_some() && reader.definition_bytes() > MOST_DEFINITIONS => {
                let most = format!("has more than {} of definitions", size(MOST_DEFINITIONS));
                return Err(io::Error::other(most).into());
            }
            Ok(reader) => reader.header().clone(),
            Err(error) => Tail::header_beside(path, beside).ok_or(error)?,
        };
        // Older recorders wrote the command with its secrets.
        header.command = secrets::mask(header.command);
        let running = is_running(&header);
        // The tail is read before the trace's ranges: a window that leaves the tail is in the trace.
        let tail = Tail::of(path, &file, beside, &header);
        let mut damage = DamageFound::default();
        if tail.is_none()
            && let Some(kind) = missing(&header, running)
        {
            let offset = file.metadata()?.len();
            damage.ranges.push(Damage { offset, bytes: 0, kind });
        }
        let tail_in_memory = !running && tail.as_ref().is_some_and(|tail| tail.in_memory);
        let map = match tail {
            Some(tail) => {
                let stray = |offset: &u64| Damage {
                    offset: *offset,
                    bytes: 0,
                    kind: DamageKind::StrayWindow,
                };
                damage.ranges.extend(tail.impossible.iter().map(stray));
                data = data_ranges(&file)?;
                Some(tail.over(&file, &mut data)?)
            }
            None => map,
        };
        // SAFETY: has no arguments and always succeeds.
        let by_other_user = owner.is_some_and(|owner| owner != unsafe { libc::geteuid() });
        let (damage, decodes) = (Mutex::new(damage), AtomicU32::new(0));
        let path = path.to_path_buf();
        let trace = Trace {
            path,
            map,
            data,
            header,
            running,
            tail_in_memory,
            by_other_user,
            damage,
            decodes,
        };
        trace.release();
        Ok(trace)
    }

    /// When the process of a trace started, by the header page alone.
    pub(super) fn started_unix_ns(path: &Path) -> Option<u64> {
        let mut page = [0; HEADER_BYTES];
        let read = compressed::begin(path, &mut page)
            .or_else(|_| files::open(path)?.read_exact_at(&mut page, 0));
        match read.map(|()| TraceReader::new(&page)) {
            Ok(Ok(reader)) if reader.damage().is_empty() => Some(reader.header().start_unix_ns),
            // Its header page may be in its tail.
            _ => Some(Trace::open(path).ok()?.header().start_unix_ns),
        }
    }

    /// Releases the memory that the mapped pages take in this process. The kernel reads them again when
    /// needed, so that a thousand opened traces are not in memory at once.
    pub fn release(&self) {
        self.map.iter().for_each(Map::release);
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same trace under the name of the file from which it was imported.
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

    /// Its process was killed, and its last events are in memory of this host alone: in the user's directory there.
    pub fn tail_in_memory(&self) -> bool {
        self.tail_in_memory
    }

    /// Byte ranges with data. The rest was erased.
    pub(super) fn data(&self) -> &[Range<u64>] {
        &self.data
    }

    /// Bytes of the file, holes included.
    pub fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Bytes of the file without holes: written and not erased.
    pub fn data_bytes(&self) -> u64 {
        self.data.iter().map(|range| range.end - range.start).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// Time from which on no event is missing, ns since the start. 0: none is missing.
    pub fn history_from_ns(&self) -> u64 {
        self.reader().map_or(0, |reader| reader.history_from_ns())
    }

    /// A reader of the mapped bytes. `None`: the header page was damaged after the trace was opened.
    pub(crate) fn reader(&self) -> Option<TraceReader<'_>> {
        TraceReader::sparse(self.bytes(), &self.data).ok()
    }

    /// Calls `visit` for every event, in file order.
    pub fn for_each_event(&self, visit: &mut dyn FnMut(&Stamped)) {
        self.count_decode();
        let Some(reader) = self.reader() else { return };
        let mut events =
            if self.running { reader.tail(Default::default()) } else { reader.events() };
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
        if let Some(offset) = self.map.as_ref().and_then(Map::cut_at) {
            let bytes = self.len().saturating_sub(offset);
            found.ranges.push(Damage { offset, bytes, kind: DamageKind::Cut });
        }
        found
    }

    /// The damage of a missing tail: the events of the last second may be missing.
    pub(crate) fn missing_tail(&self) -> Option<Damage> {
        self.damage().ranges.into_iter().find(|damage| damage.kind.is_of_tail())
    }

    pub(crate) fn note_damage(&self, found: &DamageFound) {
        if let Ok(mut known) = self.damage.lock() {
            known.add(found);
        }
    }

    /// All definitions, and the damage in them.
    pub fn definitions(&self) -> (Definitions, Vec<Damage>) {
        let mut all = Definitions::of(self.by_other_user);
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
    #[error("{0}")]
    Format(#[from] Error),
}

/// What is missing without a tail. `None`: nothing, or nothing yet.
fn missing(header: &Header, running: bool) -> Option<DamageKind> {
    match header.tail? {
        _ if running => None,
        TailPlace::Beside => Some(DamageKind::TailMissing),
        TailPlace::Memory if is_this_host(header) => Some(DamageKind::TailLost),
        TailPlace::Memory => Some(DamageKind::TailElsewhere),
    }
}
