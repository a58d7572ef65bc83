//! Damaged traces: what is broken is reported, what is whole is read, nothing panics.

mod common;

use common::any::fixed;
use common::*;
use proptest::prelude::*;
use proptest::sample::Index;
use vramtrace_format::*;

/// A trace whose windows are full, so that a flip seldom hits emptiness.
fn full() -> (Vec<u8>, Vec<Stamped>) {
    let windows = grid(&[
        (WindowKind::Definitions, 1, 0),
        (WindowKind::Events, 1, 0),
        (WindowKind::Events, 2, 0),
    ]);
    define_all(&windows, &[Definition::Note { text: "n".into() }]);
    let mut written = Vec::new();
    for window in &windows[1..] {
        let writer = window.writer();
        for n in 1u64.. {
            let event = if n % 3 == 0 { free(n << 9) } else { alloc(n << 9, n) };
            let Appended::At { offset, .. } = writer.append(ThreadId(1), n * 64, &event) else {
                break;
            };
            written.push(Stamped { offset, time_ns: n * 64, thread: ThreadId(1), event });
        }
    }
    (file(&windows), written)
}

/// How many of `written` are missing; panics when something was given that was never written.
fn missing(given: &[Stamped], written: &[Stamped]) -> usize {
    let mut rest = written.iter();
    for stamped in given {
        assert!(rest.any(|w| w == stamped), "{stamped:?} was never written, or not here");
    }
    written.len() - given.len()
}

proptest! {
    #![proptest_config(fixed(150))]

    #[test]
    fn flipped_bits_cost_the_records_around_them_alone(flips in proptest::collection::vec((any::<Index>(), 0..8u8), 1..20)) {
        let (mut bytes, written) = full();
        let len = bytes.len() - HEADER_BYTES;
        for (at, bit) in &flips {
            // The header page has its own test: with another uuid no window belongs to it.
            bytes[HEADER_BYTES + at.index(len)] ^= 1 << bit;
        }
        let (_, given, damage) = read(&bytes).unwrap();
        let missing = missing(&given, &written);
        // One record each; three more where the length was hit.
        prop_assert!(missing <= 4 * flips.len(), "{missing} missing for {} flips", flips.len());
        prop_assert!(missing == 0 || !damage.is_empty());
    }

    #[test]
    fn random_bytes_cost_what_they_cover(
        at in any::<Index>(),
        junk in proptest::collection::vec(any::<u8>(), 1..5000),
    ) {
        let (mut bytes, written) = full();
        let at = HEADER_BYTES + at.index(bytes.len() - HEADER_BYTES);
        let end = bytes.len().min(at + junk.len());
        bytes[at..end].copy_from_slice(&junk[..end - at]);
        let (_, given, damage) = read(&bytes).unwrap();
        let missing = missing(&given, &written);
        prop_assert!(missing <= junk.len() / 16 + 6, "{missing} missing for {} bytes", junk.len());
        prop_assert!(missing == 0 || !damage.is_empty());
    }

    #[test]
    fn zeroed_ranges_cost_what_they_cover(at in any::<Index>(), len in 1..5000usize) {
        let (mut bytes, written) = full();
        let at = HEADER_BYTES + at.index(bytes.len() - HEADER_BYTES);
        let end = bytes.len().min(at + len);
        bytes[at..end].fill(0);
        // A window whose first page is gone reads as never written, as one that was punched.
        let gone = (0..4).any(|slot| at as u64 <= slot_offset(slot) && end as u64 >= slot_offset(slot) + 4096);
        let (_, given, damage) = read(&bytes).unwrap();
        let missing = missing(&given, &written);
        prop_assert!(gone || missing <= len / 16 + 6, "{missing} missing for {len} bytes");
        prop_assert!(gone || missing == 0 || !damage.is_empty(), "{missing} missing unnoticed");
    }

    /// Whatever the bytes are, reading ends and nothing panics.
    #[test]
    fn any_bytes_after_a_header_read_without_a_panic(
        junk in proptest::collection::vec(any::<u64>(), 0..40_000),
        sparse in any::<bool>(),
    ) {
        let mut bytes = header().to_page().to_vec();
        for word in junk {
            bytes.extend(if sparse && word % 3 == 0 { 0 } else { word }.to_le_bytes());
        }
        let (definitions, given, _) = read(&bytes).unwrap();
        prop_assert!(definitions.is_empty() && given.is_empty());
    }

    #[test]
    fn of_concatenated_traces_the_first_is_read(cut in any::<Index>(), other in any::<bool>()) {
        let (bytes, written) = full();
        let cut = HEADER_BYTES + cut.index(bytes.len() - HEADER_BYTES);
        let mut both = bytes[..cut].to_vec();
        let mut second = bytes.clone();
        if other {
            second = small_of(Header { uuid: *b"another file....", ..header() });
        }
        both.extend(second);
        let (_, given, damage) = read(&both).unwrap();
        missing(&given, &written);
        let first = written.iter().take_while(|s| s.offset as usize + 32 <= cut).count();
        prop_assert!(given.len() >= first, "{} of {first}", given.len());
        prop_assert!(!damage.is_empty());
    }

    /// In the header page a flip is reported, and the events are still there.
    #[test]
    fn a_flip_in_the_header_page_is_noticed(at in 0..HEADER_BYTES, bit in 0..8u8) {
        let (mut bytes, written) = full();
        bytes[at] ^= 1 << bit;
        let (_, given, damage) = read(&bytes).unwrap();
        prop_assert_eq!(missing(&given, &written), 0);
        prop_assert_eq!(damage[0].kind, DamageKind::Header);
    }
}

fn small_of(header: Header) -> Vec<u8> {
    let mut windows = grid(&[(WindowKind::Events, 1, 0)]);
    windows[0].header.file = header.file_tag();
    append_all(&windows, &[(1, 0, alloc(512, 1)), (1, 64, free(512))]);
    let mut bytes = header.to_page().to_vec();
    bytes.extend(&file(&windows)[HEADER_BYTES..]);
    bytes
}

#[test]
fn a_broken_word_of_a_window_header_costs_no_record() {
    let (bytes, written) = full();
    for slot in [1, 2] {
        for at in 0..56 {
            let mut bytes = bytes.clone();
            bytes[slot_offset(slot) as usize + at] ^= 0x10;
            let (_, given, damage) = read(&bytes).unwrap();
            assert_eq!(missing(&given, &written), 0, "byte {at} of slot {slot}: {damage:?}");
            assert_eq!(damage.len(), 1, "byte {at}: {damage:?}");
            assert_eq!(damage[0].kind, DamageKind::WindowHeader);
            assert_eq!(damage[0].offset, slot_offset(slot));
        }
    }
}

#[test]
fn an_erased_window_is_a_gap_and_no_damage() {
    let mut grid = grid(&[(WindowKind::Events, 1, 0); 6]);
    for (index, window) in grid.iter_mut().enumerate() {
        window.header.base_time_ns = index as u64 * 1_000_000;
    }
    for window in &grid {
        let time = window.header.base_time_ns;
        let _ = window.writer().append(ThreadId(1), time, &alloc(512, time));
    }
    let mut bytes = file(&grid);
    bytes[..HEADER_BYTES].copy_from_slice(&limited(6));
    assert_eq!(TraceReader::new(&bytes).unwrap().history_from_ns(), 0);
    for slot in [0, 3, 4] {
        let at = slot_offset(slot) as usize;
        bytes[at..at + SLOT].fill(0);
    }
    let reader = TraceReader::new(&bytes).unwrap();
    assert_eq!(reader.damage(), []);
    assert_eq!(
        reader.runs(),
        [
            Run { first: 0, count: 2, from_ns: 1_000_000, after_gap: true },
            Run { first: 2, count: 1, from_ns: 5_000_000, after_gap: true },
        ]
    );
    assert_eq!(reader.history_from_ns(), 5_000_000);
    let times = |run| reader.events_of(run).map(|s| s.time_ns).collect::<Vec<_>>();
    assert_eq!(times(&reader.runs()[0]), [1_000_000, 2_000_000]);
    assert_eq!(times(&reader.runs()[1]), [5_000_000]);
    assert_eq!(reader.events().count(), 3);

    let reader_runs = reader.runs().to_vec();
    // Given the ranges that hold data, the reader does not look into the holes.
    let junk = slot_offset(3) as usize;
    bytes[junk..junk + 4096].fill(1);
    assert_eq!(TraceReader::new(&bytes).unwrap().damage().len(), 1);
    let data =
        [0..HEADER_BYTES as u64, slot_offset(1)..slot_offset(3), slot_offset(5)..slot_offset(6)];
    let sparse = TraceReader::sparse(&bytes, &data).unwrap();
    assert_eq!(sparse.damage(), []);
    assert_eq!(sparse.runs(), reader_runs);
    assert_eq!(sparse.events().count(), 3);
}

/// The header page of a file that may have so many slots.
fn limited(slots: u64) -> [u8; HEADER_BYTES] {
    Header { max_bytes: Some(slots * SLOT as u64), ..header() }.to_page()
}

#[test]
fn what_was_cut_off_while_it_was_written_is_reported() {
    let (definitions, events) = ((WindowKind::Definitions, 1, 0), (WindowKind::Events, 1, 0));
    let grid = grid(&[definitions, events, definitions, events, definitions, events]);
    for window in &grid {
        let _ = window.writer().append(ThreadId(1), 0, &alloc(512, 1));
    }
    let mut bytes = file(&grid);
    assert_eq!(TraceReader::new(&bytes).unwrap().damage(), []);
    bytes[slot_offset(0) as usize..slot_offset(3) as usize].fill(0);
    let damage = |bytes: &[u8]| {
        let reader = TraceReader::new(bytes).unwrap();
        reader.damage().iter().map(|damage| (damage.kind, damage.offset)).collect::<Vec<_>>()
    };
    let definitions = (DamageKind::DefinitionsMissing, slot_offset(4));
    let events = (DamageKind::EventsMissing, slot_offset(3));
    assert_eq!(damage(&bytes), [definitions, events]);
    // Events may have been erased, definitions not.
    bytes[..HEADER_BYTES].copy_from_slice(&limited(4));
    assert_eq!(damage(&bytes), [definitions]);
}

#[test]
fn places_that_were_used_again_are_read_in_the_order_of_the_sequence() {
    let mut grid = grid(&[(WindowKind::Events, 1, 0); 3]);
    // The first was erased, and the fourth stands in its place.
    grid[0].header.sequence = 3;
    for (index, window) in grid.iter().enumerate() {
        let event = alloc(512 * (index as u64 + 1), 1);
        let _ = window.writer().append(ThreadId(1), 0, &event);
    }
    let mut bytes = file(&grid);
    bytes[..HEADER_BYTES].copy_from_slice(&limited(3));
    let reader = TraceReader::new(&bytes).unwrap();
    assert_eq!(reader.damage(), []);
    let events: Vec<_> = reader.events().collect();
    let keys: Vec<u64> = events
        .iter()
        .map(|one| match one.event {
            Event::Alloc(alloc) => alloc.key,
            _ => 0,
        })
        .collect();
    assert_eq!(keys, [1024, 1536, 512]);
    assert!(events.is_sorted_by_key(|one| one.offset), "{events:?}");
    assert_eq!(reader.runs().len(), 1);
}

#[test]
fn another_major_is_refused() {
    let mut page = header().to_page();
    assert!(TraceReader::new(&page).is_ok());
    assert_eq!(TraceReader::new(b"hello").unwrap_err(), Error::TooShort { bytes: 5 });
    assert_eq!(TraceReader::new(&[7; 9000]).unwrap_err(), Error::NotATrace);
    page[10] = 200;
    vramtrace_format::header::seal(&mut page);
    assert_eq!(TraceReader::new(&page).unwrap().header().minor, 200);
    page[8] = 3;
    vramtrace_format::header::seal(&mut page);
    assert_eq!(TraceReader::new(&page).unwrap_err(), Error::NewerMajor { found: 3, known: 2 });
}

#[test]
fn kinds_and_words_of_a_newer_writer_are_skipped() {
    use vramtrace_format::word::{Check, Head};
    let windows = grid(&[(WindowKind::Events, 1, 0)]);
    append_all(&windows, &[(1, 64, free(512)), (1, 128, free(1024)), (1, 192, Event::Ended)]);
    let mut bytes = file(&windows);
    let check = Check::of_file(header().file_tag());
    let mut put = |at: usize, words: &mut [u64]| {
        words[0] |= u64::from(vramtrace_format::word::check(check, words).sum16(at as u64));
        for (index, word) in words.iter().enumerate() {
            bytes[at + 8 * index..][..8].copy_from_slice(&word.to_le_bytes());
        }
    };
    let head = |kind, len| Head { time_lo: 1, kind, len, thread: 1, check: 0 }.pack();
    let first = slot_offset(0) as usize + 64;
    put(first, &mut [head(0x7E, 2), 3]);
    // A known kind, longer than known today.
    let unmap = |address, size, stack| Event::Unmap { address, size, stack: StackId(stack) };
    put(first + 16, &mut [head(0x17, 6), 0, 10, 20, 30, 40]);
    put(first + 64, &mut [head(0x7D, 1)]);
    let reader = TraceReader::new(&bytes).unwrap();
    let mut events = reader.events();
    assert_eq!(events.next().unwrap().event, unmap(10, 20, 30));
    assert_eq!(events.next(), None);
    assert_eq!((events.damage(), events.unknown()), (&[][..], 2));
}
