//! The lines of a running process that hold memory: a thread reads its growing trace repeatedly.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustc_hash::FxHashMap;
use vramtrace_format::Header;
use vramtrace_reader::analysis::roles::RoleLearner;
use vramtrace_reader::analysis::{GroupBy, Holdings, Level, StackClassifier, with_cause};
use vramtrace_reader::replay::{Follower, GrowingReplay, Observer, State};
use vramtrace_reader::report::text::stack::place;
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::{Definitions, OpenError, Trace};

use super::inside::{self, Inside};
use crate::live_processes::background::Background;

/// A line and the program's line that called it, with the live bytes and allocations that it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub name: String,
    pub bytes: u64,
    pub count: u64,
    /// Change of `bytes` since the process was opened.
    pub grew: i64,
}

/// The result of the latest reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Lines {
    #[default]
    Reading,
    Known(Vec<Line>),
    /// Why there are none.
    None(String),
}

/// A thread that reads the trace of the process until this is dropped.
pub struct LineReader {
    pub pid: u32,
    known: Background<(Lines, Inside)>,
}

/// Shortest pause between two readings.
const REST: Duration = Duration::from_secs(1);

impl LineReader {
    pub fn of(pid: u32, trace: PathBuf) -> LineReader {
        let mut reading = GrowingTrace::default();
        let next = move || match reading.read(&trace) {
            Ok(read) => read,
            Err(error) => (Lines::None(format!("{}: {error}", trace.display())), Inside::default()),
        };
        LineReader { pid, known: Background::start(Default::default(), REST, next) }
    }

    pub fn latest(&self) -> (Lines, Inside) {
        self.known.latest()
    }
}

pub(super) fn by_name(lines: &[Line]) -> FxHashMap<String, u64> {
    lines.iter().map(|line| (line.name.clone(), line.bytes)).collect()
}

/// Sets `grew` of each line, and adds lines of `first` that hold nothing now. Sorts by bytes.
pub(super) fn compare(lines: &mut Vec<Line>, first: &FxHashMap<String, u64>) {
    for line in lines.iter_mut() {
        let before = first.get(&line.name).copied().unwrap_or(0);
        line.grew =
            line.bytes.saturating_sub(before) as i64 - before.saturating_sub(line.bytes) as i64;
    }
    for (name, before) in first.iter().filter(|(_, before)| **before > 0) {
        if !lines.iter().any(|line| line.name == *name) {
            let grew = -(*before as i64);
            lines.push(Line { name: name.clone(), bytes: 0, count: 0, grew });
        }
    }
    lines.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
}

/// What was read of the trace of a running process. Each reading goes on where the last one ended.
#[derive(Default)]
pub(super) struct GrowingTrace {
    replay: GrowingReplay,
    roles: Roles,
}

/// Collects what the roles follow from.
#[derive(Default)]
struct Roles {
    learner: RoleLearner,
    header: Header,
}

impl Follower for Roles {
    fn on_definitions(&mut self, definitions: &Definitions) {
        self.learner.add_new_stacks(definitions, &self.header);
    }

    fn observer(&mut self) -> impl Observer {
        self.learner.observer()
    }
}

impl GrowingTrace {
    /// The number of events that were read.
    #[cfg(test)]
    pub fn events(&self) -> u64 {
        self.replay.state().events
    }

    /// The holders and the roles at the end of the trace as far as it is written.
    pub fn read(&mut self, path: &Path) -> Result<(Lines, Inside), OpenError> {
        let trace = Trace::open(path)?;
        if self.roles.header.uuid != trace.header().uuid {
            *self = GrowingTrace::default();
        }
        self.roles.header = trace.header().clone();
        if !self.replay.read(&trace, &mut self.roles) {
            *self = GrowingTrace::default();
            self.roles.header = trace.header().clone();
            self.replay.read(&trace, &mut self.roles);
        }
        let (definitions, state) = (self.replay.definitions(), self.replay.state());
        let lines = lines(definitions, trace.header(), state);
        let inside = match lines {
            Lines::Known(_) => inside::of(state, &self.roles.learner),
            _ => Inside::default(),
        };
        Ok((lines, inside))
    }
}

/// The holders in a state.
pub(super) fn lines(definitions: &Definitions, header: &Header, state: &State) -> Lines {
    if definitions.stacks().is_empty() {
        return Lines::None(
            "the trace has no stacks: VRAMTRACE_STACKS=native,python records them".into(),
        );
    }
    let holdings = Holdings::of_state(state, Level::of(state));
    let symbols = Symbols::of(definitions, header, holdings.stacks());
    let classifier = StackClassifier::new(&symbols, header);
    // One line may hold memory of several devices.
    let mut lines: FxHashMap<String, Line> = FxHashMap::default();
    let holders = classifier.holders(&holdings, GroupBy::Line);
    // What is free in a cache is no holder: it is shown among the roles.
    for holder in holders.into_iter().filter(|holder| !holder.stack.is_free_cache()) {
        let name = place(&holder.stack).unwrap_or_else(|| "(no frames)".into());
        let name = with_cause(holder.driver_memory, name);
        let line = lines.entry(name.clone()).or_insert(Line { name, bytes: 0, count: 0, grew: 0 });
        line.bytes = line.bytes.saturating_add(holder.bytes);
        line.count = line.count.saturating_add(holder.count);
    }
    Lines::Known(lines.into_values().collect())
}
