//! Readers of one minor version read the traces of another.

mod common;

use common::*;
use vramtrace_format::*;

/// Kinds that a reader before them does not know.
const NEW: std::ops::RangeInclusive<u8> = 0x45..=0x6F;

fn events() -> Vec<(u16, u64, Event)> {
    let alloc = Alloc {
        key: 1 << 40,
        space: Space::Device,
        size: 4096,
        site: SiteId(1),
        stack: StackId(2),
        requested: None,
    };
    let counters = Counters { live: 4096, peak: 4096, allocations: 1, ..Counters::default() };
    let listed = Listed::new(1, 0, &Event::Counters(counters));
    let all = [
        Event::Alloc(alloc),
        Event::SampledAlloc { rate: 1 << 19, alloc },
        Event::StateBegin { id: 1, what: Purpose::Summary, cache_ooms: 0 },
        Event::StateEvent(listed),
        Event::StateEnd { id: 1, cut: false },
        Event::Ended,
    ];
    all.into_iter().zip(1..).map(|(event, n)| (1, n * 640, event)).collect()
}

/// The records of these kinds get numbers that no version has: what a reader sees that does not
/// know them. Their checks are made anew.
fn as_an_older_reader_sees_it(bytes: &mut [u8]) -> usize {
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
fn an_older_reader_counts_what_it_skips() {
    let windows = grid(&[(WindowKind::Events, 1, 0)]);
    let all = append_all(&windows, &events());
    let mut bytes = file(&windows);
    assert_eq!(as_an_older_reader_sees_it(&mut bytes), 4);
    let reader = TraceReader::new(&bytes).unwrap();
    let mut given = reader.events();
    let read: Vec<Event> = given.by_ref().map(|at| at.event).collect();
    assert_eq!(read, [all[0].event, Event::Ended]);
    assert_eq!((given.unknown(), given.damage().len()), (4, 0));
}

/// A trace of these events, of which each record's words are changed on the way: its kind, and the
/// words behind word 1.
fn relaid(events: &[(u16, u64, Event)], change: impl Fn(u8, &mut Vec<u64>)) -> Vec<u8> {
    let windows = grid(&[(WindowKind::Events, 1, 0)]);
    append_all(&windows, events);
    let mut bytes = file(&windows);
    let (tag, start) = {
        let reader = TraceReader::new(&bytes).unwrap();
        (reader.header().file_tag(), reader.event_windows()[0].offset as usize)
    };
    let body: Vec<u64> = bytes[start + 64..]
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect();
    bytes[start + 64..].fill(0);
    let (mut from, mut to) = (0, start + 64);
    while body.get(from).is_some_and(|word| *word != 0) {
        let head = word::Head::unpack(body[from]);
        let mut words = body[from..from + usize::from(head.len)].to_vec();
        from += words.len();
        let mut rest = words.split_off(2);
        change(head.kind, &mut rest);
        words.extend(rest);
        words[0] = word::Head { len: words.len() as u8, check: 0, ..head }.pack();
        let check = word::check(word::Check::of_file(tag), &words).sum16(to as u64);
        words[0] = word::Head { check, ..word::Head::unpack(words[0]) }.pack();
        for word in words {
            bytes[to..to + 8].copy_from_slice(&word.to_le_bytes());
            to += 8;
        }
    }
    bytes
}

fn read_back(bytes: &[u8]) -> Vec<Event> {
    let reader = TraceReader::new(bytes).unwrap();
    let mut given = reader.events();
    let read = given.by_ref().map(|at| at.event).collect();
    assert_eq!((given.unknown(), given.damage().len(), reader.damage().len()), (0, 0, 0));
    read
}

/// Every kind of event, with fields that are not 0.
fn all_kinds() -> Vec<(u16, u64, Event)> {
    let kinds = Event::KINDS.iter().filter(|(_, name)| *name != "Anchor");
    let event = |(code, _): &(u8, &str)| {
        // Odd ones: what may be there is.
        let numbers = (1..).map(|n: u64| n * 6 + u64::from(*code) * 64 + 1);
        let numbers: Vec<u64> = std::iter::once(u64::MAX).chain(numbers).take(15).collect();
        common::any::event_near(*code, &numbers)
    };
    kinds.zip(1..).map(|(kind, n)| (1, n * 640, event(kind))).collect()
}

/// Newer minors add words at the end of records, of checkpoints too.
#[test]
fn words_behind_those_that_are_known_are_passed_over() {
    let events = all_kinds();
    let kinds = |events: &[(u16, u64, Event)]| events.iter().map(|at| at.2).collect::<Vec<_>>();
    let itself = |events: Vec<Event>| events.iter().map(Event::itself).collect::<Vec<_>>();
    assert!(kinds(&events).iter().any(|at| matches!(at, Event::StateEvent(_))), "{events:?}");
    assert_eq!(read_back(&relaid(&events, |_, _| ())), kinds(&events), "as they were written");
    for more in [1, 2] {
        let longer = relaid(&events, |_, words| {
            words.extend([u64::MAX, 0x1234_5678].into_iter().take(more));
        });
        let (read, written) = (itself(read_back(&longer)), itself(kinds(&events)));
        assert_eq!(read, written, "{more} more words each");
    }
}

#[test]
fn a_newer_minor_is_read_and_another_major_is_not() {
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
    set(&mut bytes, 8, 3);
    assert!(matches!(TraceReader::new(&bytes), Err(Error::NewerMajor { found: 3, .. })));
    set(&mut bytes, 8, 1);
    assert!(matches!(TraceReader::new(&bytes), Err(Error::OlderMajor { .. })));
}

#[test]
fn a_tail_in_memory_has_the_flag_of_one_beside_the_trace_too() {
    let flags = |tail| {
        let page = Header { tail, ..header() }.to_page();
        u32::from_le_bytes(page[12..16].try_into().unwrap()) & 0b110_0000
    };
    assert_eq!(flags(None), 0);
    assert_eq!(flags(Some(TailPlace::Beside)), 0b010_0000);
    assert_eq!(flags(Some(TailPlace::Memory)), 0b110_0000);
    let mut page = Header { tail: Some(TailPlace::Memory), ..header() }.to_page();
    page[12] &= !0b010_0000;
    vramtrace_format::header::seal(&mut page);
    assert_eq!(TraceReader::new(&page).unwrap().header().tail, None);
}
