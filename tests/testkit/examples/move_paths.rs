//! Gives the paths in a recorded trace other directories, before it is kept in `tests/data`: nothing else changes, sizes and
//! places included. OLD and NEW have the same length.
//!
//! `cargo run -p vramtrace-testkit --example move_paths -- TRACE OLD NEW`

use vramtrace_format::{HEADER_BYTES, TraceReader, header, word};

const PADDING: u8 = 1;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, old, new] = &arguments[..] else { panic!("TRACE OLD NEW") };
    assert!(!old.is_empty() && old.len() == new.len(), "{old} and {new} differ in length");
    let mut bytes = std::fs::read(path).unwrap();
    let (tag, windows) = {
        let reader = TraceReader::new(&bytes).unwrap();
        let all = reader.event_windows().iter().chain(reader.definition_windows());
        let windows: Vec<(usize, usize)> =
            all.map(|window| (window.offset as usize, window.header.bytes())).collect();
        (reader.header().file_tag(), windows)
    };
    let mut moved = replace(&mut bytes[..HEADER_BYTES], old, new);
    let mut page: [u8; HEADER_BYTES] = bytes[..HEADER_BYTES].try_into().unwrap();
    header::seal(&mut page);
    bytes[..HEADER_BYTES].copy_from_slice(&page);
    for (start, length) in windows {
        let (mut at, end) = (start + 64, (start + length).min(bytes.len()));
        while at + 8 <= end {
            let words = usize::from(bytes[at + 4]).max(1);
            let record = at..(at + 8 * words).min(end);
            at = record.end;
            let is_padding = bytes[record.start + 5] == PADDING;
            if is_padding || replace(&mut bytes[record.clone()], old, new) == 0 {
                continue;
            }
            moved += 1;
            bytes[record.start..record.start + 2].fill(0);
            let words: Vec<u64> = bytes[record.clone()]
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
                .collect();
            let check = word::check(word::Check::of_file(tag), &words);
            let check = check.sum16(record.start as u64).to_le_bytes();
            bytes[record.start..record.start + 2].copy_from_slice(&check);
        }
    }
    assert_eq!(replace(&mut bytes.clone(), old, new), 0, "a part of a long record has {old}");
    std::fs::write(path, bytes).unwrap();
    println!("{path}: {moved} records");
}

/// The number of replacements.
fn replace(bytes: &mut [u8], old: &str, new: &str) -> usize {
    let mut found = 0;
    for at in 0..bytes.len().saturating_sub(old.len() - 1) {
        let place = &mut bytes[at..at + old.len()];
        if place == old.as_bytes() {
            place.copy_from_slice(new.as_bytes());
            found += 1;
        }
    }
    found
}
