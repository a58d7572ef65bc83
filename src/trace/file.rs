//! One trace file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::{Advice, Mmap};
use vramtrace_format::reader::Run;
use vramtrace_format::{Damage, Error, Header, Stamped, TraceReader};

use super::Definitions;
use super::holes::data_ranges;
use crate::replay::{Observer, Replay, State};

/// A mapped trace, finished or as far as it had been written when it was opened.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    map: Option<Mmap>,
    /// Where it holds data: the rest was punched out.
    data: Vec<Range<u64>>,
    header: Header,
    living: bool,
}

/// Told now and then while a long trace is read: bytes read of how many.
pub type Progress<'p> = &'p mut dyn FnMut(u64, u64);

/// How far to replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    End,
    /// Up to and with the event at this file offset.
    Offset(u64),
    /// Up to the last event not later than this, ns since start.
    Time(u64),
}

/// Broken parts of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DamageFound {
    /// In the order in which they were met.
    pub ranges: Vec<Damage>,
    /// Records that the recorder began and did not finish (it was killed): no damage.
    pub unfinished: u64,
    /// Records of a newer recorder, passed over.
    pub unknown: u64,
}

impl DamageFound {
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|damage| damage.bytes).sum()
    }
}

/// What replaying a trace gave.
#[derive(Clone, Debug)]
pub struct Reading {
    pub state: State,
    pub damage: DamageFound,
}

impl Trace {
    /// Maps the file and reads its header page.
    pub fn open(path: &Path) -> Result<Trace, OpenError> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(OpenError::NotAFile);
        }
        let map = match meta.len() {
            // An empty mapping is an error of its own: the reader says it better.
            0 => None,
            // SAFETY: recorders only append to a trace and never make it shorter. Words that
            // change while we read are seen old or new; each record carries its check.
            _ => Some(unsafe { Mmap::map(&file) }?),
        };
        if let Some(map) = &map {
            // A hint: nothing depends on it.
            let _ = map.advise(Advice::Sequential);
        }
        let data = data_ranges(&file)?;
        let header =
            TraceReader::sparse(map.as_deref().unwrap_or_default(), &data)?.header().clone();
        let living = is_running(&header);
        Ok(Trace { path: path.to_path_buf(), map, data, header, living })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Its process was running when the trace was opened.
    pub fn is_living(&self) -> bool {
        self.living
    }

    /// Where it holds data; the rest was punched out.
    pub(super) fn data(&self) -> &[Range<u64>] {
        &self.data
    }

    /// Bytes of the file, holes included.
    pub fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// All definitions, and what of them is broken.
    pub fn definitions(&self) -> (Definitions, Vec<Damage>) {
        let mut all = Definitions::default();
        let Ok(reader) = TraceReader::sparse(self.bytes(), &self.data) else {
            return (all, Vec::new());
        };
        let mut definitions = reader.definitions();
        for definition in &mut definitions {
            all.add(definition);
        }
        let damage = definitions.damage().to_vec();
        (all, damage)
    }

    /// Replays every event.
    pub fn replay(&self, definitions: &Definitions, observer: &mut impl Observer) -> Reading {
        self.replay_until(definitions, Until::End, observer, &mut |_, _| {})
    }

    /// The state at the end from a late checkpoint on, looked for in that many bytes of events
    /// first: as good as a whole replay for what is live, for peaks and for counts, and quick on
    /// a long trace. `None`: no checkpoint tells enough, or the trace is still written.
    pub fn replay_recent(&self, definitions: &Definitions, bytes: u64) -> Option<State> {
        let reader = TraceReader::sparse(self.bytes(), &self.data).ok().filter(|_| !self.living)?;
        let run = *reader.runs().last()?;
        let windows = reader.event_windows().get(run.first..run.first + run.count)?;
        let mut wanted = bytes.max(1);
        loop {
            let (mut first, mut found) = (windows.len(), 0);
            while first > 0 && found < wanted {
                first -= 1;
                found += windows[first].header.bytes() as u64;
            }
            if first == 0 {
                return None;
            }
            let recent = Run { first: run.first + first, count: windows.len() - first, ..run };
            let mut replay = Replay::new();
            replay.gap();
            for at in reader.events_of(&recent) {
                replay.apply(definitions, &at, &mut ());
            }
            replay.finish();
            if replay.state().live_is_known() {
                return Some(replay.into_state());
            }
            wanted = wanted.saturating_mul(2);
        }
    }

    /// Shows the state at each of several places, by its index, in the order in which they come.
    pub fn visit(
        &self,
        definitions: &Definitions,
        stops: &[Until],
        visit: &mut dyn FnMut(usize, &State),
    ) {
        self.visit_watching(definitions, stops, &mut (), visit);
    }

    /// The same, and an observer follows up to the last of them.
    pub fn visit_watching(
        &self,
        definitions: &Definitions,
        stops: &[Until],
        observer: &mut impl Observer,
        visit: &mut dyn FnMut(usize, &State),
    ) {
        self.replay_with(definitions, stops, observer, &mut |_, _| {}, visit);
    }

    /// Replays up to a place.
    pub fn replay_until(
        &self,
        definitions: &Definitions,
        until: Until,
        observer: &mut impl Observer,
        progress: Progress,
    ) -> Reading {
        self.replay_with(definitions, &[until], observer, progress, &mut |_, _| {})
    }

    /// Replays up to the last of some places.
    fn replay_with(
        &self,
        definitions: &Definitions,
        stops: &[Until],
        observer: &mut impl Observer,
        progress: Progress,
        visit: &mut dyn FnMut(usize, &State),
    ) -> Reading {
        let mut damage = DamageFound::default();
        let mut replay = Replay::new();
        let mut stops: Vec<(usize, Until)> = stops.iter().copied().enumerate().collect();
        // It was readable when it was opened.
        let Ok(reader) = TraceReader::sparse(self.bytes(), &self.data) else {
            return Reading { state: replay.into_state(), damage };
        };
        damage.ranges.extend_from_slice(reader.damage());
        let mut gaps = reader
            .runs()
            .iter()
            .filter(|run| run.after_gap)
            .filter_map(|run| reader.event_windows().get(run.first))
            .map(|window| window.offset)
            .peekable();
        let mut events =
            if self.living { reader.tail(Default::default()) } else { reader.events() };
        let mut next_progress = 0;
        for at in &mut events {
            if stops.iter().any(|(_, stop)| stop.is_before(&at)) {
                stops.retain(|(index, stop)| {
                    let reached = stop.is_before(&at);
                    if reached {
                        visit(*index, replay.state());
                    }
                    !reached
                });
                if stops.is_empty() {
                    break;
                }
            }
            while gaps.next_if(|offset| *offset <= at.offset).is_some() {
                replay.gap();
            }
            if at.offset >= next_progress {
                progress(at.offset, self.len());
                next_progress = at.offset + PROGRESS_STEP;
            }
            replay.apply(definitions, &at, observer);
        }
        damage.ranges.extend_from_slice(events.damage());
        damage.unfinished = events.unfinished();
        damage.unknown = events.unknown();
        replay.finish();
        for (index, _) in stops {
            visit(index, replay.state());
        }
        Reading { state: replay.into_state(), damage }
    }
}

impl Until {
    fn is_before(&self, at: &Stamped) -> bool {
        match *self {
            Until::End => false,
            Until::Offset(offset) => at.offset > offset,
            Until::Time(time_ns) => at.time_ns > time_ns,
        }
    }
}

/// Bytes between two calls of a [`Progress`].
const PROGRESS_STEP: u64 = 4 << 20;

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
fn is_running(header: &Header) -> bool {
    if header.pid == 0 || header.host != host_name() {
        return false;
    }
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{}/stat", header.pid)) else {
        return false;
    };
    // The name, field 2, may hold spaces and parentheses: what follows the last ')' is field 3.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next();
    let start = fields.nth(18).and_then(|ticks| ticks.parse().ok());
    !matches!(state, Some("Z" | "X")) && start == Some(header.process_start_ticks)
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string()
}
