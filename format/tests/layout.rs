//! The bytes are those of docs/FORMAT.md. These fail when the format changes unawares.

mod common;

use common::any::{definition, event, fixed};
use common::*;
use proptest::prelude::*;
use vramtrace_format::*;

const DOCUMENT: &str = include_str!("../../docs/FORMAT.md");

/// The check as the document states it.
fn check(tag: u64, words: &[u64]) -> u64 {
    words.iter().fold(0x7672_616D_7472_6163 ^ tag, |h, word| {
        (h.rotate_left(29) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}

fn finish(h: u64) -> u64 {
    (h ^ h >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[test]
fn a_window_and_its_short_records_have_the_documented_bytes() {
    let tag = u64::from_le_bytes(*b"01234567");
    let windows = grid(&[(WindowKind::Definitions, 3, 0), (WindowKind::Events, 1, 0x1234)]);
    let writer = windows[1].writer();
    for (time, event) in [(0x12_3456u64 << 6, alloc(0x7F00_0000_0200, 4096)), (0, free(512))] {
        assert!(matches!(writer.append(ThreadId(7), time, &event), Appended::At { .. }));
    }
    let bytes = file(&windows);
    let at = 4096 + 3 * 262_144;
    let header = words(&bytes[at..at + 64]);
    let fixed = [u64::from_le_bytes(*b"vtwindow"), 3 << 32 | 1 << 16 | 1, 0, 0x1234, tag, 0];
    assert_eq!(header[..6], fixed);
    assert_eq!(header[6], finish(check(0, &fixed)));
    assert_eq!(header[7], 64 + 32 + 16);

    let record = |offset: usize, head: u64, rest: &[u64]| {
        let words = [&[head], rest].concat();
        let sum = check(tag, &words) ^ (offset as u64).rotate_left(40);
        [&[head | finish(sum) >> 48], rest].concat()
    };
    let alloc = record(
        at + 64,
        0x3456_1004_0007_0000,
        &[0x12 << 40 | 0x7F00_0000_0200 >> 9, 4096, 1 << 32 | 2],
    );
    assert_eq!(words(&bytes[at + 64..at + 96]), alloc);
    assert_eq!(words(&bytes[at + 96..at + 112]), record(at + 96, 0x1202_0007_0000, &[1]));
    assert!(bytes[at + 112..].iter().all(|byte| *byte == 0));
}

/// A block with another request than its size is a word longer; without it, and before 1.1, it is not.
#[test]
fn a_block_with_its_request_has_the_documented_bytes() {
    let windows = grid(&[(WindowKind::Events, 1, 0)]);
    let writer = windows[0].writer();
    let block = |requested| Alloc {
        key: 0x7F00_0000_0200,
        space: Space::Block,
        size: 4096,
        site: SiteId(1),
        stack: StackId(2),
        requested,
    };
    let requests = [None, Some(4000), Some(0)];
    for requested in requests {
        let appended = writer.append(ThreadId(7), 0, &Event::Alloc(block(requested)));
        let bytes = 32 + 8 * usize::from(requested.is_some());
        assert!(matches!(appended, Appended::At { bytes: of, .. } if of == bytes), "{appended:?}");
    }
    let bytes = file(&windows);
    let at = 4096 + 64;
    let body = [0x7F00_0000_0200 >> 9, 4096, 1 << 32 | 2];
    assert_eq!(words(&bytes[at + 8..at + 32]), body);
    assert_eq!(words(&bytes[at + 40..at + 72]), [&body[..], &[4000]].concat());
    assert_eq!([bytes[at + 4], bytes[at + 32 + 4], bytes[at + 32 + 5]], [4, 5, 0x21]);
    let reader = TraceReader::new(&bytes).unwrap();
    let events: Vec<Event> = reader.events().map(|at| at.event).collect();
    assert_eq!(events, requests.map(|requested| Event::Alloc(block(requested))));
    // No block, and no address of a block: the long form has it too.
    for other in [
        Alloc { space: Space::Device, ..block(Some(7)) },
        Alloc { key: 0x7F00_0000_0201, ..block(Some(7)) },
    ] {
        let windows = grid(&[(WindowKind::Events, 1, 0)]);
        let written = append_all(&windows, &[(7, 0, Event::Alloc(other))]);
        assert_eq!(read(&file(&windows)).unwrap().1, written);
    }
}

#[test]
fn the_header_page_has_the_documented_bytes() {
    let page = header().to_page();
    assert_eq!(page[..16], *b"\x8Avtrace\n\x02\0\0\0\x3D\0\0\0");
    assert_eq!(page[16..32], *b"0123456789abcdef");
    assert_eq!(words(&page[32..64]), [1 << 32 | 4711, 99, 1_700_000_000_000_000_000, 5]);
    assert_eq!(words(&page[64..88]), [3, 13000 << 32 | 8, 2 << 30]);
    assert_eq!(page[128..142], *b"\x05\x000.1.0\x05\x00node7");
    let mut unchecked = page;
    unchecked[120..128].fill(0);
    assert_eq!(words(&page[120..128]), [finish(check(0, &words(&unchecked)))]);
}

/// `Name(..)` or `Name { .. }`, as the document names it.
fn name(debug: &str) -> &str {
    debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default()
}

fn assert_documented(bytes: &[u8], offset: u64, debug: &str) {
    let kind = bytes[offset as usize + 5];
    if kind != 2 {
        let row = format!("| {kind:02X} | {}", name(debug));
        assert!(DOCUMENT.contains(&row), "FORMAT.md has no row {row:?}");
    }
}

proptest! {
    #![proptest_config(fixed(400))]

    #[test]
    fn every_form_of_an_event_stands_in_the_document(event in event()) {
        let windows = grid(&[(WindowKind::Events, 1, 0)]);
        let written = append_all(&windows, &[(1, 0, event)]);
        assert_documented(&file(&windows), written[0].offset, &format!("{event:?}"));
    }

    #[test]
    fn every_definition_stands_in_the_document(definition in definition()) {
        let windows = grid(&[(WindowKind::Definitions, 1, 0)]);
        define_all(&windows, std::slice::from_ref(&definition));
        assert_documented(&file(&windows), 4096 + 64, &format!("{definition:?}"));
    }
}

#[test]
fn every_event_stands_in_the_document_once() {
    for (code, name) in Event::KINDS {
        let row = format!("| {code:02X} | {name}");
        assert_eq!(DOCUMENT.matches(&row).count(), 1, "FORMAT.md has not one row {row:?}");
    }
}

#[test]
fn every_kind_of_memory_stands_in_the_document() {
    for kind in Kind::ALL {
        let entry = format!(" {} {}", kind as u8, kind.name().replace('_', " "));
        assert!(DOCUMENT.contains(&entry), "FORMAT.md lacks {entry:?}");
    }
}
