//! Draws the screen on a terminal of 60 columns or more: cards, the list of processes or one of them, questions, keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{
    Block, Cell, Clear, Paragraph, Row as TableRow, Sparkline, Table, TableState, Wrap,
};
use vramtrace_reader::units::{clean, count, gib};

use super::columns::{Column, that_fit};
use super::keys::KEYS;
use super::opened;
use super::row::{Card, Row};
use super::state::{Input, State, View};

pub const DIM: Style = Style::new().fg(Color::DarkGray);
pub const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
pub const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
pub const GOOD: Style = Style::new().fg(Color::Green);
pub const WARN: Style = Style::new().fg(Color::Yellow);

pub const NO_PROCESS: &str =
    "no recorded process of this user is running; start one: vramtrace run python train.py";

/// Rows of the list below which a process is shown, too.
const TALL: u16 = 26;

/// Rows of the cards: figures and a curve, or figures alone where there are many.
fn card_rows(state: &State, height: u16) -> u16 {
    let cards = state.cards.len().min(16) as u16;
    if cards * 2 <= height / 3 { cards * 2 } else { cards.min(height / 3) }
}

/// Whether a screen of this height has room for the chosen process below the list.
pub fn has_panel(state: &State, height: u16) -> bool {
    state.view == View::List && height >= TALL + 4 + card_rows(state, height)
}

pub fn draw(frame: &mut Frame, state: &State) {
    let area = frame.area();
    let last = last_lines(state);
    let rows = card_rows(state, area.height);
    let [head, cards, _, body, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(rows),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(height_of(&last, area.width)),
    ])
    .areas(area);
    frame.render_widget(title(state), head);
    let each = if rows == state.cards.len() as u16 * 2 { 2 } else { 1 };
    for (card, at) in state.cards.values().zip((0u16..).step_by(each.into())) {
        if at + each <= cards.height {
            draw_card(frame, card, Rect { y: cards.y + at, height: each, ..cards });
        }
    }
    match state.view {
        View::Process(pid) => opened::process(frame, state, pid, body),
        View::List if has_panel(state, area.height) => {
            let listed = (state.rows().len() as u16 + 1).clamp(4, body.height / 2);
            let [list, _, panel] = Layout::vertical([
                Constraint::Length(listed),
                Constraint::Length(1),
                Constraint::Min(3),
            ])
            .areas(body);
            processes(frame, state, list);
            if let Some(pid) = state.chosen {
                opened::process(frame, state, pid, panel);
            }
        }
        View::List => {
            let [list, detail] =
                Layout::vertical([Constraint::Min(2), Constraint::Length(1)]).areas(body);
            let left_out = processes(frame, state, list);
            if let Some(row) = state.subject().filter(|_| !left_out.is_empty()) {
                frame.render_widget(rest_of(row, &left_out, detail.width.into()), detail);
            }
        }
    }
    frame.render_widget(Paragraph::new(last).wrap(Wrap { trim: true }), keys);
    if state.input == Input::Help {
        list_of_keys(frame, area);
    }
}

fn title(state: &State) -> Paragraph<'static> {
    let mut parts = vec![Span::styled("vramtrace top", BOLD)];
    parts.push(Span::raw(format!("   sorted by {}", state.sort.heading())));
    if !state.filter.is_empty() {
        parts.push(Span::styled(format!("   filter: {}", state.filter), WARN));
    }
    if state.is_paused {
        parts.push(Span::styled("   PAUSED", WARN));
    }
    if let Some(note) = &state.nvml_note {
        parts.push(Span::styled(format!("   {note}"), DIM));
    }
    Paragraph::new(Text::from(parts))
}

/// ` (40 %)`; nothing where the whole is not known.
fn percent(part: u64, whole: u64) -> String {
    match part as f64 * 100.0 / whole as f64 {
        _ if whole == 0 => String::new(),
        part if part > 999.0 => " (over 999 %)".into(),
        part => format!(" ({part:.0} %)"),
    }
}

/// Figures, and below them the bytes in use over time.
fn draw_card(frame: &mut Frame, card: &Card, area: Rect) {
    let part = |used: u64, of: u64| if of > 0 { used as f64 / of as f64 } else { 0.0 };
    let caps = card.caps();
    let (in_use, counted, total) = (card.in_use(), card.counted(), card.bytes());
    let fullest = part(in_use, total).max(part(counted, caps.unwrap_or(0)));
    let style = match fullest {
        full if full >= 0.95 => BAD,
        full if full >= 0.8 => WARN,
        _ => Style::new(),
    };
    let model = card.facts.as_ref().map_or("", |facts| &facts.name);
    let model = if model.is_empty() { String::new() } else { format!("{}  ", clean(model)) };
    let used = format!("{}{}", gib(in_use), percent(in_use, total));
    let busy = card.utilization().map_or(String::new(), |percent| format!(", busy {percent} %"));
    let capped =
        caps.map_or(String::new(), |cap| format!(", cap {}{}", gib(cap), percent(counted, cap)));
    let refused = match card.refused() {
        0 => String::new(),
        many => format!(", {} refused", count(many)),
    };
    let mut parts = vec![
        Span::styled(format!("{}  ", card.name()), BOLD),
        Span::raw(model),
        Span::styled(used, style),
        Span::raw(format!(" of {}", card.total())),
        Span::raw(busy),
        Span::raw(capped),
        Span::styled(refused, BAD),
    ];
    // Without room for all, the model goes first, then the utilization and the total.
    for least in [1, 4, 3] {
        if parts.iter().map(Span::width).sum::<usize>() > area.width.into() {
            parts[least] = Span::raw("");
        }
    }
    frame.render_widget(Paragraph::new(Text::from(parts)), Rect { height: 1, ..area });
    if area.height > 1 {
        let limit = caps.into_iter().chain([total]).filter(|limit| *limit > 0).min();
        let highest = card.history.iter().copied().max().unwrap_or(0);
        let most = limit.filter(|limit| highest <= *limit).unwrap_or(highest.max(total));
        curve(frame, &card.history, most, style, Rect { y: area.y + 1, height: 1, ..area });
    }
}

/// Values over time, the last one at the right end of what is drawn. `most`: the value of a full cell.
pub fn curve<'v>(
    frame: &mut Frame,
    values: impl IntoIterator<Item = &'v u64>,
    most: u64,
    style: Style,
    area: Rect,
) {
    let values: Vec<u64> = values.into_iter().copied().collect();
    let shown = &values[values.len().saturating_sub(area.width.into())..];
    frame.render_widget(Sparkline::default().data(shown).max(most.max(1)).style(style), area);
}

/// `▁▂▃▄▅▆▇█`: the last values, as many as there is room for.
pub fn curve_text<'v>(
    values: impl DoubleEndedIterator<Item = &'v u64> + Clone,
    width: usize,
) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let high = values.clone().copied().max().unwrap_or(0).max(1);
    let step = |value: &u64| STEPS[(u128::from(*value) * 7 / u128::from(high)) as usize];
    let last: Vec<char> = values.rev().take(width).map(step).collect();
    last.into_iter().rev().collect()
}

/// Cuts a name at the end: its beginning (script, file and line) identifies it.
pub fn begin(name: &str, most: usize) -> String {
    match name.chars().count() > most {
        true => name.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        false => name.to_string(),
    }
}

/// The list. Returns the columns that it has no room for.
fn processes(frame: &mut Frame, state: &State, area: Rect) -> Vec<Column> {
    let rows = state.rows();
    if rows.is_empty() {
        let words =
            if state.filter.is_empty() { NO_PROCESS } else { "no process matches the filter" };
        let words = Paragraph::new(words).wrap(Wrap { trim: true });
        frame.render_widget(words.style(DIM), area);
        return Vec::new();
    }
    let columns = that_fit(area.width, &rows);
    let aligned = |column: Column, text: String| match column.is_number() {
        true => Text::from(text).right_aligned(),
        false => Text::from(text),
    };
    let cell = |row: &Row, (column, width): (Column, u16)| {
        let style = match column {
            Column::Refused | Column::Pid if row.refused() > 0 => BAD,
            Column::Rate | Column::Full if row.verdict.flatten().is_some() => WARN,
            _ if row.page.is_none() => DIM,
            _ => Style::new(),
        };
        let text = match column {
            Column::History => curve_text(row.history.iter(), width.into()),
            _ => begin(&column.cell(row), width.into()),
        };
        Cell::from(aligned(column, text)).style(style)
    };
    let line = |row: &&Row| TableRow::new(columns.iter().map(|column| cell(row, *column)));
    let head = columns.iter().map(|(column, _)| aligned(*column, column.heading().into()));
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let table = Table::new(rows.iter().map(line), widths)
        .header(TableRow::new(head.map(Cell::from)).style(DIM))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .highlight_symbol("> ");
    let chosen = rows.iter().position(|row| Some(row.pid) == state.chosen);
    let mut shown = TableState::new().with_selected(chosen);
    frame.render_stateful_widget(table, area, &mut shown);
    let is_left_out = |column: &Column| !columns.iter().any(|(shown, _)| shown == column);
    Column::ALL.into_iter().map(|(column, _)| column).filter(is_left_out).collect()
}

/// The columns of the chosen process that the list has no room for.
fn rest_of(row: &Row, columns: &[Column], width: usize) -> Paragraph<'static> {
    let mut words = format!("{}:", row.pid);
    for column in columns {
        match (*column, column.cell(row)) {
            (Column::History | Column::Rank, _) => {}
            (_, cell) if cell == "-" || cell.is_empty() => {}
            (column, cell) => words.push_str(&format!("  {} {cell}", column.heading())),
        }
    }
    words.push_str("  ");
    let room = width.saturating_sub(words.chars().count());
    if columns.contains(&Column::History) && room >= 8 {
        words.push_str(&curve_text(row.history.iter(), room));
    }
    Paragraph::new(words).style(DIM)
}

/// The keys that the last line names.
fn keys(state: &State) -> [(&'static str, &'static str); 7] {
    let (cap, page, all) = (("c", "cap"), ("o", "page"), ("?", "keys"));
    match state.view {
        View::List => {
            [("q", "quit"), ("Enter", "open"), ("s", "sort"), ("/", "filter"), cap, page, all]
        }
        View::Process(_) => {
            [("q", "quit"), ("Esc", "back"), ("d", "compare"), cap, page, ("p", "pause"), all]
        }
    }
}

/// The last lines: a question, a message, or the keys.
fn last_lines(state: &State) -> Text<'static> {
    match (&state.input, &state.message) {
        (Input::Filter, _) => Text::from(vec![
            Span::styled(format!("/{}", state.filter), BOLD),
            Span::styled("   Enter keeps it, Esc clears it", DIM),
        ]),
        (Input::Cap { pid, text }, _) => Text::from(vec![
            Span::raw(format!("cap of pid {pid}, 6GiB or 50% or none: ")),
            Span::styled(format!("{text}_"), BOLD),
            Span::styled("   Enter, Esc", DIM),
        ]),
        (Input::Sure { question, .. }, _) => Text::styled(question.clone(), WARN),
        (_, Some(message)) => Text::styled(message.clone(), BOLD),
        _ => {
            let words = keys(state).into_iter().flat_map(|(key, what)| {
                [Span::styled(key, BOLD), Span::styled(format!(" {what}  "), DIM)]
            });
            Text::from(words.collect::<Vec<_>>())
        }
    }
}

fn height_of(text: &Text, width: u16) -> u16 {
    // Words are not cut: a line may be shorter than the screen is wide.
    (text.width() as u16).div_ceil(width.saturating_sub(12).max(1)).clamp(1, 4)
}

fn list_of_keys(frame: &mut Frame, area: Rect) {
    let key = |(key, what): &(&'static str, &'static str)| {
        Text::from(vec![Span::styled(format!("{key:<9} "), BOLD), Span::raw(*what)])
    };
    let lines: Vec<Text> = KEYS.iter().map(key).collect();
    let width = lines.iter().map(Text::width).max().unwrap_or(0) as u16 + 4;
    let width = width.min(area.width);
    let rows = lines.iter().map(|line| (line.width() as u16).div_ceil(width.saturating_sub(4)));
    let height = (rows.sum::<u16>() + 2).min(area.height);
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let place = Rect { x: area.x + x, y: area.y + y, width, height };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" keys; any key closes ");
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).block(block), place);
}
