//! Draws one process: its figures, the lines that hold its memory, what it is for, how full its segments are.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line as Text;
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, Wrap};
use vramtrace_reader::units::{count, size};

use super::columns::Column;
use super::draw::{BOLD, DIM, GOOD, WARN, begin, curve};
use super::growth::{Line, Lines};
use super::inside;
use super::row::Row;
use super::state::{State, View};

pub fn process(frame: &mut Frame, state: &State, pid: u32, area: Rect) {
    let Some(row) = state.row_of(pid) else {
        frame.render_widget(Paragraph::new(format!("pid {pid} has ended")).style(WARN), area);
        return;
    };
    let figures = figures(row, area.width);
    let curve_rows = if area.height >= 20 { 2 } else { 0 };
    let [head, curve_area, body] = Layout::vertical([
        Constraint::Length(1 + figures.len() as u16),
        Constraint::Length(curve_rows),
        Constraint::Min(1),
    ])
    .areas(area);
    let rank = row.rank().map_or(String::new(), |rank| format!(", rank {rank}"));
    let user = if row.user.is_empty() { String::new() } else { format!(", {}", row.user) };
    let name = format!("pid {pid}{rank}{user}  {}", row.full_name());
    let mut lines = vec![Text::styled(begin(&name, area.width.into()), BOLD)];
    lines.extend(figures.into_iter().map(Text::raw));
    frame.render_widget(Paragraph::new(lines), head);
    if curve_rows > 0 {
        let most = row.history.iter().copied().max().unwrap_or(0);
        let one = Rect { height: 1, ..curve_area };
        curve(frame, &row.history, most, DIM, one);
    }
    match &state.lines {
        Lines::Reading => {
            frame.render_widget(Paragraph::new("reading its trace").style(DIM), body);
        }
        Lines::None(why) => without_lines(frame, row, why, body),
        Lines::Known(_) => below(frame, state, body),
    }
}

/// The figures of a process, by the words of the list, in as many lines as they need.
fn figures(row: &Row, width: u16) -> Vec<String> {
    use Column::{Cap, Counted, Live, Peak, Refused, Util};
    let named = |column: Column| format!("{} {}", column.heading(), column.cell(row));
    let mut parts = match row.page {
        Some(_) => vec![named(Counted)],
        None => vec![format!("by NVML {}", Counted.cell(row))],
    };
    let others = [Cap, Live, Peak, Refused, Util].into_iter();
    let others = others.filter(|column| row.page.is_some() || *column == Util);
    parts.extend(others.filter(|column| column.cell(row) != "-").map(named));
    match (Column::Rate.cell(row), Column::Full.cell(row)) {
        (rate, _) if rate == "-" => {}
        (rate, _) if rate == "?" => parts.push("not judged yet".into()),
        (rate, full) => parts.push(format!("GROWING {rate} MiB/min, full in {full}")),
    }
    let mut lines = vec![String::new()];
    for part in parts {
        let line = lines.last_mut().map_or(0, |line| line.chars().count());
        if line > 0 && line + 2 + part.chars().count() > width.into() {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            let comma = if line.is_empty() { "" } else { ", " };
            line.push_str(&format!("{comma}{part}"));
        }
    }
    lines
}

/// Roles, lines and the map below each other.
fn below(frame: &mut Frame, state: &State, area: Rect) {
    let mut roles = inside::roles(&state.inside, area.width.into());
    roles.truncate(4);
    let rest = area.height.saturating_sub(roles.len() as u16);
    let lines = state.listed_lines().len() as u16 + 2;
    // The map gets what the lines do not need, and half at least.
    let map_rows = match state.inside.rows() {
        0 => 0,
        many if rest >= 8 => (rest / 2).max(rest.saturating_sub(lines)).min(many as u16 + 1),
        _ => 0,
    };
    let [role_area, body, map_area] = Layout::vertical([
        Constraint::Length(roles.len() as u16),
        Constraint::Min(1),
        Constraint::Length(map_rows),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(roles), role_area);
    table(frame, state, body);
    if map_rows > 1 {
        let map = inside::map(&state.inside, map_rows.into(), map_area.width.into());
        frame.render_widget(Paragraph::new(map), map_area);
    }
}

fn table(frame: &mut Frame, state: &State, area: Rect) {
    let is_opened = matches!(state.view, View::Process(_));
    // A narrow one has the names instead of the counts.
    let counts = area.width >= 70;
    let taken = if counts { 11 + 13 + 8 + 3 } else { 11 + 13 + 2 };
    let room = usize::from(area.width.saturating_sub(taken));
    let line = |line: &&Line| {
        let (grew, style) = match line.grew {
            0 => (String::new(), DIM),
            more @ 1.. => (format!("+{}", size(more as u64)), WARN),
            less => (format!("-{}", size(less.unsigned_abs())), GOOD),
        };
        let mut cells = vec![Cell::from(size(line.bytes)), Cell::from(grew).style(style)];
        cells.extend(counts.then(|| Cell::from(count(line.count))));
        cells.push(Cell::from(begin(&line.name, room)));
        TableRow::new(cells)
    };
    let lines = state.listed_lines();
    if lines.is_empty() {
        let words = match state.compares {
            true => "no line holds more or less than when it was opened; d: all lines",
            false => "nothing is held",
        };
        return frame.render_widget(Paragraph::new(words).style(DIM), area);
    }
    let since = if is_opened { "since opened" } else { "" };
    let name = match state.compares {
        true => "line < its caller, only what changed",
        false => "line < its caller",
    };
    let (mut widths, mut heads) = (vec![11, 13], vec!["held", since]);
    if counts {
        widths.push(8);
        heads.push("count");
    }
    heads.push(name);
    let widths = widths.into_iter().map(Constraint::Length).chain([Constraint::Min(10)]);
    let table = Table::new(lines.iter().skip(state.scrolled).map(line), widths)
        .header(TableRow::new(heads).style(DIM));
    frame.render_widget(table, area);
}

/// A process without a readable trace: the reason, and the largest call sites of its live page by library.
fn without_lines(frame: &mut Frame, row: &Row, why: &str, area: Rect) {
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
    let table = Table::new(libraries.iter().map(line), widths)
        .header(TableRow::new(["held", "count", "library, by its largest call sites"]).style(DIM));
    frame.render_widget(table, body);
}
