//! Fragmentation, for people and for programs.

use serde::Serialize;
use vramtrace_format::Header;

use super::holders::{FrameFacts, Listing, frame_facts, words as frame_words};
use super::layout::{BAD, BOLD, DIM, PLAIN, Table, clean, count, paint, several};
use super::picture::{self, Palette};
use crate::analysis::frag::{At, Frag, Pin, PoolFrag, Segment};
use crate::analysis::{By, Reading};
use crate::units::{gib, seconds, size};

pub const SCHEMA: &str = "vramtrace.frag/1";

/// `vramtrace.frag/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
pub struct Report {
    pub schema: &'static str,
    pub devices: Vec<DeviceFacts>,
}

/// One device of one process.
#[derive(Debug, Serialize)]
pub struct DeviceFacts {
    pub ordinal: u8,
    pub pid: u32,
    pub rank: Option<u32>,
    /// `peak`, `end`, `time` or `oom`.
    pub at: &'static str,
    /// Null: the trace has no times.
    pub at_s: Option<f64>,
    pub reserved_bytes: u64,
    pub allocated_bytes: u64,
    pub free_in_segments_bytes: u64,
    pub largest_free_block_bytes: u64,
    /// Of the free bytes: in segments that hold no block.
    pub releasable_bytes: u64,
    /// Of the free bytes: in segments that hold a block, and smaller than the usual request.
    pub unusable_bytes: u64,
    pub peak_reserved_bytes: u64,
    pub peak_allocated_bytes: u64,
    /// 1 - peak allocated / peak reserved; null where nothing was reserved.
    pub fragmentation: Option<f64>,
    /// The history begins here: earlier peaks are not known. Null: it is whole.
    pub from_s: Option<f64>,
    /// What the last request that got nothing asked for.
    pub out_of_memory_bytes: Option<u64>,
    pub small: PoolFacts,
    pub large: PoolFacts,
    pub segments: u64,
    /// The segments that keep most free memory, first.
    pub pinned: Vec<SegmentFacts>,
    /// The lines that keep most free memory, first.
    pub holders: Vec<PinFacts>,
}

#[derive(Debug, Serialize)]
pub struct PoolFacts {
    pub segments: u64,
    pub reserved_bytes: u64,
    pub allocated_bytes: u64,
    pub largest_free_block_bytes: u64,
    pub releasable_bytes: u64,
    pub unusable_bytes: u64,
    pub usual_request_bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct SegmentFacts {
    pub address: u64,
    pub bytes: u64,
    pub free_bytes: u64,
    pub largest_free_block_bytes: u64,
    pub blocks: u64,
    pub small: bool,
    pub expandable: bool,
}

#[derive(Debug, Serialize)]
pub struct PinFacts {
    /// Its part of the free bytes of the segments that it has blocks in.
    pub pinned_bytes: u64,
    pub segments: u64,
    /// Of those, held by nobody else.
    pub alone: u64,
    pub bytes: u64,
    pub blocks: u64,
    /// Who asked the driver.
    pub library: Option<String>,
    /// Of the stack with the most bytes, innermost first.
    pub frames: Vec<FrameFacts>,
    pub lead: Option<usize>,
    pub caller: Option<usize>,
    /// Why there are no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_frames: Option<&'static str>,
}

/// Segments and holders are facts of this many at most: a trace may have thousands.
const FACTS: usize = 100;

pub fn facts(frag: &Frag, header: &Header, at: At) -> DeviceFacts {
    let reading = Reading::new(&frag.symbols, header);
    DeviceFacts {
        ordinal: frag.device.0,
        pid: header.pid,
        rank: header.rank,
        at: match at {
            At::Peak => "peak",
            At::End => "end",
            At::Time(_) => "time",
            At::OutOfMemory => "oom",
        },
        at_s: frag.at_ns.map(|ns| ns as f64 / 1e9),
        reserved_bytes: frag.reserved,
        allocated_bytes: frag.allocated,
        free_in_segments_bytes: frag.free(),
        largest_free_block_bytes: frag.largest_free,
        releasable_bytes: frag.releasable(),
        unusable_bytes: frag.unusable(),
        peak_reserved_bytes: frag.peak_reserved,
        peak_allocated_bytes: frag.peak_allocated,
        fragmentation: frag.fragmentation(),
        from_s: frag.from_ns.map(|ns| ns as f64 / 1e9),
        out_of_memory_bytes: frag.out_of_memory.map(|oom| oom.size),
        small: pool_facts(&frag.small),
        large: pool_facts(&frag.large),
        segments: frag.segments.len() as u64,
        pinned: pinned(frag).into_iter().take(FACTS).map(segment_facts).collect(),
        holders: frag.pins.iter().take(FACTS).map(|pin| pin_facts(&reading, pin)).collect(),
    }
}

fn pool_facts(pool: &PoolFrag) -> PoolFacts {
    PoolFacts {
        segments: pool.segments,
        reserved_bytes: pool.reserved,
        allocated_bytes: pool.allocated,
        largest_free_block_bytes: pool.largest_free,
        releasable_bytes: pool.releasable,
        unusable_bytes: pool.unusable,
        usual_request_bytes: pool.usual_request,
    }
}

/// With a block in them, those with most free memory first.
fn pinned(frag: &Frag) -> Vec<&Segment> {
    let mut pinned: Vec<&Segment> = frag.segments.iter().filter(|s| s.is_pinned()).collect();
    pinned.sort_by_key(|segment| (std::cmp::Reverse(segment.free()), segment.address));
    pinned
}

fn segment_facts(segment: &Segment) -> SegmentFacts {
    SegmentFacts {
        address: segment.address,
        bytes: segment.bytes,
        free_bytes: segment.free(),
        largest_free_block_bytes: segment.largest_free,
        blocks: segment.blocks.len() as u64,
        small: segment.small,
        expandable: segment.expandable,
    }
}

fn pin_facts(reading: &Reading, pin: &Pin) -> PinFacts {
    let said = reading.read(pin.stack);
    let frames: Vec<FrameFacts> = reading.symbols.stack(pin.stack).map(frame_facts).collect();
    PinFacts {
        pinned_bytes: pin.pinned,
        segments: pin.segments,
        alone: pin.alone,
        bytes: pin.bytes,
        blocks: pin.blocks,
        library: reading.library_name(&said).map(str::to_string),
        lead: said.lead,
        caller: said.caller,
        no_frames: frames.is_empty().then(|| reading.symbols.why_empty(pin.stack)),
        frames,
    }
}

/// How it is shown.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    pub at: At,
    /// Holders, and rows of the picture.
    pub top: usize,
    pub rows: usize,
    /// Columns of the terminal.
    pub width: usize,
}

/// For people. `name`: what the trace is called.
pub fn text(name: &str, frag: &Frag, header: &Header, shown: Shown) -> String {
    let when = match shown.at {
        At::Peak => "when it reserved most",
        At::End => "at the end",
        At::Time(_) => "at that time",
        At::OutOfMemory => "when it ran out of memory",
    };
    let time = frag.at_ns.map(|ns| format!(" ({})", seconds(ns))).unwrap_or_default();
    let mut out = format!(
        "{}  GPU {}  PyTorch's cache {when}{time}\n",
        paint(BOLD, &clean(name)),
        frag.device.0
    );
    out.push_str(&sums(frag));
    if let Some(share) = frag.fragmentation() {
        let text = format!("{:.0} %", share * 100.0);
        let style = if share >= 0.25 { BAD } else { BOLD };
        out.push_str(&format!(
            "\n  fragmentation {}: {} reserved at its peak, {} allocated at its own\n",
            paint(style, &text),
            gib(frag.peak_reserved),
            gib(frag.peak_allocated)
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
        out.push_str(&picture::rows(frag, &palette, shown.rows, shown.width));
    }
    out
}

fn sums(frag: &Frag) -> String {
    let mut table = Table::new(2, "lrl");
    let row = |table: &mut Table, name: &str, bytes: u64, what: String| {
        table.styled([(name.to_string(), PLAIN), (gib(bytes), BOLD), (what, DIM)]);
    };
    row(&mut table, "reserved", frag.reserved, several(frag.segments.len() as u64, "segment"));
    row(&mut table, "allocated", frag.allocated, String::new());
    row(&mut table, "free", frag.free(), format!("the largest piece {}", size(frag.largest_free)));
    row(&mut table, "  releasable", frag.releasable(), "in segments that hold nothing".into());
    let usual = |pool: &PoolFrag, name: &str| {
        (pool.usual_request > 0).then(|| format!("{} for {name} blocks", size(pool.usual_request)))
    };
    let both: Vec<String> =
        [usual(&frag.large, "large"), usual(&frag.small, "small")].into_iter().flatten().collect();
    row(
        &mut table,
        "  unusable",
        frag.unusable(),
        format!("pieces below the usual request: {}", both.join(", ")),
    );
    if let Some(oom) = frag.out_of_memory {
        let when = frag.at_ns.map(|_| format!(" at {}", seconds(oom.time_ns))).unwrap_or_default();
        let what = format!("{}: a request that got nothing{when}", size(oom.size));
        table.styled([("asked".into(), PLAIN), (String::new(), PLAIN), (what, DIM)]);
    }
    table.render()
}

fn holders(frag: &Frag, header: &Header, palette: &Palette, shown: Shown) -> String {
    let kept: Vec<&Pin> = frag.pins.iter().filter(|pin| pin.pinned > 0).collect();
    if kept.is_empty() {
        return String::new();
    }
    let reading = Reading::new(&frag.symbols, header);
    let how = Listing { by: By::Line, top: shown.top, full: false, when: "" };
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
        let said = reading.read(pin.stack);
        let lead = match reading.frame(pin.stack, said.lead) {
            Some(frame) => frame_words(frame, how),
            None => reading.symbols.why_empty(pin.stack).to_string(),
        };
        table.styled([
            (size(pin.pinned), PLAIN),
            (count(pin.segments), PLAIN),
            (count(pin.alone), PLAIN),
            (size(pin.bytes), PLAIN),
            (count(pin.blocks), PLAIN),
            ("█".into(), palette.style(Some(pin.line))),
            (clean(reading.library_name(&said).unwrap_or("?")), PLAIN),
            (lead, BOLD),
        ]);
        if let Some(caller) = reading.frame(pin.stack, said.caller) {
            let text = format!("called from {}", frame_words(caller, how));
            let empty = || (String::new(), PLAIN);
            let before = std::iter::repeat_with(empty).take(7);
            table.cells(before.chain([(text, DIM)]));
        }
    }
    let mut out = format!("\n{}", table.render());
    if kept.len() > shown.top {
        let rest = kept[shown.top..].iter().map(|pin| pin.pinned).sum();
        let more = count((kept.len() - shown.top) as u64);
        out.push_str(&paint(DIM, &format!("  and {more} more, {} together\n", size(rest))));
    }
    out
}
