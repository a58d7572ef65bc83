//! Reads arbitrary bytes as a trace file: the reader must end, and must not panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vramtrace_format::{Cursor, TraceReader};

fuzz_target!(|bytes: &[u8]| {
    let Ok(reader) = TraceReader::new(bytes) else { return };
    let mut definitions = reader.definitions();
    definitions.by_ref().count();
    let mut events = reader.events();
    let most = bytes.len() / 16;
    assert!(events.by_ref().count() <= most);
    for damage in reader.damage().iter().chain(definitions.damage()).chain(events.damage()) {
        assert!(damage.bytes > 0, "{damage}");
        assert!(damage.offset <= bytes.len() as u64, "{damage}");
    }
    let by_run: usize = reader.runs().iter().map(|run| reader.events_of(run).count()).sum();
    assert!(by_run <= most);
    let mut tail = reader.tail(Cursor::default());
    tail.by_ref().count();
    reader.events_from(tail.cursor()).count();
});
