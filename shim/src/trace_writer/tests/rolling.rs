//! Many threads through many windows.

use super::*;
use std::collections::{HashMap, HashSet};

/// 8 threads, each its own addresses, over many windows: everything is there, once, in order.
fn rolling(scratch: &str, adjust: impl FnOnce(&mut TraceWriter), pairs: u64) {
    let scratch = Scratch::new(scratch);
    let recorder = recorder(scratch.path(), "unlimited", adjust);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            scope.spawn(move || {
                for i in 0..pairs {
                    let key = (thread << 32 | i) << 9;
                    recorder.record(&alloc(key, site(recorder, thread % 3 + 7)));
                    recorder.record(&free(key));
                }
            });
        }
    });
    // Without a tail some records may not be written yet.
    recorder.trace().unwrap().flush().unwrap();
    let path = recorder.path().unwrap();
    let bytes = bytes_of(&path);
    let reader = TraceReader::new(&bytes).unwrap();
    let definitions = reader.definitions();
    let mut next: HashMap<u64, u64> = HashMap::new();
    let mut live = HashSet::new();
    let mut events = reader.events();
    for stamped in events.by_ref() {
        match stamped.event {
            Event::Alloc(alloc) => {
                let (thread, i) = (alloc.key >> 41, alloc.key >> 9 & 0xFFFF_FFFF);
                let expected = next.entry(thread).or_default();
                assert_eq!(i, *expected, "thread {thread}");
                *expected += 1;
                assert!(live.insert(alloc.key));
                assert!(alloc.site.0 >= 1 && alloc.site.0 <= 3);
            }
            Event::Free { key, .. } => assert!(live.remove(&key)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(events.damage(), &[]);
    assert_eq!(next.len(), 8);
    assert!(next.values().all(|count| *count == pairs));
    assert!(live.is_empty());
    let (mut sites, mut threads) = (0, 0);
    for definition in definitions {
        match definition {
            Definition::Site { .. } => sites += 1,
            Definition::Thread { .. } => threads += 1,
            _ => {}
        }
    }
    assert_eq!((sites, threads), (3, 8));
}

#[test]
fn eight_threads_roll_through_mapped_windows() {
    rolling("mapped", |_| (), 60_000);
}

#[test]
fn eight_threads_roll_through_windows_in_memory() {
    rolling("in-memory", tail_only(Some(TailPlace::Memory)), 20_000);
}

#[test]
fn eight_threads_roll_through_written_windows() {
    rolling("written", tail_only(None), 20_000);
}

#[test]
fn threads_without_a_number_are_one() {
    let scratch = Scratch::new("threads");
    let recorder = recorder(scratch.path(), "unlimited", |recorder| {
        recorder.threads = AtomicU32::new(u32::from(u16::MAX) - 1);
    });
    for key in 1..=3 {
        std::thread::scope(|scope| {
            scope.spawn(move || recorder.record(&alloc(key << 20, site(recorder, 7))));
        });
    }
    let bytes = bytes_of(&recorder.path().unwrap());
    let reader = TraceReader::new(&bytes).unwrap();
    let threads: Vec<u16> = reader.events().map(|stamped| stamped.thread.0).collect();
    assert_eq!(threads, [u16::MAX, 0, 0]);
    let notes = reader.definitions().filter(|one| matches!(one, Definition::Note { .. }));
    assert_eq!(notes.count(), 1);
}
