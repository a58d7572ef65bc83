//! Makes traces of windows with arbitrary contents and correct checks, as a writer with a bug or a newer
//! writer could leave them.

use std::sync::atomic::{AtomicU64, Ordering};
use vramtrace_format::word::{Check, Head, check};
use vramtrace_format::*;

/// The input as words.
pub fn words(input: &[u8]) -> Vec<u64> {
    let words = input.chunks_exact(8);
    words.filter_map(|bytes| bytes.try_into().ok().map(u64::from_le_bytes)).collect()
}

/// A window of one slot with these contents, without padding.
fn window(kind: WindowKind, slot: u32, inside: &[u64]) -> Vec<u64> {
    let header = WindowHeader { kind, slots: 1, sequence: 0, slot, base_time_ns: 0, file: 0 };
    let window: Vec<_> = (0..SLOT / 8).map(|_| AtomicU64::new(0)).collect();
    WindowWriter::begin(&window, header);
    let len = 8 + inside.len().min(SLOT / 8 - 8);
    let mut words: Vec<u64> = window[..8].iter().map(|w| w.load(Ordering::Relaxed)).collect();
    words.extend(&inside[..len - 8]);
    let mut at = 8;
    while at < len {
        let head = Head::unpack(words[at]);
        let end = at + head.len as usize;
        if head.kind == 0 || head.len == 0 || end > len {
            at += 1;
            continue;
        }
        let covered = if head.kind == code::PAD { at + 1 } else { end };
        let sum = check(Check::of_file(0), &words[at..covered]);
        let place = slot_offset(slot.into()) + 8 * at as u64;
        words[at] = Head { check: sum.sum16(place), ..head }.pack();
        at = end;
    }
    words
}

/// A trace of these windows, which ends with the last one.
pub fn trace(windows: &[(WindowKind, &[u64])]) -> Vec<u8> {
    let mut bytes = Header::default().to_page().to_vec();
    for (slot, (kind, inside)) in windows.iter().enumerate() {
        bytes.resize(slot_offset(slot as u64) as usize, 0);
        let words = window(*kind, slot as u32, inside);
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    bytes
}
