//! A map of PyTorch's segments as an SVG: their bytes in the order of their addresses, in rows. A block has
//! the colour of the line that holds it. A tooltip gives size, line and time of a block.

use std::io::{self, Write};

use rustc_hash::FxHashMap;
use vramtrace_format::{Header, StackId};

use crate::analysis::StackClassifier;
use crate::analysis::frag::{Frag, FragBlock, FragSegment};
use crate::units::{seconds, shorten, size};

/// With margins and labels 700: as wide as a page of text.
const WIDTH: f64 = 568.0;
const MARGIN: f64 = 14.0;
const ROW: f64 = 16.0;
/// Under a row stand the sizes of its segments.
const CAPTION: f64 = 11.0;
const STEP: f64 = 32.0;
/// Left of the rows: the first address in each.
const LABEL: f64 = 104.0;
const MOST_ROWS: u64 = 32;
/// Between segments that are not neighbours.
const GAP: f64 = 3.0;
/// A caption needs so much room for a character.
const CHARACTER: f64 = 5.2;
/// Blocks that would be narrower are drawn as one with their neighbours of the same line.
const NARROW: f64 = 0.4;
const LEGEND_ROW: f64 = 18.0;

/// Of the lines that hold most; grey for all others.
const COLOURS: [&str; 12] = [
    "#3b76af", "#e08a2e", "#519e3e", "#c23b34", "#8c69b8", "#84584e", "#d57ebe", "#b9bb3b",
    "#54bccb", "#1f4e79", "#a65b00", "#2e6b1f",
];
const OTHERS: &str = "#8f8f8f";

/// One device of one process.
pub struct MapPart<'f> {
    pub name: String,
    pub frag: &'f Frag,
    pub header: &'f Header,
}

/// Writes the devices below each other.
pub fn write(parts: &[MapPart], when: &str, out: &mut dyn Write) -> io::Result<()> {
    let maps: Vec<Map> = parts.iter().map(|part| Map::of(part, when)).collect();
    let height = MARGIN + maps.iter().map(Map::height).sum::<f64>();
    let width = LABEL + WIDTH + 2.0 * MARGIN;
    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="ui-sans-serif, system-ui, Helvetica, Arial, sans-serif" font-size="12">"#
    )?;
    writeln!(out, r##"<rect width="100%" height="100%" fill="#ffffff"/>"##)?;
    writeln!(
        out,
        "<style>.s{{fill:#ececec;stroke:#9a9a9a;stroke-width:.6}}.e{{fill:#ffffff;stroke:#9a9a9a;\
         stroke-width:.6;stroke-dasharray:3 2}}.a{{font-size:10px;fill:#555;font-family:ui-monospace,\
         monospace}}.c{{font-size:9px;fill:#333}}rect[fill]:hover{{stroke:#000;stroke-width:1}}</style>"
    )?;
    let mut top = MARGIN;
    for map in &maps {
        map.write(top, out)?;
        top += map.height();
    }
    writeln!(out, "</svg>")
}

struct Map<'f> {
    part: &'f MapPart<'f>,
    title: [String; 2],
    /// Line, colour, words.
    legend: Vec<(u32, &'static str, String)>,
    colours: FxHashMap<u32, &'static str>,
    words: FxHashMap<StackId, String>,
    /// Bytes of a full row.
    row: u64,
    rows: u64,
    /// Where each segment begins on the map, in bytes: gaps take room as well.
    starts: Vec<u64>,
    /// Without stacks the colour is that of the block's size.
    by_size: bool,
}

impl<'f> Map<'f> {
    fn of(part: &'f MapPart<'f>, when: &str) -> Map<'f> {
        let frag = part.frag;
        let time = frag.at_ns.map(|ns| format!(" ({})", seconds(ns))).unwrap_or_default();
        let title = [
            format!("{}  GPU {}  {when}{time}", part.name, frag.device.0),
            format!(
                "{} reserved, {} allocated, {} free in segments",
                size(frag.reserved),
                size(frag.allocated),
                size(frag.free())
            ),
        ];
        let classifier = StackClassifier::new(&frag.symbols, part.header);
        let stacks: FxHashMap<StackId, String> =
            frag.lines.keys().map(|stack| (*stack, words(&classifier, *stack))).collect();
        // Of a line, any of its stacks tells the place.
        let mut of_line: FxHashMap<u32, StackId> = FxHashMap::default();
        for (stack, line) in &frag.lines {
            let first = of_line.entry(*line).or_insert(*stack);
            *first = (*first).min(*stack);
        }
        let legend: Vec<(u32, &str, String)> = frag
            .largest_lines()
            .into_iter()
            .zip(COLOURS)
            .map(|(line, colour)| (line, colour, stacks[&of_line[&line]].clone()))
            .collect();
        let colours = legend.iter().map(|(line, colour, _)| (*line, *colour)).collect();
        let all = frag.segments.iter().map(|s| s.bytes).fold(0, u64::saturating_add).max(1);
        // No less than what makes 512 B of a small run a dot.
        let row = all.div_ceil(MOST_ROWS).max(1 << 20);
        let gap = (row as f64 * GAP / WIDTH) as u64;
        let (mut at, mut end) = (0u64, None);
        let mut starts = Vec::new();
        for segment in &frag.segments {
            if end.is_some_and(|end| end != segment.address) {
                at = at.saturating_add(gap);
            }
            starts.push(at);
            at = at.saturating_add(segment.bytes);
            end = Some(segment.address.saturating_add(segment.bytes));
        }
        let rows = at.max(1).div_ceil(row);
        let by_size = !stacks.keys().any(|stack| !frag.symbols.indexes(*stack).is_empty());
        let legend = if by_size { size_legend() } else { legend };
        Map { part, title, legend, colours, words: stacks, row, rows, starts, by_size }
    }

    fn height(&self) -> f64 {
        let legend = (self.legend.len() + 1) as f64 * LEGEND_ROW;
        38.0 + legend + 10.0 + self.rows as f64 * STEP + MARGIN
    }

    /// Draws title, legend and segments, with the upper edge at `top`.
    fn write(&self, top: f64, out: &mut dyn Write) -> io::Result<()> {
        let bold = r#"font-size="13" font-weight="600""#;
        let [first, second] = &self.title;
        let first = shorten(first, 90);
        writeln!(out, r#"<text x="{MARGIN}" y="{}" {bold}>{}</text>"#, top + 8.0, xml(&first))?;
        let second = format!("{second}; a row is {}", size(self.row));
        writeln!(out, r#"<text x="{MARGIN}" y="{}">{}</text>"#, top + 24.0, xml(&second))?;
        let mut y = top + 36.0;
        let words = "all others; grey and empty: free; dashed: releasable".to_string();
        let others = (0, OTHERS, words);
        for (_, colour, words) in self.legend.iter().chain([&others]) {
            let x = MARGIN;
            writeln!(
                out,
                r#"<rect x="{x}" y="{}" width="11" height="11" fill="{colour}"/><text x="{}" y="{}">{}</text>"#,
                y,
                x + 17.0,
                y + 10.0,
                xml(&shorten(words, 100))
            )?;
            y += LEGEND_ROW;
        }
        let rows = top + self.height() - MARGIN - self.rows as f64 * STEP;
        let mut labelled = None;
        for (segment, at) in self.part.frag.segments.iter().zip(&self.starts) {
            let at = *at;
            let row = at / self.row;
            if labelled != Some(row) {
                labelled = Some(row);
                let y = rows + row as f64 * STEP + ROW - 4.0;
                writeln!(
                    out,
                    r#"<text class="a" x="{MARGIN}" y="{y:.1}">{:#x}</text>"#,
                    segment.address
                )?;
            }
            self.segment(segment, at, rows, out)?;
            self.caption(segment, at, rows, out)?;
        }
        Ok(())
    }

    /// `at`: bytes before it on the map.
    fn segment(
        &self,
        segment: &FragSegment,
        at: u64,
        rows: f64,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let class = if segment.is_pinned() { "s" } else { "e" };
        let kind = if segment.expandable { "expandable segment" } else { "segment" };
        let title = format!(
            "{kind} {:#x}\n{}, {} free, the largest piece {}\n{} blocks",
            segment.address,
            size(segment.bytes),
            size(segment.free()),
            size(segment.largest_free),
            segment.blocks.len()
        );
        writeln!(out, "<g>")?;
        let shape = format!(r#"class="{class}""#);
        self.pieces((at, segment.bytes), rows, &shape, &title, out)?;
        let mut blocks = segment.blocks.iter().peekable();
        while let Some(first) = blocks.next() {
            let (mut last, mut count, mut used) = (first, 1, first.bytes);
            // What is too narrow to see goes together with what is beside it.
            while let Some(next) =
                blocks.peek().copied().filter(|next| self.near(first, last, next))
            {
                blocks.next();
                (last, count, used) = (next, count + 1, used.saturating_add(next.bytes));
            }
            let bytes = end(last).saturating_sub(first.address);
            let title = match count {
                1 => self.block_title(segment, first),
                _ => format!(
                    "{count} blocks, {} in {}\n{}",
                    size(used),
                    size(bytes),
                    self.holder(first.stack)
                ),
            };
            let shape = format!(r#"fill="{}""#, self.colour(first));
            let start = at.saturating_add(first.address.saturating_sub(segment.address));
            self.pieces((start, bytes), rows, &shape, &title, out)?;
        }
        writeln!(out, "</g>")
    }

    /// Size and fill of a segment, under it where there is room.
    fn caption(
        &self,
        segment: &FragSegment,
        at: u64,
        rows: f64,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let row = at / self.row;
        let scale = WIDTH / self.row as f64;
        let room = segment.bytes.min(self.end_of(row) - at) as f64 * scale;
        let used = segment.bytes.saturating_sub(segment.free());
        let percent = used as f64 * 100.0 / segment.bytes.max(1) as f64;
        let texts = [format!("{}, {percent:.0} % used", size(segment.bytes)), size(segment.bytes)];
        let fits = |text: &&String| text.chars().count() as f64 * CHARACTER <= room;
        let Some(text) = texts.iter().find(fits) else { return Ok(()) };
        let x = MARGIN + LABEL + (at - row * self.row) as f64 * scale;
        let y = rows + row as f64 * STEP + ROW + CAPTION - 2.0;
        writeln!(out, r#"<text class="c" x="{x:.2}" y="{y:.1}">{}</text>"#, xml(text))
    }

    fn colour(&self, block: &FragBlock) -> &'static str {
        if self.by_size {
            return size_colour(block.bytes);
        }
        let line = self.part.frag.line(block.stack);
        line.and_then(|line| self.colours.get(&line)).copied().unwrap_or(OTHERS)
    }

    fn near(&self, first: &FragBlock, last: &FragBlock, next: &FragBlock) -> bool {
        let narrow = (self.row as f64 * NARROW / WIDTH) as u64;
        let gap = next.address.saturating_sub(end(last));
        self.colour(first) == self.colour(next)
            && self.part.frag.line(first.stack) == self.part.frag.line(next.stack)
            && gap < narrow
            && (next.bytes < narrow || end(last).saturating_sub(first.address) < narrow)
    }

    fn holder(&self, stack: StackId) -> &str {
        self.words.get(&stack).map_or("?", String::as_str)
    }

    fn block_title(&self, segment: &FragSegment, block: &FragBlock) -> String {
        let offset = block.address.saturating_sub(segment.address);
        let time = match self.part.frag.at_ns {
            Some(_) => format!("\nallocated at {}", seconds(block.time_ns)),
            None => String::new(),
        };
        format!(
            "{}\n{}\n{} into the segment{time}",
            size(block.bytes),
            self.holder(block.stack),
            size(offset)
        )
    }

    /// Where a row ends, in bytes. All bytes of a trace may reach 2^64.
    fn end_of(&self, row: u64) -> u64 {
        (row + 1).saturating_mul(self.row)
    }

    /// A range of the map, cut where rows end.
    fn pieces(
        &self,
        (mut from, bytes): (u64, u64),
        rows: f64,
        shape: &str,
        title: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let end = from.saturating_add(bytes);
        let scale = WIDTH / self.row as f64;
        while from < end {
            let row = from / self.row;
            let to = end.min(self.end_of(row));
            let x = MARGIN + LABEL + (from - row * self.row) as f64 * scale;
            let y = rows + row as f64 * STEP;
            let width = ((to - from) as f64 * scale).max(NARROW);
            writeln!(
                out,
                r#"<rect x="{x:.2}" y="{y:.1}" width="{width:.2}" height="{ROW}" {shape}><title>{}</title></rect>"#,
                xml(title)
            )?;
            from = to;
        }
        Ok(())
    }
}

fn end(block: &FragBlock) -> u64 {
    block.address.saturating_add(block.bytes)
}

/// The least bytes of each class, in its colour.
const SIZES: [(u64, &str); 5] = [
    (0, "#b8d4ea"),
    (1 << 20, "#7fb2d9"),
    (10 << 20, "#3b76af"),
    (100 << 20, "#e08a2e"),
    (1 << 30, "#c23b34"),
];

fn size_colour(bytes: u64) -> &'static str {
    let fits = SIZES.iter().rev().find(|(least, _)| bytes >= *least);
    fits.map_or(OTHERS, |(_, colour)| colour)
}

fn size_legend() -> Vec<(u32, &'static str, String)> {
    let words = |index: usize| match SIZES.get(index + 1) {
        Some((next, _)) => format!("blocks below {}", size(*next)),
        None => format!("blocks of {} and more", size(SIZES[index].0)),
    };
    let row = |index: usize| (index as u32, SIZES[index].1, words(index));
    (0..SIZES.len()).map(row).collect()
}

/// `modeling_gpt2.py:212 forward, called from train.py:41`.
fn words(classifier: &StackClassifier, stack: StackId) -> String {
    let roles = classifier.roles_of_block(stack);
    let Some(lead) = classifier.frame(stack, roles.lead) else {
        return classifier.symbols.why_empty(stack).to_string();
    };
    let function = shorten(&classifier.holder_name(stack, lead), 60);
    let mut words = match lead.place() {
        Some(place) => format!("{place} {function}"),
        None => function,
    };
    let caller = classifier.frame(stack, roles.caller).and_then(|frame| frame.place());
    if let Some(caller) = caller {
        words.push_str(&format!(", called from {caller}"));
    }
    if let Some(library) = classifier.library_name(&roles) {
        words.push_str(&format!(" ({library})"));
    }
    words
}

/// As text of an XML document; control characters are not allowed in one.
fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push('\n'),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::DeviceId;

    #[test]
    fn every_byte_has_its_place_and_text_cannot_break_out() {
        let mut frag = Frag::empty(DeviceId(0));
        let block = |address, bytes| FragBlock { address, bytes, stack: StackId(1), time_ns: 0 };
        let segment = |address, bytes, blocks: Vec<FragBlock>| FragSegment {
            address,
            bytes,
            small: false,
            expandable: false,
            largest_free: 0,
            paused: 0,
            blocks,
        };
        let gib = 1 << 30;
        frag.segments = vec![
            segment(gib, gib, vec![block(gib, gib / 2), block(gib + gib / 2, 512)]),
            segment(9 * gib, gib, Vec::new()),
        ];
        let header = Header::default();
        let part = MapPart { name: "a<b>&\u{7}".into(), frag: &frag, header: &header };
        let mut out = Vec::new();
        write(&[part], "at the end", &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("a&lt;b&gt;&amp;?"), "{text}");
        let widths = |shape: &str| -> f64 {
            let shown =
                text.lines().filter(|line| line.contains(shape) && line.contains("<title>"));
            let width = |line: &str| -> Option<f64> {
                line.split("width=\"").nth(1)?.split('"').next()?.parse().ok()
            };
            shown.filter_map(width).sum::<f64>()
        };
        let all = WIDTH * MOST_ROWS as f64;
        assert!((widths("class=\"s\"") - all / 2.0).abs() < 1.0, "{}", widths("class=\"s\""));
        assert!((widths("class=\"e\"") - all / 2.0).abs() < 1.0);
        let half = widths(size_colour(gib / 2));
        assert!((half - all / 4.0).abs() < 1.0, "a block of half a GiB: {half}");
        assert!(widths(size_colour(512)) > 0.0, "a dot");
    }

    /// Only a damaged or hostile trace has them.
    #[test]
    fn segments_that_reach_the_largest_number_have_an_end() {
        let mut frag = Frag::empty(DeviceId(0));
        let half = 1 << 63;
        let block = |address, bytes| FragBlock { address, bytes, stack: StackId(1), time_ns: 0 };
        let segment = |address, bytes, blocks: Vec<FragBlock>| FragSegment {
            address,
            bytes,
            small: false,
            expandable: false,
            largest_free: 0,
            paused: 0,
            blocks,
        };
        frag.segments = vec![
            segment(0, half, vec![block(0, half), block(half, u64::MAX)]),
            segment(half, u64::MAX, vec![block(half, half), block(7, 7), block(u64::MAX, 9)]),
            segment(u64::MAX, u64::MAX, Vec::new()),
        ];
        let header = Header::default();
        let part = MapPart { name: "a".into(), frag: &frag, header: &header };
        /// Fails where a file would be written without end.
        struct Bounded(usize);
        impl Write for Bounded {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        write(&[part], "at the end", &mut Bounded(1 << 20)).unwrap();
    }
}
