//! Reads arbitrary records whose checks are correct, as a writer with a bug or a newer writer could leave
//! them. The input is the contents of a window, read as a window of each kind.
#![no_main]

mod repaired;

use libfuzzer_sys::fuzz_target;
use repaired::{trace, words};
use std::sync::atomic::{AtomicU64, Ordering};
use vramtrace_format::*;

fuzz_target!(|input: &[u8]| {
    let inside = words(input);
    let bytes = trace(&[(WindowKind::Definitions, &inside)]);
    let reader = TraceReader::new(&bytes).expect("its header is sound");
    reader.definitions().count();
    let bytes = trace(&[(WindowKind::Events, &inside)]);
    let reader = TraceReader::new(&bytes).expect("its header is sound");
    let events: Vec<_> = reader.events().collect();
    assert!(events.is_sorted_by(|a, b| a.offset < b.offset));
    // Reading from the middle gives the same remaining records.
    let mut first = reader.events();
    first.by_ref().take(events.len() / 2).for_each(drop);
    assert!(reader.events_from(first.cursor()).eq(events[events.len() / 2..].iter().copied()));
    // The records can be written again, and then read the same.
    let header = WindowHeader {
        kind: WindowKind::Events,
        slots: 2,
        sequence: 0,
        slot: 0,
        base_time_ns: 0,
        file: 0,
    };
    let window: Vec<_> = (0..header.bytes() / 8).map(|_| AtomicU64::new(0)).collect();
    let writer = WindowWriter::begin(&window, header);
    for stamped in &events {
        let appended = writer.append(stamped.thread, 0, &stamped.event);
        assert!(matches!(appended, Appended::At { .. }));
    }
    let mut copy = Header::default().to_page().to_vec();
    copy.extend(window.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()));
    let reader = TraceReader::new(&copy).expect("its header is sound");
    let again: Vec<_> = reader.events().map(|stamped| stamped.event).collect();
    assert!(events.iter().map(|stamped| stamped.event).eq(again));
});
