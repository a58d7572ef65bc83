//! The opened process: a thread reads its growing trace repeatedly, for the lines that hold memory and what it is for.

use std::path::PathBuf;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line as Text, Text as Texts};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, Wrap};
use rustc_hash::FxHashMap;
use vramtrace_format::Header;
use vramtrace_reader::analysis::roles::Role;
use vramtrace_reader::analysis::{GroupBy, Holdings, Level, StackClassifier, with_cause};
use vramtrace_reader::replay::State as ReplayState;
use vramtrace_reader::report::text::stack::place;
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::Definitions;
use vramtrace_reader::units::{count, size};

use super::draw::{BOLD, DIM, GOOD, WARN, begin, height_of};
use super::row::{COLUMNS, ProcessRow};
use super::state::State;
use crate::live_processes::background::Background;
use crate::live_processes::followed::{Followed, TraceFigures};
use crate::live_processes::process::user;

/// A line and the program's line that called it, with the live bytes that it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct HolderLine {
    pub name: String,
    pub bytes: u64,
    /// Change of `bytes` since the process was opened.
    pub grew: i64,
}

/// The result of the latest reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Lines {
    #[default]
    Reading,
    Known {
        lines: Vec<HolderLine>,
        /// What the memory is for, largest first.
        roles: Vec<(Role, u64)>,
    },
    /// Why there are none.
    None(String),
}

/// A thread that reads the trace of the process until this is dropped.
pub struct LineReader {
    pub pid: u32,
    known: Background<Lines>,
}

/// Shortest pause between two readings.
const REST: Duration = Duration::from_secs(1);

impl LineReader {
    pub fn of(pid: u32, trace: PathBuf) -> LineReader {
        let mut followed = Followed::with_roles();
        let next = move || {
            while let Some(whole) = followed.read([trace.clone()], user(), |_| true) {
                if whole {
                    return lines(followed.now(), &followed.figures);
                }
            }
            Lines::None(format!("{}: cannot be read", trace.display()))
        };
        LineReader { pid, known: Background::start(Lines::Reading, REST, next) }
    }

    pub fn latest(&self) -> Lines {
        self.known.latest()
    }
}

/// The holders and the roles in a state.
pub(super) fn lines(
    (header, definitions, state): (&Header, &Definitions, &ReplayState),
    figures: &TraceFigures,
) -> Lines {
    if definitions.stacks().is_empty() {
        return Lines::None(
            "the trace has no stacks: VRAMTRACE_STACKS=native,python records them".into(),
        );
    }
    let holdings = Holdings::of_state(state, Level::of(state));
    let symbols = Symbols::of(definitions, header, holdings.stacks());
    let classifier = StackClassifier::new(&symbols, header);
    // One line may hold memory of several devices.
    let mut lines: FxHashMap<String, HolderLine> = FxHashMap::default();
    let holders = classifier.holders(&holdings, GroupBy::Line);
    // What is free in a cache is no holder: it is shown among the roles.
    for holder in holders.into_iter().filter(|holder| !holder.stack.is_free_cache()) {
        let name = place(&holder.stack).unwrap_or_else(|| "(no frames)".into());
        let name = with_cause(holder.driver_memory, name);
        let line = lines.entry(name.clone()).or_insert(HolderLine { name, bytes: 0, grew: 0 });
        line.bytes = line.bytes.saturating_add(holder.bytes);
    }
    let sum = |role: Role| {
        let of_devices = figures.roles.values().map(|roles| roles[role.index()]);
        (role, of_devices.fold(0, u64::saturating_add))
    };
    let mut roles: Vec<(Role, u64)> = Role::ALL.into_iter().map(sum).collect();
    roles.retain(|(_, bytes)| *bytes > 0);
    roles.sort_by_key(|(role, bytes)| (std::cmp::Reverse(*bytes), *role));
    Lines::Known { lines: lines.into_values().collect(), roles }
}

pub(super) fn by_name(lines: &[HolderLine]) -> FxHashMap<String, u64> {
    lines.iter().map(|line| (line.name.clone(), line.bytes)).collect()
}

/// Sets `grew` of each line, and adds lines of `first` that hold nothing now. Sorts by bytes.
pub(super) fn compare(lines: &mut Vec<HolderLine>, first: &FxHashMap<String, u64>) {
    for line in lines.iter_mut() {
        let before = first.get(&line.name).copied().unwrap_or(0);
        line.grew =
            line.bytes.saturating_sub(before) as i64 - before.saturating_sub(line.bytes) as i64;
    }
    for (name, before) in first.iter().filter(|(_, before)| **before > 0) {
        if !lines.iter().any(|line| line.name == *name) {
            let grew = -(*before as i64);
            lines.push(HolderLine { name: name.clone(), bytes: 0, grew });
        }
    }
    lines.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
}

pub fn draw(frame: &mut Frame, state: &State, pid: u32, area: Rect) {
    let Some(row) = state.row_of(pid) else {
        frame.render_widget(Paragraph::new(format!("pid {pid} has ended")).style(WARN), area);
        return;
    };
    let mut head = heading(row);
    if let Lines::Known { roles, .. } = &state.lines {
        head.push_line(in_parts(
            roles.iter().map(|(role, bytes)| format!("{role} {}", size(*bytes))),
        ));
    }
    let rows = head.lines.iter().map(|line| height_of(line, area.width)).sum();
    let [head_area, body] =
        Layout::vertical([Constraint::Length(rows), Constraint::Min(1)]).areas(area);
    frame.render_widget(Paragraph::new(head).wrap(Wrap { trim: true }), head_area);
    match &state.lines {
        Lines::Reading => {
            frame.render_widget(Paragraph::new("reading its trace").style(DIM), body);
        }
        Lines::None(why) => without_lines(frame, row, why, body),
        Lines::Known { lines, .. } if lines.is_empty() => {
            frame.render_widget(Paragraph::new("nothing is held").style(DIM), body);
        }
        Lines::Known { lines, .. } => table(frame, &lines[state.scrolled.min(lines.len())..], body),
    }
}

/// The name and the figures of a process, by the words of the list.
fn heading(row: &ProcessRow) -> Texts<'static> {
    let rank = row.rank().map_or(String::new(), |rank| format!(", rank {rank}"));
    let name = format!("pid {}{rank}, {}  {}", row.pid, row.user, begin(&row.full_name(), 200));
    let is_figure = |heading| !["pid", "user", "rank", "command"].contains(&heading);
    let figures = COLUMNS.iter().filter(|column| is_figure(column.heading));
    let cells = figures.map(|column| (column.heading, column.cell(row)));
    let known = cells.filter(|(_, cell)| cell != "-");
    let figures = in_parts(known.map(|(heading, cell)| format!("{heading} {cell}")));
    Texts::from(vec![Text::styled(name, BOLD), figures])
}

/// Parts that are not divided where a line is.
fn in_parts(parts: impl Iterator<Item = String>) -> Text<'static> {
    let whole = parts.map(|part| part.replace(' ', "\u{a0}"));
    Text::raw(whole.collect::<Vec<_>>().join("   "))
}

fn table(frame: &mut Frame, lines: &[HolderLine], area: Rect) {
    let room = usize::from(area.width.saturating_sub(11 + 13 + 2));
    let line = |line: &HolderLine| {
        let (grew, style) = match line.grew {
            0 => (String::new(), DIM),
            more @ 1.. => (format!("+{}", size(more as u64)), WARN),
            less => (format!("-{}", size(less.unsigned_abs())), GOOD),
        };
        TableRow::new([
            Cell::from(size(line.bytes)),
            Cell::from(grew).style(style),
            Cell::from(begin(&line.name, room)),
        ])
    };
    let widths = [11, 13].map(Constraint::Length).into_iter().chain([Constraint::Min(10)]);
    let heads = ["held", "since opened", "line < its caller"];
    let table = Table::new(lines.iter().map(line), widths);
    frame.render_widget(table.header(TableRow::new(heads).style(DIM)), area);
}

/// A process without a readable trace: the reason, and the largest call sites of its live page by library.
fn without_lines(frame: &mut Frame, row: &ProcessRow, why: &str, area: Rect) {
    let [reason, body] = Layout::vertical([Constraint::Length(2), Constraint::Min(0)]).areas(area);
    let words = Paragraph::new(why).style(WARN).wrap(Wrap { trim: true });
    frame.render_widget(words, reason);
    let libraries = row.libraries();
    if libraries.is_empty() {
        return;
    }
    let line = |(name, bytes, many): &(String, u64, u64)| {
        TableRow::new([size(*bytes), count(*many), name.clone()])
    };
    let widths = [Constraint::Length(11), Constraint::Length(8), Constraint::Min(10)];
    let heads = ["held", "count", "library, by its largest call sites"];
    let table = Table::new(libraries.iter().map(line), widths);
    frame.render_widget(table.header(TableRow::new(heads).style(DIM)), body);
}
