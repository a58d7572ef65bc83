//! The tail file: the mapped memory of the windows that are being filled. It is next to the trace, or in a memory file
//! system of the host, while the process runs, and stays there after a kill.

use crate::window::{SLOT, WINDOW_HEADER, WINDOW_MAGIC, WindowHeader};

/// Offset of the tail's slots, in bytes. A copy of the trace's header page precedes them.
pub const TAIL_START: usize = 64 << 10;
/// Extension of the tail's name, without the dot. The file tag in 16 hexadecimal digits precedes it.
pub const TAIL_EXTENSION: &str = "tail";

/// A window in a tail file. Its place in the trace is the slot in its header.
#[derive(Clone, Copy, Debug)]
pub struct TailWindow<'a> {
    pub header: WindowHeader,
    /// Offset in the tail file, in bytes.
    pub at: usize,
    pub bytes: &'a [u8],
}

/// The name of a trace's tail file, in the same directory: `.TRACE.TAG.tail`.
pub fn name(trace: &[u8], tag: u64) -> Vec<u8> {
    // A file name has at most 255 bytes.
    let trace = &trace[..trace.len().min(200)];
    [b".", trace, name_end(tag).as_bytes()].concat()
}

/// The end of the name of a trace's tail file, and the whole name of one in memory ([`crate::memory`]). It does not
/// change if the trace is renamed.
pub fn name_end(tag: u64) -> String {
    format!(".{tag:016x}.{TAIL_EXTENSION}")
}

/// Whether it is the whole name of a tail in memory.
pub fn is_memory_name(name: &[u8]) -> bool {
    let tag = name.strip_prefix(b".").and_then(|name| name.strip_suffix(b".tail"));
    tag.is_some_and(|tag| tag.len() == 16 && tag.iter().all(u8::is_ascii_hexdigit))
}

/// The windows in a tail file that belong to the trace with this file tag. A truncated window is left out.
pub fn windows(tail: &[u8], tag: u64) -> impl Iterator<Item = TailWindow<'_>> {
    let mut at = TAIL_START;
    std::iter::from_fn(move || {
        while at < tail.len() {
            let from = at;
            at += SLOT;
            let found = header_at(&tail[from..]).filter(|header| header.file == tag);
            let bytes = |header: &WindowHeader| tail.get(from..from.checked_add(header.bytes())?);
            if let Some(header) = found
                && let Some(bytes) = bytes(&header)
            {
                at = from + bytes.len();
                return Some(TailWindow { header, at: from, bytes });
            }
        }
        None
    })
}

/// The header of the window that begins with these bytes. `None`: they are not a valid window.
pub fn header_at(bytes: &[u8]) -> Option<WindowHeader> {
    let mut words = [0; WINDOW_HEADER / 8 - 1];
    let begin = bytes.get(..WINDOW_HEADER)?;
    for (word, bytes) in words.iter_mut().zip(begin.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    let [magic, fixed @ ..] = words;
    WindowHeader::from_words(&fixed).filter(|_| magic == WINDOW_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::WindowKind;
    use crate::write::writer::WindowWriter;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn window(slot: u32, slots: u16, file: u64) -> Vec<u8> {
        let words: Vec<_> = (0..slots as usize * SLOT / 8).map(|_| AtomicU64::new(0)).collect();
        let kind = WindowKind::Events;
        let header = WindowHeader { kind, slots, slot, sequence: 3, base_time_ns: 0, file };
        WindowWriter::begin(&words, header);
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    #[test]
    #[cfg_attr(miri, ignore = "megabytes of zeros take Miri minutes")]
    fn windows_of_the_trace_are_found_between_free_and_foreign_ones() {
        let mut tail = vec![0; TAIL_START];
        for (slot, slots, file) in [(9, 1, 7), (4, 1, 8), (70, 4, 7), (80, 2, 7)] {
            tail.extend(window(slot, slots, file));
        }
        tail[TAIL_START] = 0; // the first was released
        tail.pop(); // the last is truncated
        let found: Vec<_> = windows(&tail, 7).map(|w| (w.header.slot, w.at)).collect();
        assert_eq!(found, [(70, TAIL_START + 2 * SLOT)]);
        assert_eq!(windows(&[], 7).count(), 0);
    }

    #[test]
    fn names() {
        assert_eq!(name(b"x.vtrace", 0xAB), b".x.vtrace.00000000000000ab.tail");
        assert!(is_memory_name(name_end(0xAB).as_bytes()));
        assert!(!is_memory_name(&name(b"x.vtrace", 0xAB)));
        assert!(name(&[b'x'; 255], 1).len() < 255);
    }
}
