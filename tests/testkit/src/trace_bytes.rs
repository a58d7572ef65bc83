//! The bytes of a trace as a reader sees them.

use std::path::Path;

use vramtrace_format::{SLOT, TraceReader, slot_offset, tail, word};

/// The bytes of a trace. If it has a tail file (its program runs, or was killed), the tail's windows are at
/// their offsets in the trace.
pub fn trace_bytes(trace: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(trace).unwrap();
    let tag = TraceReader::new(&bytes).map_or(0, |reader| reader.header().file_tag());
    let name = tail::name(trace.file_name().unwrap().as_encoded_bytes(), tag);
    let tail = trace.with_file_name(String::from_utf8(name).unwrap());
    if let Ok(tail) = std::fs::read(tail) {
        put_tail(&mut bytes, &tail, tag);
    }
    bytes
}

/// Puts the windows of a tail that are of the trace with this tag to their places in the trace.
pub fn put_tail(bytes: &mut Vec<u8>, tail: &[u8], tag: u64) {
    let mut from = tail::TAIL_START;
    while let Some(slot) = tail.get(from..from + SLOT) {
        let header = tail::header_at(slot).filter(|header| header.file == tag);
        let length = header.map_or(SLOT, |header| header.bytes());
        if let (Some(header), Some(window)) = (header, tail.get(from..from + length)) {
            let at = slot_offset(header.slot.into()) as usize;
            bytes.resize(bytes.len().max(at + length), 0);
            bytes[at..at + length].copy_from_slice(window);
        }
        from += length;
    }
}

/// Changes events of these kinds to an unknown kind, as a newer recorder would write. Returns their number.
pub fn make_newer(bytes: &mut [u8], kinds: &[u8]) -> usize {
    let (tag, windows) = {
        let reader = TraceReader::new(bytes).unwrap();
        let windows = reader.event_windows().iter();
        let windows = windows.map(|window| (window.offset as usize, window.header.bytes()));
        (reader.header().file_tag(), windows.collect::<Vec<_>>())
    };
    let mut changed = 0;
    for (start, length) in windows {
        let mut at = start + 64;
        while at + 8 <= (start + length).min(bytes.len()) {
            let word =
                |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let head = word::Head::unpack(word(bytes, at));
            if head.len == 0 {
                break;
            }
            let end = at + 8 * usize::from(head.len);
            if kinds.contains(&head.kind) {
                let mut words: Vec<u64> = (at..end).step_by(8).map(|at| word(bytes, at)).collect();
                let head = word::Head { kind: 0x7D, check: 0, ..head };
                words[0] = head.pack();
                let check = word::check(word::Check::of_file(tag), &words).sum16(at as u64);
                bytes[at..at + 8]
                    .copy_from_slice(&word::Head { check, ..head }.pack().to_le_bytes());
                changed += 1;
            }
            at = end;
        }
    }
    changed
}
