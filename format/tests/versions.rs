//! Readers of one minor version read the traces of another.

mod common;

use common::*;
use vramtrace_format::*;

/// Kinds that came with 1.1; a reader of 1.0 knows none of them.
const NEW: std::ops::RangeInclusive<u8> = 0x40..=0x4F;

fn events() -> Vec<(u16, u64, Event)> {
    let alloc = Alloc {
        key: 1 << 40,
        space: Space::Device,
        size: 4096,
        site: SiteId(1),
        stack: StackId(2),
    };
    let counters = Counters { live: 4096, peak: 4096, allocations: 1, ..Counters::default() };
    let all = [
        Event::Alloc(alloc),
        Event::SampledAlloc { rate: 1 << 19, alloc },
        Event::SummaryBegin { cache_ooms: 0 },
        Event::SummaryDevice(counters),
        Event::SummaryEnd { records: 1 },
        Event::Ended,
    ];
    all.into_iter().zip(1..).map(|(event, n)| (1, n * 640, event)).collect()
}

/// The records of these kinds get numbers that no version has: what a reader sees that does not
/// know them. Their checks are made anew.
fn as_a_reader_of_1_0_sees_it(bytes: &mut [u8]) -> usize {
    let (tag, windows) = {
        let reader = TraceReader::new(bytes).unwrap();
        let windows: Vec<(u64, usize)> = reader
            .event_windows()
            .iter()
            .map(|window| (window.offset, window.header.bytes()))
            .collect();
        (reader.header().file_tag(), windows)
    };
    let mut changed = 0;
    for (start, length) in windows {
        let mut at = start as usize + 64;
        while at + 8 <= start as usize + length {
            let words = usize::from(bytes[at + 4]);
            let kind = bytes[at + 5];
            if words == 0 {
                break;
            }
            if NEW.contains(&kind) {
                bytes[at + 5] = kind + 0x30;
                bytes[at..at + 2].fill(0);
                let record: Vec<u64> = bytes[at..at + 8 * words]
                    .chunks_exact(8)
                    .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
                    .collect();
                let check = word::check(word::Check::of_file(tag), &record).sum16(at as u64);
                bytes[at..at + 2].copy_from_slice(&check.to_le_bytes());
                changed += 1;
            }
            at += 8 * words;
        }
    }
    changed
}

#[test]
fn a_reader_of_1_0_reads_1_1_and_counts_what_it_skips() {
    let windows = grid(&[(WindowKind::Events, 1, 0)]);
    let all = append_all(&windows, &events());
    let mut bytes = file(&windows);
    assert_eq!(as_a_reader_of_1_0_sees_it(&mut bytes), 4);
    let reader = TraceReader::new(&bytes).unwrap();
    let mut given = reader.events();
    let read: Vec<Event> = given.by_ref().map(|at| at.event).collect();
    assert_eq!(read, [all[0].event, Event::Ended]);
    assert_eq!((given.unknown(), given.damage().len()), (4, 0));
}

#[test]
fn a_newer_minor_is_read_and_a_newer_major_is_not() {
    let windows = grid(&[(WindowKind::Events, 1, 0)]);
    append_all(&windows, &events());
    let mut bytes = file(&windows);
    let set = |bytes: &mut [u8], at: usize, value: u16| {
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        let mut page: [u8; HEADER_BYTES] = bytes[..HEADER_BYTES].try_into().unwrap();
        vramtrace_format::header::seal(&mut page);
        bytes[..HEADER_BYTES].copy_from_slice(&page);
    };
    for minor in [0, 1, 7, u16::MAX] {
        set(&mut bytes, 10, minor);
        let reader = TraceReader::new(&bytes).unwrap();
        assert_eq!((reader.header().minor, reader.damage().len()), (minor, 0));
        assert_eq!(reader.events().count(), events().len());
    }
    set(&mut bytes, 8, 2);
    assert!(matches!(TraceReader::new(&bytes), Err(Error::NewerMajor { found: 2, .. })));
}
