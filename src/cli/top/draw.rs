//! Draws the screen on a terminal of 60 columns or more: cards, the list of processes or the opened one, a question or
//! the keys. Without a terminal the same figures are text.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Sparkline, Table, TableState, Wrap};
use vramtrace_reader::report::text::layout;
use vramtrace_reader::units::{clean, count, limit, shorten, size};

use super::opened;
use super::row::{COLUMNS, CardRow, Column, ProcessRow, that_fit};
use super::state::State;

pub const DIM: Style = Style::new().fg(Color::DarkGray);
pub const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
pub const GOOD: Style = Style::new().fg(Color::Green);
pub const WARN: Style = Style::new().fg(Color::Yellow);

const NO_PROCESS: &str =
    "no recorded process of this user is running; start one: vramtrace run python train.py";

pub fn draw(frame: &mut Frame, state: &State) {
    let area = frame.area();
    let last = last_line(state);
    // Figures and a curve, or figures alone where there are many.
    let cards = state.cards.len().min(16) as u16;
    let each = if cards * 2 <= area.height / 3 { 2 } else { 1 };
    let [head, card_area, _, body, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length((cards * each).min(area.height / 3)),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(height_of(&last, area.width)),
    ])
    .areas(area);
    frame.render_widget(title(state), head);
    for (card, at) in state.cards.values().zip((0..card_area.height).step_by(each.into())) {
        draw_card(frame, card, Rect { y: card_area.y + at, height: each, ..card_area });
    }
    match state.opened {
        Some(pid) => opened::draw(frame, state, pid, body),
        None => processes(frame, state, body),
    }
    frame.render_widget(Paragraph::new(last).wrap(Wrap { trim: true }), keys);
}

/// The state once, for output that is not a terminal.
pub fn text(state: &State) -> String {
    let mut out = String::new();
    if !state.cards.is_empty() {
        let titles = ["card", "in use", "of", "util", "counted", "cap", "refused"];
        let mut cards = layout::Table::titled(0, "lrrrrrr", &titles);
        for card in state.cards.values() {
            let cap = card.caps().map_or("-".into(), limit);
            let used = card.facts.as_ref().map_or("?".into(), |facts| size(facts.used));
            let util = card.facts.as_ref().and_then(|facts| facts.utilization);
            let util = util.map_or("-".into(), |percent| format!("{percent} %"));
            let (counted, refused) = (size(card.counted()), count(card.refused()));
            cards.row([card.name(), used, card.total(), util, counted, cap, refused]);
        }
        out.push_str(&cards.render());
        out.push('\n');
    }
    if let Some(note) = &state.nvml_note {
        out.push_str(&format!("{note}: processes that are not traced are not listed\n\n"));
    }
    let rows = state.rows();
    if rows.is_empty() {
        return format!("{out}{NO_PROCESS}\n");
    }
    let sides = COLUMNS.iter().map(|column| if column.is_number { 'r' } else { 'l' });
    let titles = COLUMNS.each_ref().map(|column| column.heading);
    let mut table = layout::Table::titled(0, &sides.collect::<String>(), &titles);
    for row in rows {
        table.row(COLUMNS.each_ref().map(|column| shorten(&column.cell(row), 60)));
    }
    out + &table.render()
}

fn title(state: &State) -> Paragraph<'static> {
    let mut parts = vec![Span::styled("vramtrace top", BOLD)];
    if !state.filter.is_empty() {
        parts.push(Span::styled(format!("   filter: {}", state.filter), WARN));
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
fn draw_card(frame: &mut Frame, card: &CardRow, area: Rect) {
    let part = |used: u64, of: u64| if of > 0 { used as f64 / of as f64 } else { 0.0 };
    let caps = card.caps();
    let (in_use, counted, total) = (card.in_use(), card.counted(), card.bytes());
    let style = match part(in_use, total).max(part(counted, caps.unwrap_or(0))) {
        full if full >= 0.95 => BAD,
        full if full >= 0.8 => WARN,
        _ => Style::new(),
    };
    let (name, utilization) =
        card.facts.as_ref().map_or(("", None), |facts| (&*facts.name, facts.utilization));
    let model = if name.is_empty() { String::new() } else { format!("{}  ", clean(name)) };
    let used = format!("{}{}", size(in_use), percent(in_use, total));
    let busy = utilization.map_or(String::new(), |percent| format!(", busy {percent} %"));
    let capped =
        caps.map_or(String::new(), |cap| format!(", cap {}{}", limit(cap), percent(counted, cap)));
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
        let left_out = card.history.len().saturating_sub(area.width.into());
        let shown: Vec<u64> = card.history.iter().skip(left_out).copied().collect();
        let curve = Sparkline::default().data(shown).max(most.max(1)).style(style);
        frame.render_widget(curve, Rect { y: area.y + 1, height: 1, ..area });
    }
}

/// Cuts a name at the end: its beginning (script, file and line) identifies it.
pub fn begin(name: &str, most: usize) -> String {
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
        let words = Paragraph::new(words).wrap(Wrap { trim: true });
        frame.render_widget(words.style(DIM), area);
        return;
    }
    let columns = that_fit(area.width, &rows);
    let aligned = |column: &Column, text: String| match column.is_number {
        true => Text::from(text).right_aligned(),
        false => Text::from(text),
    };
    let cell = |row: &ProcessRow, (column, width): &(&Column, u16)| {
        let style = match column.heading {
            "refused" | "pid" if row.refused() > 0 => BAD,
            "MiB/min" | "full in" if row.verdict.flatten().is_some() => WARN,
            _ if row.page.is_none() => DIM,
            _ => Style::new(),
        };
        Cell::from(aligned(column, begin(&column.cell(row), (*width).into()))).style(style)
    };
    let line = |row: &&ProcessRow| TableRow::new(columns.iter().map(|column| cell(row, column)));
    let head = columns.iter().map(|(column, _)| aligned(column, column.heading.into()));
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let table = Table::new(rows.iter().map(line), widths)
        .header(TableRow::new(head.map(Cell::from)).style(DIM))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .highlight_symbol("> ");
    let chosen = rows.iter().position(|row| Some(row.pid) == state.chosen);
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(chosen));
}

/// The filter, or the keys.
fn last_line(state: &State) -> Text<'static> {
    if state.is_filtering {
        return Text::from(vec![
            Span::styled(format!("/{}", state.filter), BOLD),
            Span::styled("   Enter keeps it, Esc clears it", DIM),
        ]);
    }
    let here = match state.opened {
        None => [("q", "quit"), ("up, down", "choose"), ("Enter", "open"), ("/", "filter")],
        Some(_) => [("q", "quit"), ("up, down", "scroll"), ("Esc", "back"), ("/", "filter")],
    };
    let words = |(key, what)| [Span::styled(key, BOLD), Span::styled(format!(" {what}  "), DIM)];
    Text::from(here.into_iter().flat_map(words).collect::<Vec<_>>())
}

/// Lines that a text needs at this width.
pub fn height_of(text: &Text, width: u16) -> u16 {
    // Words are not cut: a line may be shorter than the screen is wide.
    (text.width() as u16).div_ceil(width.saturating_sub(12).max(1)).clamp(1, 4)
}
