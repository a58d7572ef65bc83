//! Aligned columns and a little colour. Colours are always in the text; the stream that prints it
//! takes them out where there is no terminal.

use anstyle::{AnsiColor, Style};

pub const BOLD: Style = Style::new().bold();
pub const DIM: Style = Style::new().dimmed();
pub const WARN: Style = AnsiColor::Yellow.on_default();
pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const PLAIN: Style = Style::new();

/// Columns of a report.
pub const WIDTH: usize = 100;

pub fn paint(style: Style, text: &str) -> String {
    match style == PLAIN || text.is_empty() {
        true => text.to_string(),
        false => format!("{style}{text}{style:#}"),
    }
}

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
    /// `sides`: `l` or `r` for each column.
    pub fn new(indent: usize, sides: &str) -> Table {
        let side = |c| if c == 'r' { Side::Right } else { Side::Left };
        Table { indent, sides: sides.chars().map(side).collect(), rows: Vec::new() }
    }

    pub fn head(&mut self, cells: &[&str]) {
        self.rows.push(cells.iter().map(|cell| (cell.to_string(), DIM)).collect());
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.styled(cells.map(|cell| (cell, PLAIN)));
    }

    pub fn styled<const N: usize>(&mut self, cells: [(String, Style); N]) {
        debug_assert!(N <= self.sides.len());
        self.rows.push(cells.into());
    }

    /// A row of as many cells as there are.
    pub fn cells(&mut self, cells: impl Iterator<Item = (String, Style)>) {
        self.rows.push(cells.collect());
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|(text, _)| text.chars().count()).max().unwrap_or(0)
    }

    /// Lines that end in a newline, without spaces before it. A column that is empty everywhere
    /// takes no room.
    pub fn render(&self) -> String {
        let widths: Vec<usize> = (0..self.sides.len()).map(|column| self.width(column)).collect();
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
                let room = width - text.chars().count();
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
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
