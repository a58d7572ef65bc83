//! A map of PyTorch's segments as an SVG: their bytes in the order of their addresses, row after
//! row, blocks in the colour of the line that holds them. Titles tell more where the pointer is.

use std::io::{self, Write};

use rustc_hash::FxHashMap;
use vramtrace_format::{Header, StackId};

use crate::analysis::StackClassifier;
use crate::analysis::frag::{Frag, FragBlock, FragSegment};
use crate::units::{gib, seconds, size};

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 24.0;
const ROW: f64 = 16.0;
const STEP: f64 = 21.0;
/// Left of the rows: the first address in each.
const LABEL: f64 = 120.0;
const MOST_ROWS: u64 = 48;
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
         stroke-width:.6;stroke-dasharray:3 2}}.a{{font-size:10px;fill:#777;font-family:ui-monospace,\
         monospace}}rect[fill]:hover{{stroke:#000;stroke-width:1}}</style>"
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
    title: String,
    /// Line, colour, words.
    legend: Vec<(u32, &'static str, String)>,
    colours: FxHashMap<u32, &'static str>,
    words: FxHashMap<StackId, String>,
    /// Bytes of a full row.
    row: u64,
    rows: u64,
}

impl<'f> Map<'f> {
    fn of(part: &'f MapPart<'f>, when: &str) -> Map<'f> {
        let frag = part.frag;
        let time = frag.at_ns.map(|ns| format!(" ({})", seconds(ns))).unwrap_or_default();
        let title = format!(
            "{}  GPU {}  {when}{time}: {} reserved, {} allocated, {} free in segments",
            part.name,
            frag.device.0,
            gib(frag.reserved),
            gib(frag.allocated),
            gib(frag.free())
        );
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
        let rows = all.div_ceil(row);
        Map { part, title, legend, colours, words: stacks, row, rows }
    }

    fn height(&self) -> f64 {
        let legend = (self.legend.len() + 1).div_ceil(2) as f64 * LEGEND_ROW;
        20.0 + legend + 10.0 + self.rows as f64 * STEP + MARGIN
    }

    fn write(&self, top: f64, out: &mut dyn Write) -> io::Result<()> {
        let bold = r#"font-size="14" font-weight="600""#;
        writeln!(
            out,
            r#"<text x="{MARGIN}" y="{}" {bold}>{}</text>"#,
            top + 8.0,
            xml(&self.title)
        )?;
        let mut y = top + 20.0;
        let others =
            (0, OTHERS, "all others; grey and empty: free; dashed: releasable".to_string());
        for (index, (_, colour, words)) in self.legend.iter().chain([&others]).enumerate() {
            let x = MARGIN + (index % 2) as f64 * (WIDTH + LABEL) / 2.0;
            writeln!(
                out,
                r#"<rect x="{x}" y="{}" width="11" height="11" fill="{colour}"/><text x="{}" y="{}">{}</text>"#,
                y,
                x + 17.0,
                y + 10.0,
                xml(words)
            )?;
            if index % 2 == 1 {
                y += LEGEND_ROW;
            }
        }
        let rows = top + self.height() - MARGIN - self.rows as f64 * STEP;
        let mut at = 0;
        let mut labelled = None;
        for segment in &self.part.frag.segments {
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
            at = at.saturating_add(segment.bytes);
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
                (last, count, used) = (next, count + 1, used + next.bytes);
            }
            let bytes = last.address + last.bytes - first.address;
            let title = match count {
                1 => self.block_title(segment, first),
                _ => format!(
                    "{count} blocks, {} in {}\n{}",
                    size(used),
                    size(bytes),
                    self.holder(first.stack)
                ),
            };
            let colour = self.part.frag.line(first.stack).and_then(|line| self.colours.get(&line));
            let shape = format!(r#"fill="{}""#, colour.unwrap_or(&OTHERS));
            let start = at + (first.address - segment.address);
            self.pieces((start, bytes), rows, &shape, &title, out)?;
        }
        writeln!(out, "</g>")
    }

    fn near(&self, first: &FragBlock, last: &FragBlock, next: &FragBlock) -> bool {
        let narrow = (self.row as f64 * NARROW / WIDTH) as u64;
        let gap = next.address - (last.address + last.bytes);
        self.part.frag.line(first.stack) == self.part.frag.line(next.stack)
            && gap < narrow
            && (next.bytes < narrow || last.address + last.bytes - first.address < narrow)
    }

    fn holder(&self, stack: StackId) -> &str {
        self.words.get(&stack).map_or("?", String::as_str)
    }

    fn block_title(&self, segment: &FragSegment, block: &FragBlock) -> String {
        let offset = block.address - segment.address;
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
            let to = end.min((row + 1) * self.row);
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

/// `modeling_gpt2.py:212 forward, called from train.py:41`.
fn words(classifier: &StackClassifier, stack: StackId) -> String {
    let roles = classifier.read_block(stack);
    let Some(lead) = classifier.frame(stack, roles.lead) else {
        return classifier.symbols.why_empty(stack).to_string();
    };
    let short = |text: &str| text.chars().take(60).collect::<String>();
    let mut words = match lead.place() {
        Some(place) => format!("{place} {}", short(&lead.function)),
        None => short(&lead.function),
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
        assert!((widths(OTHERS) - all / 4.0).abs() < 1.0, "two blocks: one of half a GiB, a dot");
    }
}
