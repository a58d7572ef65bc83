//! The lines of a running process that hold memory: a thread reads its growing trace repeatedly.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use vramtrace_reader::analysis::{
    GroupBy, Holdings, Level, Moment, Process, StackClassifier, autograd,
};
use vramtrace_reader::replay::Until;
use vramtrace_reader::symbols::{FREE_CACHE, Symbols};
use vramtrace_reader::trace::Trace;
use vramtrace_reader::units::clean;

use super::inside::{self, Inside};

/// One line of the program, with the live bytes and allocations that it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub name: String,
    pub library: String,
    pub bytes: u64,
    pub count: u64,
    /// Change of `bytes` since the process was opened in `top`.
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

/// A thread that reads the trace until this is dropped.
pub struct LineReader {
    pub pid: u32,
    known: Arc<Mutex<(Lines, Inside)>>,
    is_left: Arc<AtomicBool>,
}

/// Shortest pause between two readings. After a long reading the pause is four times its duration.
const REST: Duration = Duration::from_secs(1);

impl LineReader {
    pub fn of(pid: u32, trace: PathBuf) -> LineReader {
        let known = Arc::new(Mutex::new((Lines::Reading, Inside::default())));
        let is_left = Arc::new(AtomicBool::new(false));
        let (into, left) = (known.clone(), is_left.clone());
        std::thread::spawn(move || {
            let mut first: Option<FxHashMap<String, u64>> = None;
            while !left.load(Relaxed) {
                let began = Instant::now();
                let mut now = read(&trace);
                if let Lines::Known(lines) = &mut now {
                    compare(lines, first.get_or_insert_with(|| by_name(lines)));
                }
                // Roles need two more passes: the lines are published first.
                let has_lines = matches!(now, Lines::Known(_));
                into.lock().unwrap_or_else(PoisonError::into_inner).0 = now;
                if has_lines && let Ok(trace) = Trace::open(&trace) {
                    let inside = inside::read(&trace, &trace.definitions().0, Until::End);
                    into.lock().unwrap_or_else(PoisonError::into_inner).1 = inside;
                }
                let until = Instant::now() + REST.max(began.elapsed() * 4);
                while Instant::now() < until && !left.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        });
        LineReader { pid, known, is_left }
    }

    pub fn latest(&self) -> (Lines, Inside) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for LineReader {
    fn drop(&mut self) {
        self.is_left.store(true, Relaxed);
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
            let (name, library) = (name.clone(), String::new());
            lines.push(Line { name, library, bytes: 0, count: 0, grew });
        }
    }
    lines.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
}

/// The holders at the end of the trace as far as it is written.
pub(super) fn read(path: &Path) -> Lines {
    match Trace::open(path) {
        Ok(trace) => holders_at(&trace, Moment::End),
        Err(error) => Lines::None(format!("{}: {error}", path.display())),
    }
}

pub(super) fn holders_at(trace: &Trace, moment: Moment) -> Lines {
    let process = Process::read(trace, moment);
    if process.definitions.stacks().is_empty() {
        return Lines::None(
            "the trace has no stacks: VRAMTRACE_STACKS=native,python records them".into(),
        );
    }
    let level = Level::of(&process.state);
    let holdings = Holdings::of_state(&process.state, level);
    let symbols = Symbols::of(&process.definitions, &process.header, holdings.stacks());
    let classifier = StackClassifier::new(&symbols, &process.header);
    // One line may hold memory of several devices.
    let mut lines: FxHashMap<String, Line> = FxHashMap::default();
    for holder in classifier.holders(&holdings, GroupBy::Line) {
        let name = match classifier.frame(holder.stack, holder.lead) {
            _ if holder.stack == FREE_CACHE => "PyTorch cache (free)".to_string(),
            None => "(no frames)".to_string(),
            Some(frame) => {
                let function = autograd::display_name(&frame.function);
                let place = frame.place().map(|place| format!("{place} ")).unwrap_or_default();
                clean(&format!("{place}{function}"))
            }
        };
        let library = holder.library.clone().unwrap_or_default();
        let line = lines.entry(name.clone()).or_insert(Line {
            name,
            library,
            bytes: 0,
            count: 0,
            grew: 0,
        });
        line.bytes = line.bytes.saturating_add(holder.bytes);
        line.count = line.count.saturating_add(holder.count);
    }
    Lines::Known(lines.into_values().collect())
}
