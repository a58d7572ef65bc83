//! The tail file: the mapped memory of the windows that are being filled. It is next to the trace, or in a memory file
//! system of the host, while the process runs, and stays there after a kill.

use crate::record::wire::word_of;
use crate::window::{WINDOW_HEADER, WINDOW_MAGIC, WindowHeader};

/// Offset of the tail's slots, in bytes. A copy of the trace's header page precedes them.
pub const TAIL_START: usize = 64 << 10;

/// The name of a trace's tail file, in the same directory: `.TRACE.TAG.tail`.
pub fn name(trace: &[u8], tag: u64) -> Vec<u8> {
    // A file name has at most 255 bytes.
    let trace = &trace[..trace.len().min(200)];
    [b".", trace, name_end(tag).as_bytes()].concat()
}

/// The end of the name of a trace's tail file, and the whole name of one in memory ([`crate::memory`]). It does not
/// change if the trace is renamed.
pub fn name_end(tag: u64) -> String {
    format!(".{tag:016x}.tail")
}

/// Whether it is the whole name of a tail in memory.
pub fn is_memory_name(name: &[u8]) -> bool {
    let tag = name.strip_prefix(b".").and_then(|name| name.strip_suffix(b".tail"));
    tag.is_some_and(|tag| tag.len() == 16 && tag.iter().all(u8::is_ascii_hexdigit))
}

/// The header of the window that begins with these bytes. `None`: they are not a valid window.
pub fn header_at(bytes: &[u8]) -> Option<WindowHeader> {
    let (magic, fixed) = header_words(bytes)?;
    WindowHeader::from_words(&fixed).filter(|_| magic == WINDOW_MAGIC)
}

/// Magic and words 1 to 6 of a window header. `None`: there are fewer bytes.
pub(super) fn header_words(bytes: &[u8]) -> Option<(u64, [u64; 6])> {
    let bytes = bytes.get(..WINDOW_HEADER)?;
    Some((word_of(bytes, 0), std::array::from_fn(|index| word_of(bytes, 1 + index))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(name(b"x.vtrace", 0xAB), b".x.vtrace.00000000000000ab.tail");
        assert!(is_memory_name(name_end(0xAB).as_bytes()));
        assert!(!is_memory_name(&name(b"x.vtrace", 0xAB)));
        assert!(name(&[b'x'; 255], 1).len() < 255);
    }
}
