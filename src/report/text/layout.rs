//! Tables with aligned columns, and colours. The text always contains the colours. The stream that
//! prints it removes them if the output is not a terminal.

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

/// `and 3 more, 12.00 MiB together` on a line of what a list leaves out; empty if that is nothing.
pub fn and_more(indent: &str, rest: impl Iterator<Item = u64> + Clone) -> String {
    let bytes = rest.clone().fold(0, u64::saturating_add);
    match rest.count() as u64 {
        0 => String::new(),
        n => format!(
            "{indent}{}\n",
            paint(DIM, &format!("and {} more, {} together", count(n), size(bytes)))
        ),
    }
}

/// The most characters in a line of a table; 0: no limit.
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

/// A column of text is not made narrower than this, in characters.
const LEAST_TEXT: usize = 12;
/// If the last column has fewer characters than this, it gets a line below the other columns.
const READABLE: usize = 24;
/// The additional indent of that line, in characters.
const BELOW: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

/// Columns as wide as their widest cell, two spaces apart.
#[derive(Debug)]
pub struct Table {
    indent: usize,
    sides: Vec<Side>,
    rows: Vec<Vec<(String, Style)>>,
}

impl Table {
    /// `indent`: spaces before each row. `sides`: `l` (left-aligned text) or `r` (right-aligned
    /// figures) for each column.
    pub fn new(indent: usize, sides: &str) -> Table {
        let side = |c| if c == 'r' { Side::Right } else { Side::Left };
        Table { indent, sides: sides.chars().map(side).collect(), rows: Vec::new() }
    }

    /// A row of dimmed titles.
    pub fn head(&mut self, cells: &[&str]) {
        self.rows.push(cells.iter().map(|cell| (cell.to_string(), DIM)).collect());
    }

    /// A row without styles.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.styled(cells.map(|cell| (cell, PLAIN)));
    }

    /// A row of which each cell has a style.
    pub fn styled<const N: usize>(&mut self, cells: [(String, Style); N]) {
        debug_assert!(N <= self.sides.len());
        self.rows.push(cells.into());
    }

    /// As [`Table::styled`], for a number of cells that is not known at compile time.
    pub fn cells(&mut self, cells: impl Iterator<Item = (String, Style)>) {
        self.rows.push(cells.collect());
    }

    /// A dimmed note in the last column, below a row.
    pub fn under(&mut self, note: String) {
        let before = self.sides.iter().skip(1).map(|_| (String::new(), PLAIN));
        self.rows.push(before.chain([(note, DIM)]).collect());
    }

    /// Characters of the widest cell of a column.
    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|(text, _)| text.chars().count()).max().unwrap_or(0)
    }

    /// The table as lines without trailing spaces, each with a newline. A column whose cells are
    /// all empty has no width.
    pub fn render(&self) -> String {
        self.render_in(COLUMNS.load(Relaxed))
    }

    /// `most`: the most characters in a line; 0: no limit.
    fn render_in(&self, most: usize) -> String {
        let mut widths: Vec<usize> =
            (0..self.sides.len()).map(|column| self.width(column)).collect();
        let below = if most > 0 { self.fit(&mut widths, most) } else { None };
        let mut out = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            let mut pending = 0;
            let mut first = true;
            for ((text, style), (side, width)) in row.iter().zip(self.sides.iter().zip(&widths)) {
                if *width == 0 {
                    continue;
                }
                pending += if first { 0 } else { 2 };
                first = false;
                let text = &shorten(text, *width);
                let room = width.saturating_sub(text.chars().count());
                if *side == Side::Right {
                    pending += room;
                }
                if !text.is_empty() {
                    line.push_str(&" ".repeat(pending));
                    line.push_str(&paint(*style, text));
                    pending = 0;
                }
                if *side == Side::Left {
                    pending += room;
                }
            }
            let last =
                below.and_then(|column| row.get(column)).filter(|(text, _)| !text.is_empty());
            if !line.trim_end().is_empty() || last.is_none() {
                out.push_str(line.trim_end());
                out.push('\n');
            }
            if let Some((text, style)) = last {
                let text = shorten(text, most.saturating_sub(self.indent + BELOW));
                let indent = " ".repeat(self.indent + BELOW);
                out.push_str(&format!("{indent}{}\n", paint(*style, &text)));
            }
        }
        out
    }

    /// Narrows the columns to `most` characters in all. If the last column is text and would have
    /// fewer than [`READABLE`] characters, it gets width 0; its index is returned, and its cells are
    /// printed on lines below.
    fn fit(&self, widths: &mut [usize], most: usize) -> Option<usize> {
        let natural = widths.to_vec();
        self.narrow(widths, most);
        let last = widths.len().checked_sub(1)?;
        let text = self.sides[last] == Side::Left && natural[last] > READABLE;
        if !text || widths[last] >= READABLE {
            return None;
        }
        widths.copy_from_slice(&natural);
        widths[last] = 0;
        self.narrow(widths, most);
        Some(last)
    }

    /// Narrows the widest column of text, one character at a time, until the row fits or no column
    /// of text has more than [`LEAST_TEXT`] characters. Figures are never cut.
    fn narrow(&self, widths: &mut [usize], most: usize) {
        let total = |widths: &[usize]| {
            let shown = widths.iter().filter(|width| **width > 0).count();
            self.indent + widths.iter().sum::<usize>() + 2 * shown.saturating_sub(1)
        };
        while total(widths) > most {
            let text =
                |index: &usize| self.sides[*index] == Side::Left && widths[*index] > LEAST_TEXT;
            let Some(widest) = (0..widths.len()).filter(text).max_by_key(|index| widths[*index])
            else {
                return;
            };
            widths[widest] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_table_shortens_text_and_keeps_figures() {
        let mut table = Table::new(4, "rll");
        let long = "modeling_gpt2.py:212 GPT2Attention._attn called from train.py:41".to_string();
        table.row(["1024.00 MiB".into(), "transformers".into(), long.clone()]);
        table.row(["1.00 KiB".into(), "x".into(), "y".into()]);
        let plain = table.render_in(60);
        assert!(plain.lines().all(|line| line.chars().count() <= 60), "{plain}");
        assert!(plain.contains("1024.00 MiB") && plain.contains("modeling_gpt2"), "{plain}");
        assert!(table.render_in(0).contains(&long));
        let mut table = Table::new(4, "lrrrll");
        let figures = ["", "1024.00 MiB", "100.0 %", "1,024", "transformers"].map(String::from);
        let [title, bytes, share, count, library] = figures;
        table.row([title, bytes, share, count, library, long]);
        let plain = table.render_in(60);
        assert_eq!(plain.lines().count(), 2, "{plain}");
        assert!(plain.lines().all(|line| line.chars().count() <= 60), "{plain}");
        assert!(plain.contains("\n        modeling_gpt2.py:212 GPT2Att"), "{plain}");
    }

    #[test]
    fn columns_line_up_and_empty_ones_vanish() {
        let mut table = Table::new(2, "lrlr");
        table.head(&["kind", "live", "", "n"]);
        table.row(["device", "1.00 GiB", "", "12"].map(String::from));
        table.row(["vmm", "12.00 GiB", "", ""].map(String::from));
        let plain = anstream::adapter::strip_str(&table.render()).to_string();
        assert_eq!(
            plain,
            "  kind         live   n\n  device   1.00 GiB  12\n  vmm     12.00 GiB\n"
        );
    }
}
