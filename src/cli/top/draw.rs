//! Draws the state on a terminal of 60 columns or more.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Sparkline, Table, TableState, Wrap};
use vramtrace_reader::units::{count, gib, size};

use super::growth::{Line, Lines};
use super::inside;
use super::state::{Card, NO_PROCESS, Row, State, View, card_name, cells, total};

const DIM: Style = Style::new().fg(Color::DarkGray);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const GOOD: Style = Style::new().fg(Color::Green);
const WARN: Style = Style::new().fg(Color::Yellow);

pub fn draw(frame: &mut Frame, state: &State) {
    let cards = state.cards.len().min(8) as u16 * 2;
    let [head, cards, _, body, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(cards),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(title(state), head);
    for (card, at) in state.cards.values().zip(0u16..) {
        if at * 2 + 1 < cards.height {
            draw_card(frame, card, Rect { y: cards.y + at * 2, height: 2, ..cards });
        }
    }
    match state.view {
        View::List => processes(frame, state, body),
        View::Process(pid) => process(frame, state, pid, body),
    }
    frame.render_widget(Paragraph::new(help(state)), keys);
}

fn title(state: &State) -> Paragraph<'static> {
    let mut parts = vec![Span::styled("vramtrace top", BOLD)];
    parts.push(Span::raw(format!("   sorted by {}", state.sort.name())));
    if !state.filter.is_empty() {
        parts.push(Span::styled(format!("   filter: {}", state.filter), WARN));
    }
    if state.is_paused {
        parts.push(Span::styled("   PAUSED", WARN));
    }
    Paragraph::new(Text::from(parts))
}

/// Two lines: figures, and bytes in use over time. 100 % is the sum of the caps, or the card if that is less.
fn draw_card(frame: &mut Frame, card: &Card, area: Rect) {
    let [figures, curve] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
    let smaller = |cap: &u64| *cap > 0 && (*cap < card.total || card.total == 0);
    let limit = card.cap.filter(smaller).unwrap_or(card.total);
    // Without a limit that is known there is no percentage.
    let part = if limit > 0 { card.used as f64 * 100.0 / limit as f64 } else { 0.0 };
    let percent = match part {
        _ if limit == 0 => String::new(),
        part if part > 999.0 => " (over 999 %)".into(),
        part => format!(" ({part:.0} %)"),
    };
    let style = match part {
        part if part >= 95.0 => BAD,
        part if part >= 80.0 => WARN,
        _ => Style::new(),
    };
    let name = format!("{}  ", card_name(card));
    let used = format!("{}{percent}", gib(card.used));
    let cap = card.cap.filter(|cap| *cap > 0);
    let capped = cap.map_or(String::new(), |cap| format!(", capped at {}", gib(cap)));
    let refused = match card.refused {
        0 => String::new(),
        many => format!(", {} refused", count(many)),
    };
    let total = format!(" of {}", total(card));
    // Without room for both, the cap stays: the percentage refers to it.
    let long: usize = [&name, &used, &total, &capped, &refused].map(|part| part.len()).iter().sum();
    let fits = long <= figures.width.into() || cap.is_none();
    let parts = vec![
        Span::styled(name, BOLD),
        Span::styled(used, style),
        Span::raw(if fits { total } else { String::new() }),
        Span::raw(capped),
        Span::styled(refused, BAD),
    ];
    frame.render_widget(Paragraph::new(Text::from(parts)), figures);
    let width = usize::from(curve.width);
    let skipped = card.history.len().saturating_sub(width);
    let shown: Vec<u64> = card.history.iter().skip(skipped).copied().collect();
    frame.render_widget(Sparkline::default().data(&shown).max(limit.max(1)).style(style), curve);
}

/// Cuts a name at the end: its beginning (script, file and line) identifies it.
fn begin(name: &str, most: usize) -> String {
    match name.chars().count() > most {
        true => name.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        false => name.to_string(),
    }
}

fn processes(frame: &mut Frame, state: &State, area: Rect) {
    let rows = state.rows();
    if rows.is_empty() {
        let words =
            if state.filter.is_empty() { NO_PROCESS } else { "no process matches the filter" };
        frame.render_widget(Paragraph::new(words).style(DIM), area);
        return;
    }
    let wide = area.width >= 78;
    let columns = |all: [String; 7]| {
        let [pid, rank, devices, used, live, cap, refused] = all;
        // Of a narrow terminal the program's name has the room of the allocated bytes and the devices.
        match wide {
            true => vec![pid, rank, devices, used, live, cap, refused],
            false => vec![pid, rank, used, cap, refused],
        }
    };
    let names = ["pid", "rank", "GPU", "in use", "allocated", "cap", "refused"].map(String::from);
    let mut head = columns(names);
    head.push("program".into());
    let widths: &[u16] = match wide {
        true => &[8, 4, 5, 11, 11, 11, 7],
        false => &[8, 4, 11, 11, 7],
    };
    let taken: u16 = widths.iter().map(|width| width + 1).sum();
    let room = area.width.saturating_sub(taken + 2);
    let line = |row: &&Row| {
        let name =
            if row.recorded { row.name.clone() } else { format!("{} (not recorded)", row.name) };
        let style = if row.refused > 0 { BAD } else { Style::new() };
        let mut all: Vec<Cell> = columns(cells(row)).into_iter().map(Cell::from).collect();
        if let Some(refused) = all.last_mut() {
            *refused = Cell::from(count(row.refused)).style(style);
        }
        all.push(Cell::from(begin(&name, room.into())));
        TableRow::new(all)
    };
    let constraints = widths.iter().copied().map(Constraint::Length);
    let table = Table::new(rows.iter().map(line), constraints.chain([Constraint::Min(10)]))
        .header(TableRow::new(head).style(DIM))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .highlight_symbol("> ");
    let chosen = rows.iter().position(|row| Some(row.pid) == state.chosen);
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(chosen));
}

/// One process: which lines hold memory, and how much more than when it was opened; what it is for; how
/// full its segments are.
fn process(frame: &mut Frame, state: &State, pid: u32, area: Rect) {
    let known = matches!(state.lines, Lines::Known(_));
    let mut roles = inside::roles(&state.inside, area.width.into());
    roles.truncate(if known { 4 } else { 0 });
    let role_rows = roles.len() as u16;
    // Lines get half of the remaining rows, the map the other half.
    let rest = area.height.saturating_sub(2 + role_rows) / 2;
    let map_rows = match state.inside.rows() {
        0 => 0,
        many if known && rest >= 4 => rest.min(many as u16 + 1),
        _ => 0,
    };
    let line_rows = match &state.lines {
        Lines::Known(lines) => Constraint::Max(lines.len() as u16 + 2),
        _ => Constraint::Min(1),
    };
    let [head, role_area, body, map_area, _] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(role_rows),
        line_rows,
        Constraint::Length(map_rows),
        Constraint::Fill(1),
    ])
    .areas(area);
    let Some(row) = state.row_of(pid) else {
        frame.render_widget(Paragraph::new(format!("pid {pid} has ended")).style(WARN), area);
        return;
    };
    let rank = row.rank.map_or(String::new(), |rank| format!(", rank {rank}"));
    let figures = format!(
        "in use {}, of which allocated {}, refused {}",
        gib(row.used),
        gib(row.live),
        count(row.refused)
    );
    let name = begin(&format!("pid {pid}{rank}  {}", row.name), area.width.into());
    let lines = vec![Text::styled(name, BOLD), Text::raw(figures)];
    frame.render_widget(Paragraph::new(lines), head);
    let lines = match &state.lines {
        Lines::Reading => {
            return frame.render_widget(Paragraph::new("reading its trace").style(DIM), body);
        }
        Lines::None(why) => {
            return without_lines(frame, state, pid, why, body);
        }
        Lines::Known(lines) => lines,
    };
    let room = usize::from(area.width.saturating_sub(11 + 13 + 8 + 3));
    let line = |line: &Line| {
        let (grew, style) = match line.grew {
            0 => (String::new(), DIM),
            more @ 1.. => (format!("+{}", size(more as u64)), WARN),
            less => (format!("-{}", size(less.unsigned_abs())), GOOD),
        };
        TableRow::new([
            Cell::from(size(line.bytes)),
            Cell::from(grew).style(style),
            Cell::from(count(line.count)),
            Cell::from(begin(&line.name, room)),
        ])
    };
    let widths = [11, 13, 8].map(Constraint::Length).into_iter().chain([Constraint::Min(10)]);
    let table = Table::new(lines.iter().map(line), widths)
        .header(TableRow::new(["held", "since opened", "count", "line"]).style(DIM));
    frame.render_widget(table, body);
    frame.render_widget(Paragraph::new(roles), role_area);
    if map_rows > 1 {
        let map = inside::map(&state.inside, map_rows.into(), map_area.width.into());
        frame.render_widget(Paragraph::new(map), map_area);
    }
}

/// A process without a readable trace: the reason, and the largest call sites of its live page by library.
fn without_lines(frame: &mut Frame, state: &State, pid: u32, why: &str, area: Rect) {
    let [reason, body] = Layout::vertical([Constraint::Length(2), Constraint::Min(0)]).areas(area);
    let words = Paragraph::new(why).style(WARN).wrap(Wrap { trim: true });
    frame.render_widget(words, reason);
    let libraries = state.libraries_of(pid);
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

fn help(state: &State) -> Text<'static> {
    if state.is_typing {
        return Text::from(vec![
            Span::styled(format!("/{}", state.filter), BOLD),
            Span::styled("   Enter keeps it, Esc clears it", DIM),
        ]);
    }
    let keys: &[(&str, &str)] = match state.view {
        View::List => {
            &[("q", "quit"), ("Enter", "open"), ("s", "sort"), ("/", "filter"), ("p", "pause")]
        }
        View::Process(_) => &[("q", "quit"), ("Esc", "back"), ("p", "pause")],
    };
    let words = keys.iter().flat_map(|(key, what)| {
        [Span::styled(*key, BOLD), Span::styled(format!(" {what}   "), DIM)]
    });
    Text::from(words.collect::<Vec<_>>())
}
