//! Imports arbitrary bytes as a foreign recording: the result is an error, or a history whose trace can be
//! read.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use vramtrace_format::TraceReader;
use vramtrace_reader::import;

fuzz_target!(|bytes: &[u8]| {
    let Ok(history) = import::parse(bytes) else { return };
    let file = tempfile::NamedTempFile::new().expect("a file");
    let woven = import::convert(&history, Path::new("fuzz"), file.reopen().expect("the file"));
    woven.expect("written");
    let trace = std::fs::read(file.path()).expect("readable");
    let reader = TraceReader::new(&trace).expect("a trace");
    let mut events = reader.events();
    events.by_ref().count();
    assert!(events.damage().is_empty() && reader.damage().is_empty());
});
