//! A trace as a reader sees it.

use std::path::Path;

use vramtrace_format::{TraceReader, slot_offset, tail};

/// The bytes of a trace, with the windows of its tail at their places where it has one: that of a
/// program that lives or was killed.
pub fn trace_bytes(trace: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(trace).unwrap();
    let tag = TraceReader::new(&bytes).map_or(0, |reader| reader.header().file_tag());
    let name = tail::name(trace.file_name().unwrap().as_encoded_bytes(), tag);
    let tail = trace.with_file_name(String::from_utf8(name).unwrap());
    let Ok(tail) = std::fs::read(tail) else { return bytes };
    for window in tail::windows(&tail, tag) {
        let at = slot_offset(window.header.slot.into()) as usize;
        bytes.resize(bytes.len().max(at + window.bytes.len()), 0);
        bytes[at..at + window.bytes.len()].copy_from_slice(window.bytes);
    }
    bytes
}
