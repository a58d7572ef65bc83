//! The text of `vramtrace frag`.

use vramtrace_format::Header;

use super::heatmap::{self, Palette};
use super::layout::{BAD, BOLD, DIM, PLAIN, Table, and_more, paint};
use super::stack::{called_from, lead};
use crate::analysis::frag::{Frag, Pin, PoolFrag};
use crate::analysis::{Level, Moment, StackClassifier};
use crate::units::{clean, count, gib, seconds, several, size};

/// What is shown, and how large.
#[derive(Clone, Copy, Debug)]
pub struct FragOptions {
    pub at: Moment,
    /// The most rows in the table of holders.
    pub top: usize,
    /// The most segments in the heatmap.
    pub rows: usize,
    /// Columns of the terminal.
    pub width: usize,
}

/// The whole report on one device. `name`: the name of the process.
pub fn text(name: &str, frag: &Frag, header: &Header, shown: FragOptions) -> String {
    let when = match shown.at {
        Moment::Peak => "when it reserved most".into(),
        other => other.words(),
    };
    let time = frag.at_ns.map(|ns| format!(" ({})", seconds(ns))).unwrap_or_default();
    let mut out = format!(
        "{}  GPU {}  PyTorch's cache {when}{time}\n",
        paint(BOLD, &clean(name)),
        frag.device.0
    );
    out.push_str(&sums(frag));
    if let Some(share) = frag.fragmentation {
        let text = format!("{:.0} %", share * 100.0);
        let style = if share >= 0.25 { BAD } else { BOLD };
        out.push_str(&format!(
            "\n  fragmentation {}: {} reserved at its peak, {} allocated at its own\n",
            paint(style, &text),
            gib(frag.peak_reserved_bytes),
            gib(frag.peak_allocated_bytes)
        ));
    }
    if let Some(from) = frag.from_ns {
        let text = format!(
            "  Note: the history before {} is gone: earlier peaks are not known.\n",
            seconds(from)
        );
        out.push_str(&paint(DIM, &text));
    }
    let palette = Palette::of(frag);
    out.push_str(&holders(frag, header, &palette, shown));
    if !frag.segments.is_empty() && shown.rows > 0 {
        let all = frag.segments.len();
        let text = match all > shown.rows {
            true => format!(
                "segments by address: the {} that keep most free memory, of {}",
                shown.rows,
                count(all as u64)
            ),
            false => format!("segments by address: {}", count(all as u64)),
        };
        out.push_str(&format!(
            "\n  {}  {}\n",
            paint(DIM, &text),
            paint(DIM, "█ full  ▒ half  · free")
        ));
        out.push_str(&heatmap::rows(frag, &palette, shown.rows, shown.width));
    }
    out
}

/// Reserved, allocated and free bytes, and the parts of the free bytes.
fn sums(frag: &Frag) -> String {
    let mut table = Table::new(2, "lrl");
    let row = |table: &mut Table, name: &str, bytes: u64, what: String| {
        table.styled([(name.to_string(), PLAIN), (gib(bytes), BOLD), (what, DIM)]);
    };
    row(
        &mut table,
        "reserved",
        frag.reserved_bytes,
        several(frag.segments.len() as u64, "segment"),
    );
    row(&mut table, "allocated", frag.allocated_bytes, String::new());
    if frag.reserved_paused_bytes > 0 {
        let what = format!("unmapped, may come back; {} of it in blocks", size(frag.paused_bytes));
        row(&mut table, "  asleep", frag.reserved_paused_bytes, what);
    }
    row(
        &mut table,
        "free",
        frag.free_in_segments_bytes,
        format!("the largest piece {}", size(frag.largest_free_block_bytes)),
    );
    row(&mut table, "  releasable", frag.releasable_bytes, "in segments that hold nothing".into());
    let usual = |pool: &PoolFrag, name: &str| {
        (pool.usual_request > 0).then(|| format!("{} for {name} blocks", size(pool.usual_request)))
    };
    let both: Vec<String> =
        [usual(&frag.large, "large"), usual(&frag.small, "small")].into_iter().flatten().collect();
    row(
        &mut table,
        "  unusable",
        frag.unusable_bytes,
        format!("pieces below the usual request: {}", both.join(", ")),
    );
    if let Some(asked) = frag.out_of_memory_bytes {
        let when = frag.at_ns.map(|_| format!(" at {}", seconds(frag.out_of_memory_ns)));
        let when = when.unwrap_or_default();
        let what = format!("{}: a request that got nothing{when}", size(asked));
        table.styled([("asked".into(), PLAIN), (String::new(), PLAIN), (what, DIM)]);
    }
    table.render()
}

/// The lines of code whose blocks keep otherwise free segments from being released.
fn holders(frag: &Frag, header: &Header, palette: &Palette, shown: FragOptions) -> String {
    let kept: Vec<&Pin> = frag.pins.iter().filter(|pin| pin.pinned > 0).collect();
    if kept.is_empty() {
        return String::new();
    }
    let classifier = StackClassifier::new(&frag.symbols, header);
    let mut table = Table::new(2, "rrrrrlll");
    table.head(&[
        "keeps free",
        "segments",
        "alone in",
        "holds",
        "blocks",
        "",
        "who keeps segments",
    ]);
    for pin in kept.iter().take(shown.top) {
        let stack = classifier.named(pin.stack);
        let library = classifier.library_at(pin.stack, Level::Tensor);
        table.styled([
            (size(pin.pinned), PLAIN),
            (count(pin.segments), PLAIN),
            (count(pin.alone), PLAIN),
            (size(pin.bytes), PLAIN),
            (count(pin.blocks), PLAIN),
            ("█".into(), palette.style(Some(pin.line))),
            (clean(library.as_deref().unwrap_or("?")), PLAIN),
            (lead(&stack, false), BOLD),
        ]);
        called_from(&stack, false).into_iter().for_each(|caller| table.under(caller));
    }
    let mut out = format!("\n{}", table.render());
    out.push_str(&and_more("  ", kept.iter().skip(shown.top).map(|pin| pin.pinned)));
    out
}
