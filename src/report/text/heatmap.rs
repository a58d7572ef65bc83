//! The heatmap of segments: a row of cells for each. A cell shows how full its part of the segment
//! is, in the colour of the line of code that holds most of it.

use anstyle::{AnsiColor, Style};
use rustc_hash::FxHashMap;

use super::layout::{DIM, paint};
use crate::analysis::frag::{Frag, FragSegment};
use crate::units::size;

/// One colour for each of the lines of code that hold the most bytes. Other lines have no colour.
const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Blue,
    AnsiColor::Green,
    AnsiColor::Yellow,
    AnsiColor::Magenta,
    AnsiColor::Cyan,
    AnsiColor::Red,
];

/// The colour of each line of code.
pub(super) struct Palette {
    /// From a line to its index in [`COLOURS`].
    by_line: FxHashMap<u32, usize>,
}

impl Palette {
    /// Assigns the colours to the lines of code that hold the most bytes.
    pub(super) fn of(frag: &Frag) -> Palette {
        let largest = frag.largest_lines().into_iter().take(COLOURS.len());
        let by_line = largest.enumerate().map(|(index, line)| (line, index)).collect();
        Palette { by_line }
    }

    /// The style of a line of code. `None`: the line is not known.
    pub(super) fn style(&self, line: Option<u32>) -> Style {
        let colour = line.and_then(|line| self.by_line.get(&line));
        colour.map_or(Style::new(), |index| COLOURS[*index].on_default())
    }
}

/// What one cell shows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cell {
    /// Used bytes per 1,000 bytes.
    used: u64,
    /// The line of code that holds most of the cell.
    line: Option<u32>,
}

impl Cell {
    /// The character that shows how full the cell is.
    fn sign(self) -> char {
        match self.used {
            0 => '·',
            1..250 => '░',
            250..750 => '▒',
            750..1000 => '▓',
            _ => '█',
        }
    }
}

/// The heatmap, in order of address. It has at most `rows` segments: pinned ones first, then those
/// with the most free bytes. A line has `width` columns, but at least 8 cells and at most 160.
pub(super) fn rows(frag: &Frag, palette: &Palette, rows: usize, width: usize) -> String {
    let mut chosen: Vec<&FragSegment> = frag.segments.iter().collect();
    let kept = |segment: &FragSegment| (segment.is_pinned(), segment.free_bytes);
    chosen.sort_by_key(|segment| (std::cmp::Reverse(kept(segment)), segment.address));
    chosen.truncate(rows);
    chosen.sort_by_key(|segment| segment.address);
    let labels: Vec<(String, String)> = chosen
        .iter()
        .map(|segment| (format!("{:#x}", segment.address), size(segment.bytes)))
        .collect();
    let widest = |of: fn(&(String, String)) -> &String| {
        labels.iter().map(|label| of(label).len()).max().unwrap_or(0)
    };
    let (address, bytes) = (widest(|label| &label.0), widest(|label| &label.1));
    // Two columns before the address, two after each label, seven for the percentage.
    let cells = width.saturating_sub(2 + address + 2 + bytes + 2 + 7).clamp(8, 160);
    let mut out = String::new();
    for (segment, label) in chosen.iter().zip(&labels) {
        out.push_str(&paint(DIM, &format!("  {:>address$}  {:>bytes$}  ", label.0, label.1)));
        let mut run = (Style::new(), String::new());
        for cell in in_cells(segment, frag, cells) {
            let style = if cell.used == 0 { DIM } else { palette.style(cell.line) };
            if style != run.0 {
                out.push_str(&paint(run.0, &run.1));
                run = (style, String::new());
            }
            run.1.push(cell.sign());
        }
        out.push_str(&paint(run.0, &run.1));
        let used = u128::from(segment.allocated()) * 100 / u128::from(segment.bytes.max(1));
        out.push_str(&paint(DIM, &format!("  {used:>3} %")));
        out.push('\n');
    }
    out
}

/// A segment as `cells` cells of equal size.
fn in_cells(segment: &FragSegment, frag: &Frag, cells: usize) -> Vec<Cell> {
    let count = cells as u128;
    let bytes = u128::from(segment.bytes.max(1));
    let mut used = vec![0u128; cells];
    let mut largest = vec![(0u128, None); cells];
    // A damaged trace may have blocks of 0 bytes.
    for block in segment.blocks.iter().filter(|block| block.bytes > 0) {
        // Positions are in units of 1 / `cells` of a byte. A cell is exactly `bytes` units long, so
        // nothing is rounded.
        let start = u128::from(block.address - segment.address) * count;
        let end = start + u128::from(block.bytes) * count;
        let line = frag.line(block.stack);
        let (first, last) = (start / bytes, (end - 1) / bytes);
        for cell in first..=last.min(count - 1) {
            let part = end.min((cell + 1) * bytes) - start.max(cell * bytes);
            let cell = cell as usize;
            used[cell] += part;
            if part > largest[cell].0 {
                largest[cell] = (part, line);
            }
        }
    }
    // A cell with few used bytes is not shown as free, and one with few free bytes not as full.
    let share = |part: u128| match (part * 1000 / bytes) as u64 {
        0 if part > 0 => 1,
        share => share,
    };
    used.iter().zip(largest).map(|(used, (_, line))| Cell { used: share(*used), line }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::frag::FragBlock;
    use vramtrace_format::StackId;

    #[test]
    fn cells_are_as_full_as_their_part_of_the_segment() {
        let block = |address, bytes| FragBlock { address, bytes, stack: StackId(1) };
        let segment = FragSegment {
            paused: 0,
            address: 1000,
            bytes: 800,
            small: true,
            expandable: false,
            free_bytes: 0,
            largest_free_block_bytes: 0,
            blocks: vec![
                block(1000, 0),
                block(1000, 100),
                block(1150, 50),
                block(1290, 20),
                block(1799, 1),
            ],
        };
        let frag = Frag { segments: vec![segment], ..Frag::default() };
        let signs: String =
            in_cells(&frag.segments[0], &frag, 8).iter().map(|cell| cell.sign()).collect();
        assert_eq!(signs, "█▒░░···░");
        let text = rows(&frag, &Palette::of(&frag), 10, 40);
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert!(plain.starts_with("  0x3e8  800 B  █"), "{plain}");
        assert!(plain.lines().all(|line| line.chars().count() <= 40), "{plain}");
    }
}
