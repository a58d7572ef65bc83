//! What every text is made of: styled words, lines, tables with aligned columns. The text always contains the colours. The
//! stream that prints it removes them if the output is not a terminal.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anstyle::{AnsiColor, Style};

use crate::units::{count, shorten, size};

pub const BOLD: Style = Style::new().bold();
pub const DIM: Style = Style::new().dimmed();
pub const WARN: Style = AnsiColor::Yellow.on_default();
pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const PLAIN: Style = Style::new();

/// Columns of a report.
pub const WIDTH: usize = 100;

/// The text in a style.
pub fn paint(style: Style, text: &str) -> String {
    match style == PLAIN || text.is_empty() {
        true => text.to_string(),
        false => format!("{style}{text}{style:#}"),
    }
}

/// The text in a style if the number is not 0.
pub fn paint_if(number: u64, style: Style, text: String) -> String {
    if number > 0 { paint(style, &text) } else { text }
}

/// A line of this style after so many spaces.
pub fn line(indent: usize, style: Style, text: &str) -> String {
    format!("{}{}\n", " ".repeat(indent), paint(style, text))
}

/// Lines that say what is wrong or missing: `  ! events are missing`.
pub fn caution(style: Style, text: &str) -> String {
    // A text with a path stays on one line: how long it is depends on the machine.
    let width = if text.contains('/') { usize::MAX } else { WIDTH - "  ! ".len() };
    let text = wrapped(text, width).join("\n    ");
    format!("  {} {}\n", paint(WARN, "!"), paint(style, &text))
}

/// A table or other lines after an empty line; empty if there are none.
pub fn section(lines: String) -> String {
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// `and 3 more, 12.00 MiB together` on a line of what a list leaves out; empty if that is nothing.
pub fn and_more(indent: usize, rest: impl Iterator<Item = u64> + Clone) -> String {
    let bytes = rest.clone().fold(0, u64::saturating_add);
    match rest.count() as u64 {
        0 => String::new(),
        n => line(indent, DIM, &format!("and {} more, {} together", count(n), size(bytes))),
    }
}

/// `12.5 %` of a part of 1.
pub fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// A curve as bars of eight heights; a space for 0. `most`: the value of the highest bar.
pub fn bars(values: &[u64], most: u64) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |value: &u64| match *value {
        0 => ' ',
        value => {
            let eighths = u128::from(value) * 8 / u128::from(most.max(1));
            BARS[(eighths.clamp(1, 8) - 1) as usize]
        }
    };
    values.iter().map(bar).collect()
}

/// Maximum width of a table in characters; 0: no limit.
static COLUMNS: AtomicUsize = AtomicUsize::new(0);

/// Limits the width of all tables that are rendered later: cells of text are shortened to fit.
/// `None`: no limit.
pub fn set_width(columns: Option<usize>) {
    COLUMNS.store(columns.unwrap_or(0), Relaxed);
}

/// Characters that are left in a line after `taken` characters.
pub fn room(taken: usize) -> usize {
    match COLUMNS.load(Relaxed) {
        0 => usize::MAX,
        columns => columns.saturating_sub(taken),
    }
}

/// Breaks text at spaces into lines of at most `width` characters; a longer word is not broken. A
/// figure and its unit, a sign and its whole term, and a line of code and its caller (`a < b`) stay on one
/// line.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    const UNITS: [&str; 3] = ["GiB", "MiB", "KiB"];
    let glued = |last: &str, word: &str| {
        let is_whole = || UNITS.iter().any(|unit| last.ends_with(unit));
        UNITS.iter().any(|unit| word.starts_with(unit))
            || (last.starts_with("+ ") && word != "+" && !is_whole())
            || last == "+"
            || word == "<"
            || last.ends_with('<')
    };
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match words.last_mut() {
            Some(last) if glued(last, word) => last.push_str(&format!(" {word}")),
            _ => words.push(word.to_string()),
        }
    }
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(last)
                if last.trim().is_empty()
                    || last.chars().count() + 1 + word.chars().count() <= width =>
            {
                last.push_str(&format!(" {word}"));
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// A column of text is not made narrower than this, in characters.
const MIN_TEXT_WIDTH: usize = 12;
/// If the last column would be cut to fewer characters than this, it gets a line below the other columns.
const READABLE: usize = 24;
/// The additional indent of that line, in characters.
const BELOW: usize = 4;

/// Columns as wide as their widest cell, two spaces apart. A cell that [`paint`] made keeps that style; others have the
/// style of their column.
#[derive(Debug)]
pub struct Table {
    indent: usize,
    columns: Vec<char>,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// `indent`: spaces before each row. `columns`: a letter for each: `l` text, `r` figures, aligned right, `L` and `R`
    /// the same in bold, `d` text and `D` figures that are dimmed.
    pub fn new(indent: usize, columns: &str) -> Table {
        Table { indent, columns: columns.chars().collect(), head: Vec::new(), rows: Vec::new() }
    }

    /// Whether a column has figures, aligned at their right ends.
    fn is_right(&self, column: usize) -> bool {
        matches!(self.columns[column], 'r' | 'R' | 'D')
    }

    /// With dimmed titles.
    pub fn titled(indent: usize, columns: &str, titles: &[&str]) -> Table {
        let head = titles.iter().map(|title| paint(DIM, title)).collect();
        Table { head, ..Table::new(indent, columns) }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Dimmed notes in the last column, below a row.
    pub fn under(&mut self, notes: impl IntoIterator<Item = String>) {
        for note in notes {
            let mut row = vec![String::new(); self.columns.len() - 1];
            row.push(paint(DIM, &note));
            self.rows.push(row);
        }
    }

    /// The table as lines without trailing spaces, each with a newline. Empty without rows. A column whose cells are
    /// all empty has no width.
    pub fn render(&self) -> String {
        self.render_in(COLUMNS.load(Relaxed))
    }

    fn all_rows(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.head).filter(|head| !head.is_empty()).chain(&self.rows)
    }

    /// `most`: maximum width in characters; 0: no limit.
    fn render_in(&self, most: usize) -> String {
        let mut out = String::new();
        if self.rows.is_empty() {
            return out;
        }
        let widest = |column: usize| {
            let cells = self.all_rows().filter_map(|row| row.get(column));
            cells.map(|cell| unpainted(cell).1.chars().count()).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..self.columns.len()).map(widest).collect();
        let below = if most > 0 { self.fit(&mut widths, most) } else { None };
        for row in self.all_rows() {
            let mut text = " ".repeat(self.indent);
            let mut pending = 0;
            for (index, cell) in row.iter().enumerate().filter(|(index, _)| widths[*index] > 0) {
                let room = widths[index].saturating_sub(unpainted(cell).1.chars().count());
                let [before, after] = if self.is_right(index) { [room, 0] } else { [0, room] };
                if !cell.is_empty() {
                    text.push_str(&" ".repeat(pending + before));
                    text.push_str(&self.painted(index, cell, widths[index]));
                    pending = 0;
                } else {
                    pending += before;
                }
                pending += after + 2;
            }
            let last = below.and_then(|index| Some((index, row.get(index)?)));
            let last = last.filter(|(_, cell)| !cell.is_empty());
            if !text.trim_end().is_empty() || last.is_none() {
                out.push_str(text.trim_end());
                out.push('\n');
            }
            if let Some((index, cell)) = last {
                let indent = self.indent + BELOW;
                out.push_str(&" ".repeat(indent));
                out.push_str(&self.painted(index, cell, most.saturating_sub(indent)));
                out.push('\n');
            }
        }
        out
    }

    /// A cell in its style, in at most so many characters.
    fn painted(&self, column: usize, cell: &str, most: usize) -> String {
        match unpainted(cell) {
            ("", text) => {
                let style = match self.columns[column] {
                    'L' | 'R' => BOLD,
                    'd' | 'D' => DIM,
                    _ => PLAIN,
                };
                paint(style, &shorten(text, most))
            }
            (style, text) => format!("{style}{}{RESET}", shorten(text, most)),
        }
    }

    /// Narrows the columns to `most` characters in all. If the last column is text and would be cut to
    /// fewer than [`READABLE`] characters, it gets width 0; its index is returned, and its cells are
    /// printed on lines below.
    fn fit(&self, widths: &mut [usize], most: usize) -> Option<usize> {
        let natural = widths.to_vec();
        self.narrow(widths, most);
        let last = widths.len().checked_sub(1)?;
        if self.is_right(last) || widths[last] >= natural[last].min(READABLE) {
            return None;
        }
        widths.copy_from_slice(&natural);
        widths[last] = 0;
        self.narrow(widths, most);
        Some(last)
    }

    /// Narrows the widest column of text, one character at a time, until the row fits or no column
    /// of text has more than [`MIN_TEXT_WIDTH`] characters. Figures are never cut.
    fn narrow(&self, widths: &mut [usize], most: usize) {
        let total = |widths: &[usize]| {
            let shown = widths.iter().filter(|width| **width > 0).count();
            self.indent + widths.iter().sum::<usize>() + 2 * shown.saturating_sub(1)
        };
        while total(widths) > most {
            let text = |index: &usize| !self.is_right(*index) && widths[*index] > MIN_TEXT_WIDTH;
            let Some(widest) = (0..widths.len()).filter(text).max_by_key(|index| widths[*index])
            else {
                return;
            };
            widths[widest] -= 1;
        }
    }
}

const RESET: &str = "\u{1b}[0m";

/// The escapes of a text that [`paint`] made, and the text.
fn unpainted(cell: &str) -> (&str, &str) {
    let painted = cell.strip_suffix(RESET).and_then(|rest| {
        let last = rest.rfind('\u{1b}')?;
        Some(rest.split_at(last + rest[last..].find('m')? + 1))
    });
    painted.unwrap_or(("", cell))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_table_shortens_text_and_keeps_figures() {
        let mut table = Table::new(4, "rll");
        let long = "modeling_gpt2.py:212 GPT2Attention._attn called from train.py:41".to_string();
        table.row(["1024.00 MiB".into(), "transformers".into(), long.clone()]);
        table.row(["1.00 KiB".into(), paint(WARN, "x"), "y".into()]);
        let plain = anstream::adapter::strip_str(&table.render_in(60)).to_string();
        assert!(plain.lines().all(|line| line.chars().count() <= 60), "{plain}");
        assert!(plain.contains("1024.00 MiB") && plain.contains("modeling_gpt2"), "{plain}");
        assert!(table.render_in(0).contains(&long));
        let mut table = Table::new(4, "lrrrlL");
        let figures = ["", "1024.00 MiB", "100.0 %", "1,024", "transformers"].map(String::from);
        table.row(figures.into_iter().chain([long]));
        let plain = anstream::adapter::strip_str(&table.render_in(60)).to_string();
        assert_eq!(plain.lines().count(), 2, "{plain}");
        assert!(plain.lines().all(|line| line.chars().count() <= 60), "{plain}");
        assert!(plain.contains("\n        modeling_gpt2.py:212 GPT2Att"), "{plain}");
    }

    #[test]
    fn columns_line_up_and_empty_ones_vanish() {
        let mut table = Table::titled(2, "lrlr", &["kind", "live", "", "n"]);
        table.row(["device".into(), paint(BAD, "1.00 GiB"), "".into(), "12".into()]);
        table.row(["vmm", "12.00 GiB", "", ""].map(String::from));
        let text = table.render();
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(
            plain,
            "  kind         live   n\n  device   1.00 GiB  12\n  vmm     12.00 GiB\n"
        );
        assert!(text.contains(&paint(BAD, "1.00 GiB")), "{text:?}");
    }

    #[test]
    fn bars_are_as_high_as_their_part_of_the_highest() {
        assert_eq!(bars(&[0, 1, 50, 100], 100), " ▁▄█");
        assert_eq!(bars(&[u64::MAX], u64::MAX), "█");
        assert_eq!(bars(&[0], 0), " ");
    }

    #[test]
    fn figures_stay_with_their_units() {
        let text = "1.24 GiB = context 518.00 MiB + free in cache 0.73 GiB a.py:1 < b.py:2";
        let lines =
            ["1.24 GiB =", "context", "518.00 MiB", "+ free in cache 0.73 GiB", "a.py:1 < b.py:2"];
        assert_eq!(wrapped(text, 13), lines);
    }
}
