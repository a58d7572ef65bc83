//! The text of `vramtrace frag`.

use vramtrace_format::Header;

use super::layout::{BAD, BOLD, DIM, Table, and_more, line, paint, section};
use super::stack::{called_from, lead};
use crate::analysis::frag::{Frag, Pin, PoolFrag};
use crate::analysis::{Level, Moment, StackClassifier};
use crate::units::{clean, count, seconds, several, size};

/// The whole report on one device. `name`: the name of the process. `top`: maximum number of rows in the table of holders.
pub fn text(name: &str, frag: &Frag, header: &Header, at: Moment, top: usize) -> String {
    let when = match at {
        Moment::Peak => "when it reserved most".into(),
        other => other.words(),
    };
    let time = frag.moment.at_ns.map(|ns| format!(" ({})", seconds(ns))).unwrap_or_default();
    let name = paint(BOLD, &clean(name));
    let mut out = format!("{name}  GPU {}  PyTorch's cache {when}{time}\n", frag.device.0);
    out.push_str(&sums(frag));
    if let Some(share) = frag.fragmentation {
        let style = if share >= 0.25 { BAD } else { BOLD };
        out.push_str(&format!(
            "\n  fragmentation {}: {} reserved at its peak, {} allocated at its own\n",
            paint(style, &format!("{:.0} %", share * 100.0)),
            size(frag.peak_reserved_bytes),
            size(frag.peak_allocated_bytes)
        ));
    }
    if frag.history_from_ns > 0 {
        let from = seconds(frag.history_from_ns);
        let text = format!("Note: the history before {from} is gone: earlier peaks are not known.");
        out.push_str(&line(2, DIM, &text));
    }
    out + &holders(frag, header, top)
}

/// Reserved, allocated and free bytes, and the parts of the free bytes.
fn sums(frag: &Frag) -> String {
    let mut table = Table::new(2, "lRd");
    let mut row =
        |name: &str, bytes: u64, what: String| table.row([name.into(), size(bytes), what]);
    row("reserved", frag.reserved_bytes, several(frag.segments, "segment"));
    row("allocated", frag.allocated_bytes, String::new());
    if frag.reserved_paused_bytes > 0 {
        let what = format!("unmapped, may come back; {} of it in blocks", size(frag.paused_bytes));
        row("  asleep", frag.reserved_paused_bytes, what);
    }
    let largest = format!("the largest piece {}", size(frag.largest_free_block_bytes));
    row("free", frag.free_in_segments_bytes, largest);
    row("  releasable", frag.releasable_bytes, "in segments that hold nothing".into());
    let usual = |(pool, name): (&PoolFrag, &str)| {
        (pool.usual_request > 0).then(|| format!("{} for {name} blocks", size(pool.usual_request)))
    };
    let usual = [(&frag.large, "large"), (&frag.small, "small")].into_iter().filter_map(usual);
    let usual = usual.collect::<Vec<_>>().join(", ");
    row("  unusable", frag.unusable_bytes, format!("pieces below the usual request: {usual}"));
    if let Some(oom) = frag.out_of_memory {
        let when = frag.moment.at_ns.map(|_| format!(" at {}", seconds(oom.time_ns)));
        let when = when.unwrap_or_default();
        let what = format!("{}: a request that got nothing{when}", size(oom.size));
        table.row(["asked".into(), String::new(), what]);
    }
    table.render()
}

/// The lines of code whose blocks keep otherwise free segments from being released.
fn holders(frag: &Frag, header: &Header, top: usize) -> String {
    let kept: Vec<&Pin> = frag.pins.iter().filter(|pin| pin.pinned > 0).collect();
    let classifier = StackClassifier::new(&frag.symbols, header);
    let titles =
        ["keeps free", "segments", "alone in", "holds", "blocks", "who keeps segments", ""];
    let mut table = Table::titled(2, "rrrrrlL", &titles);
    for pin in kept.iter().take(top) {
        let stack = classifier.named(pin.stack);
        let library = classifier.library_at(pin.stack, Level::Tensor);
        table.row([
            size(pin.pinned),
            count(pin.segments),
            count(pin.alone),
            size(pin.bytes),
            count(pin.blocks),
            clean(library.as_deref().unwrap_or("?")),
            lead(&stack, false),
        ]);
        table.under(called_from(&stack, false));
    }
    section(table.render()) + &and_more(2, kept.iter().skip(top).map(|pin| pin.pinned))
}
