//! A flame graph: one SVG that needs nothing else. Frames have the colour of their library.

use std::io::{self, Write};

use inferno::flamegraph::color::{Color, PaletteMap};
use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};

use super::ProcessStacks;
use super::folded::{Lines, add};
use crate::analysis::{Layer, Places};
use crate::symbols::{FREE_CACHE_NAME, Frame};

/// Of the libraries that people meet most; light enough for black text, and distinguished by people
/// who do not see red and green.
const KNOWN: [(&str, [u8; 3]); 7] = [
    ("PyTorch", [240, 176, 94]),
    ("cuBLAS", [126, 190, 232]),
    ("cuDNN", [104, 166, 214]),
    ("NCCL", [214, 150, 190]),
    ("transformers", [246, 226, 110]),
    ("XLA", [118, 200, 176]),
    ("Triton", [190, 174, 222]),
];
/// Of others, by their names.
const OTHERS: [[u8; 3]; 6] = [
    [202, 214, 140],
    [226, 190, 160],
    [160, 212, 214],
    [222, 206, 232],
    [198, 198, 240],
    [240, 202, 202],
];
/// Less than this is shown in KiB.
const LITTLE: u64 = 64 << 20;
const PROGRAM: [u8; 3] = [110, 190, 140];
const GREY: [u8; 3] = [205, 205, 205];

pub(super) fn write(
    processes: &[ProcessStacks],
    title: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut palette = PaletteMap::default();
    let mut bytes = Lines::new();
    for process in processes {
        let places = Places::of_trace(&process.header, &process.symbols);
        add(&mut bytes, process, processes.len() > 1, |name, frame| {
            palette.insert(name, frame.map_or(colour(GREY), |frame| colour_of(&places, frame)));
        });
    }
    palette.insert("all", colour(GREY));
    let all = bytes.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    palette.insert(FREE_CACHE_NAME, colour(GREY));
    // The library adds them up.
    let mut left = u64::MAX;
    let lines: Vec<String> = bytes
        .into_iter()
        .map(|(line, bytes)| {
            let bytes = bytes.min(left);
            left -= bytes;
            format!("{line} {bytes}")
        })
        .collect();
    let mut options = Options::default();
    options.title = title.to_string();
    let (unit, factor) = match all {
        0..LITTLE => ("KiB", 1u64 << 10),
        _ => ("MiB", 1 << 20),
    };
    options.count_name = unit.to_string();
    options.factor = 1.0 / factor as f64;
    options.palette_map = Some(&mut palette);
    // The beginning of a name says most.
    options.text_truncate_direction = TextTruncateDirection::Right;
    // The same file for the same trace.
    options.deterministic = true;
    from_lines(&mut options, lines.iter().map(String::as_str), &mut *out)?;
    out.flush()
}

fn colour_of(places: &Places, frame: &Frame) -> Color {
    if &*frame.function == FREE_CACHE_NAME {
        return colour(GREY);
    }
    if places.layer(frame) == Layer::Own {
        return colour(PROGRAM);
    }
    let Some(library) = places.library(frame) else { return colour(GREY) };
    let known = KNOWN.iter().find(|(name, _)| *name == library).map(|(_, colour)| *colour);
    colour(known.unwrap_or_else(|| OTHERS[hash(&library) % OTHERS.len()]))
}

fn colour([r, g, b]: [u8; 3]) -> Color {
    Color { r, g, b }
}

/// FNV-1a: the same in every run and version.
fn hash(text: &str) -> usize {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    (text.bytes().fold(0xcbf2_9ce4_8422_2325, step) >> 16) as usize
}
