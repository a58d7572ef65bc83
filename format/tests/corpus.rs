//! The fuzzer's seeds still are what their names say: they follow the format.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::read;
use vramtrace_format::DamageKind::*;
use vramtrace_format::{Appended, HEADER_BYTES, TraceReader, WindowWriter};

#[test]
fn the_seeds_read_as_they_are_meant() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/reader");
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        let (definitions, events, damage) = read(&std::fs::read(&path).unwrap()).unwrap();
        let kinds: Vec<_> = damage.iter().map(|d| d.kind).collect();
        let (defined, happened, broken) = match name.as_str() {
            "header" => (0, 0, vec![]),
            "events" => (0, 70, vec![Cut]),
            "definitions" => (13, 0, vec![Cut]),
            "cut" => (0, 68, vec![Cut]),
            // The second one stands where no window can: in the first one's window.
            "twice" => (0, 70, vec![Cut, Record]),
            "bad_magic" | "bad_header" => (0, 70, vec![Header, Cut]),
            "bad_window" => (0, 70, vec![WindowHeader, Cut]),
            "bad_record" => (0, 69, vec![Cut, Record]),
            "bad_length" => (0, 69, vec![Cut, RecordLength]),
            "unfinished" => (0, 69, vec![Cut]),
            "hole" => (0, 64, vec![Cut, RecordLength]),
            "stray_window" => (0, 0, vec![WindowHeader]),
            other => panic!("{other}: a seed that this test does not know"),
        };
        assert_eq!(
            (definitions.len(), events.len(), &kinds),
            (defined, happened, &broken),
            "{name}"
        );
        seen += 1;
    }
    assert_eq!(seen, 13);
}

#[test]
fn the_seeds_events_are_written_to_the_same_bytes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/reader/events");
    let seed = std::fs::read(path).unwrap();
    let reader = TraceReader::new(&seed).unwrap();
    let header = reader.event_windows()[0].header;
    let words: Vec<AtomicU64> = (0..header.bytes() / 8).map(|_| AtomicU64::new(0)).collect();
    let writer = WindowWriter::begin(&words, header);
    for at in reader.events() {
        let appended = writer.append(at.thread, at.time_ns, &at.event);
        assert!(matches!(appended, Appended::At { .. }), "{at:?}");
    }
    let bytes: Vec<u8> =
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
    assert_eq!(bytes[..writer.published()], seed[HEADER_BYTES..]);
}
