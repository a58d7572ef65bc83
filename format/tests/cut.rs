//! A trace cut off anywhere.

mod common;

use common::*;
use vramtrace_format::*;

/// The length of the record at this offset.
fn len(bytes: &[u8], offset: u64) -> usize {
    8 * bytes[offset as usize + 4] as usize
}

#[test]
fn a_file_cut_at_any_byte_reads_up_to_there() {
    let (bytes, definitions, written) = small();
    assert_eq!(read(&bytes).unwrap(), (definitions.clone(), written.clone(), vec![]));
    let ends: Vec<usize> =
        written.iter().map(|s| s.offset as usize + len(&bytes, s.offset)).collect();
    let check = |cut: usize| {
        let found = read(&bytes[..cut]);
        if cut < HEADER_BYTES {
            assert_eq!(found, Err(Error::TooShort { bytes: cut as u64 }));
            return;
        }
        let (defined, given, damage) = found.unwrap();
        let whole = ends.partition_point(|end| *end <= cut);
        assert!(given == written[..whole], "cut at {cut}: {} events", given.len());
        assert!(definitions.starts_with(&defined), "cut at {cut}: {defined:?}");
        if cut >= slot_offset(1) as usize {
            assert_eq!(defined, definitions);
        }
        let at_a_slot = (cut - HEADER_BYTES).is_multiple_of(SLOT);
        assert_eq!(damage.is_empty(), at_a_slot, "cut at {cut}: {damage:?}");
        assert!(
            damage.iter().all(|d| d.offset + d.bytes >= cut as u64),
            "cut at {cut}: {damage:?}"
        );
    };
    // Half a million cuts: shared out.
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for first in 0..threads {
            let (check, len) = (&check, bytes.len());
            scope.spawn(move || (first..len).step_by(threads).for_each(check));
        }
    });
}

/// A file that is cut has lost definitions of its last window; the parts of a long one are not
/// taken for a whole.
#[test]
fn a_long_definition_is_whole_or_missing() {
    let long = Definition::Text { id: 9, text: "0123456789".repeat(900) };
    let windows = grid(&[(WindowKind::Definitions, 1, 0)]);
    define_all(&windows, std::slice::from_ref(&long));
    let bytes = file(&windows);
    let mut seen = [0; 2];
    for cut in (HEADER_BYTES..HEADER_BYTES + 20_000).step_by(8) {
        let (given, _, _) = read(&bytes[..cut]).unwrap();
        assert!(given.is_empty() || given == [long.clone()]);
        seen[given.len()] += 1;
    }
    assert!(seen[0] > 1000 && seen[1] > 1000, "{seen:?}");
}
