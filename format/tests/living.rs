//! Several writers at once, and a reader that follows them.

mod common;

use common::*;
use vramtrace_format::*;

const THREADS: u16 = 8;

/// Each thread appends its own numbers until the window is full; how many it got in.
fn fill(writer: &WindowWriter, thread: u16) -> u64 {
    for n in 0u64.. {
        let size = u64::from(thread) << 32 | n;
        let event = match n % 3 {
            0 => alloc(512 * n, size),
            1 => Event::Unmap { address: 0, size, stack: Default::default() },
            _ => Event::Map {
                address: 0,
                size,
                offset: 0,
                object: 0,
                owner: StackId(0),
                stack: StackId(0),
            },
        };
        if writer.append(ThreadId(thread), n * 64, &event) == Appended::Full {
            return n;
        }
    }
    0
}

/// Checks that each thread's numbers come in order without a gap.
#[derive(Default)]
struct InOrder([u64; THREADS as usize]);

impl InOrder {
    fn take(&mut self, stamped: &Stamped) {
        let (Event::Alloc(Alloc { size, .. })
        | Event::Unmap { size, .. }
        | Event::Map { size, .. }) = stamped.event
        else {
            panic!("{stamped:?}");
        };
        let next = &mut self.0[(size >> 32) as usize];
        assert_eq!(size & 0xFFFF_FFFF, *next, "thread {}", size >> 32);
        assert_eq!(stamped.thread.0, (size >> 32) as u16);
        *next += 1;
    }
}

#[test]
fn threads_append_into_one_window_and_a_reader_follows() {
    let windows = grid(&[(WindowKind::Events, 4, 0)]);
    let writer = windows[0].writer();
    let mut seen = InOrder::default();
    let mut cursor = Cursor::default();
    let mut follow = |cursor| {
        let bytes = file(&windows);
        let reader = TraceReader::new(&bytes).unwrap();
        let mut events = reader.tail(cursor);
        events.by_ref().for_each(|stamped| seen.take(&stamped));
        assert_eq!(events.damage(), []);
        events.cursor()
    };
    let counts = std::thread::scope(|scope| {
        let writer = &writer;
        let threads: Vec<_> = (0..THREADS).map(|t| scope.spawn(move || fill(writer, t))).collect();
        while !writer.is_complete() {
            cursor = follow(cursor);
        }
        threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    follow(cursor);
    assert_eq!(seen.0.to_vec(), counts);

    let mut again = InOrder::default();
    let (_, given, damage) = read(&file(&windows)).unwrap();
    given.iter().for_each(|stamped| again.take(stamped));
    assert_eq!((again.0, damage), (seen.0, vec![]));
}

/// The window in this slot has so many bytes less that are published.
fn unpublish(bytes: &mut [u8], slot: u64, less: u64) {
    let published = &mut bytes[slot_offset(slot) as usize + 56..][..8];
    let count = words(published)[0] - less;
    published.copy_from_slice(&count.to_le_bytes());
}

#[test]
fn the_tail_waits_at_an_unpublished_record_and_comes_back() {
    let windows = grid(&[(WindowKind::Events, 1, 0), (WindowKind::Events, 1, 0)]);
    let events: Vec<_> = (1..9000).map(|n| (1, n * 64, alloc(n << 9, n))).collect();
    let written = append_all(&windows, &events);
    let whole = file(&windows);
    // The third record is under way; in the last window so is the last but one.
    let mut bytes = whole.clone();
    let late = [written[2].offset as usize, written[written.len() - 2].offset as usize];
    for at in late {
        bytes[at..at + 2].fill(0);
        bytes[at + 5] = 0;
        unpublish(&mut bytes, (at as u64 - 4096) / SLOT as u64, 32);
    }
    let reader = TraceReader::new(&bytes).unwrap();
    let mut tail = reader.tail(Cursor::default());
    assert_eq!(tail.by_ref().collect::<Vec<_>>(), written[..2]);
    let cursor = tail.cursor();
    assert_eq!(reader.tail(cursor).count(), 0);
    // Dead, it gives all the others.
    let mut dead = reader.events_from(cursor);
    assert_eq!(dead.by_ref().count(), written.len() - 4);
    assert_eq!(dead.unfinished(), 2);
    // Published, it goes on.
    bytes[late[0]..late[0] + 8].copy_from_slice(&whole[late[0]..late[0] + 8]);
    bytes[slot_offset(0) as usize + 56..][..8]
        .copy_from_slice(&whole[slot_offset(0) as usize + 56..][..8]);
    let reader = TraceReader::new(&bytes).unwrap();
    let mut tail = reader.tail(cursor);
    assert_eq!(tail.by_ref().collect::<Vec<_>>(), written[2..written.len() - 2]);
    let cursor = tail.cursor();
    let reader = TraceReader::new(&whole).unwrap();
    assert_eq!(reader.tail(cursor).collect::<Vec<_>>(), written[written.len() - 2..]);
}

#[test]
fn a_closed_window_is_complete_and_takes_no_more() {
    let windows = grid(&[(WindowKind::Events, 2, 0)]);
    let writer = windows[0].writer();
    let Appended::At { offset, bytes, middle } = writer.append(ThreadId(1), 0, &free(512)) else {
        panic!("full");
    };
    assert_eq!((offset, bytes, middle), (4096 + 64, 16, false));
    assert!(!writer.is_complete());
    writer.close();
    assert!(writer.is_complete());
    assert_eq!(writer.append(ThreadId(1), 0, &free(512)), Appended::Full);
    let (_, given, damage) = read(&file(&windows)).unwrap();
    assert_eq!((given.len(), damage), (1, vec![]));
}

#[test]
fn an_anchor_goes_before_an_event_after_a_long_silence() {
    let hour = 3_600_000_000_000u64;
    let windows = grid(&[(WindowKind::Events, 1, 0)]);
    let times = [0, hour, 2 * hour, 22 * hour, 60 * hour, 61 * hour];
    let events: Vec<_> = times.iter().map(|t| (1, *t, free(512))).collect();
    let written = append_all(&windows, &events);
    let (_, given, _) = read(&file(&windows)).unwrap();
    let anchors = given.iter().filter(|s| s.event == Event::Anchor).count();
    assert_eq!(anchors, 2);
    let given: Vec<_> = given.into_iter().filter(|s| s.event != Event::Anchor).collect();
    assert_eq!(given, written);
}

/// A copy of the memory that is made while a record is stored, word by word: the copy has its head
/// from before, and the rest from after.
#[test]
fn a_record_that_was_copied_while_it_was_stored_is_unfinished() {
    let windows = grid(&[(WindowKind::Events, 1, 0)]);
    let events: Vec<_> = (1..20).map(|n| (1, n * 64, alloc(n << 9, n))).collect();
    let written = append_all(&windows, &events);
    let mut bytes = file(&windows);
    let torn = [2, written.len() - 2];
    for record in torn {
        let at = written[record].offset as usize;
        bytes[at..at + 8].fill(0);
        assert_ne!(bytes[at + 8..at + 16], [0; 8]);
    }
    unpublish(&mut bytes, 0, 64);
    let reader = TraceReader::new(&bytes).unwrap();
    let mut dead = reader.events();
    let given: Vec<_> = dead.by_ref().collect();
    let whole = written.iter().enumerate().filter(|(n, _)| !torn.contains(n));
    assert_eq!(given, whole.map(|(_, stamped)| *stamped).collect::<Vec<_>>());
    assert_eq!((dead.damage(), dead.unfinished()), (&[][..], 2));
}
