//! Counts the bytes that a reader examines, for tests: they are at most four times those of the file, whatever it holds.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::damage::Damage;
use super::reader::TraceReader;
use crate::header::Header;
use crate::ids::ThreadId;
use crate::record::code;
use crate::record::event::Event;
use crate::record::word::{Check, Head, check};
use crate::window::{LINE, SLOT, WINDOW_HEADER, WindowHeader, WindowKind, slot_offset};
use crate::write::writer::WindowWriter;

thread_local!(static EXAMINED: Cell<u64> = const { Cell::new(0) });

pub(super) fn add(bytes: usize) {
    EXAMINED.with(|all| all.set(all.get() + bytes as u64));
}

const TAG: u64 = 0;
const GARBAGE: usize = 32;

/// A header page and an event window with a record.
fn sound() -> Vec<u8> {
    let words: Vec<_> = (0..SLOT / 8).map(|_| AtomicU64::new(0)).collect();
    let (kind, slots, slot) = (WindowKind::Events, 1, 0);
    let header = WindowHeader { kind, slots, slot, sequence: 0, base_time_ns: 0, file: TAG };
    let _ = WindowWriter::begin(&words, header).append(ThreadId(1), 64, &Event::Ended);
    let mut bytes = Header::default().to_page().to_vec();
    bytes.extend(words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()));
    bytes
}

/// The same with slots behind it, whose words follow from their offset in the file.
fn with(mut word: impl FnMut(usize) -> u64) -> Vec<u8> {
    let mut bytes = sound();
    while bytes.len() < slot_offset(1) as usize + GARBAGE * SLOT {
        bytes.extend(word(bytes.len()).to_le_bytes());
    }
    bytes
}

/// Events and damage of the file, read within the bound.
#[track_caller]
fn read(what: &str, bytes: &[u8]) -> (usize, Vec<Damage>) {
    EXAMINED.with(|all| all.set(0));
    let reader = TraceReader::new(bytes).unwrap();
    let opened = EXAMINED.with(Cell::get);
    let _ = reader.definitions().count();
    let mut events = reader.events();
    let count = events.by_ref().count();
    let all = EXAMINED.with(Cell::get);
    let times = all as f64 / bytes.len() as f64;
    assert!(times <= 4.0, "{what}: {times:.2} times the bytes of the file ({opened} to open it)");
    (count, [reader.damage(), events.damage()].concat())
}

fn random() -> impl FnMut() -> u64 {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// The word of an intact record of one word, at this offset.
fn one_word(kind: u8, at: usize) -> u64 {
    let head = Head { time_lo: 0, kind, len: 1, thread: 1, check: 0 };
    let sum = check(Check::of_file(TAG), &[head.pack()]).sum16(at as u64);
    Head { check: sum, ..head }.pack()
}

fn head(kind: u8, len: u8) -> u64 {
    Head { time_lo: 7, kind, len, thread: 9, check: 0x55 }.pack()
}

/// The words of a window header of one slot.
fn window(slot: u64, kind: WindowKind) -> [u64; WINDOW_HEADER / 8] {
    let (slots, slot) = (1, slot as u32);
    let header = WindowHeader { kind, slots, slot, sequence: 1, base_time_ns: 0, file: TAG };
    let mut words = [0; WINDOW_HEADER / 8];
    words[0] = crate::window::WINDOW_MAGIC;
    words[1..7].copy_from_slice(&header.words());
    words
}

#[test]
#[cfg_attr(miri, ignore = "megabytes take Miri minutes")]
fn at_most_four_times_the_bytes_of_a_file_are_examined() {
    let mut next = random();
    let garbage = with(|_| next());
    let (events, damage) = read("random bytes behind", &garbage);
    assert_eq!((events, damage.len()), (1, 1), "{damage:?}");

    // The same between two sound windows.
    let mut between = garbage.clone();
    let last = sound();
    let words = window(1 + GARBAGE as u64, WindowKind::Events);
    between.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    between.extend(&last[slot_offset(0) as usize + WINDOW_HEADER..]);
    assert_eq!(read("random bytes in the middle", &between).1[0], damage[0]);

    let slot_of = |at: usize| ((at - slot_offset(0) as usize) / SLOT) as u64;
    let in_slot = |at: usize| (at - slot_offset(0) as usize) % SLOT;
    for (kind, len) in [(0x10, 16), (0x10, 255), (code::PART, 255), (0x84, 255), (0x7f, 255)] {
        read("heads at every word", &with(|_| head(kind, len)));
    }
    read("magics at every word", &with(|_| crate::window::WINDOW_MAGIC));
    for kind in [WindowKind::Events, WindowKind::Definitions] {
        read("window headers at every 64 bytes", &with(|at| window(slot_of(at), kind)[at / 8 % 8]));
        let mut next = random();
        let windows = with(|at| match in_slot(at) {
            place @ ..WINDOW_HEADER => window(slot_of(at), kind)[place / 8],
            _ => next(),
        });
        read("windows of random bytes", &windows);
        for len in [16, 255] {
            // Damage between intact records: after each the search begins again.
            let record = |at: usize| match at / 8 % 3 {
                0 => head(0x10, len),
                _ => one_word(code::PAD, at),
            };
            read("damage between records, without a window", &with(record));
            let windows = with(|at| match in_slot(at) {
                place @ ..WINDOW_HEADER => window(slot_of(at), kind)[place / 8],
                _ => record(at),
            });
            read("damage between records", &windows);
            let torn = with(|at| match in_slot(at) {
                place @ ..WINDOW_HEADER => window(slot_of(at), kind)[place / 8],
                place if place / 8 % 4 == 0 => 0,
                _ => head(0x10, len),
            });
            read("zeros between damage", &torn);
        }
    }
    // Headers that are damaged, with a record at the end of each first line.
    let records = with(|at| match in_slot(at) + 8 {
        LINE => one_word(0x7f, at),
        _ => head(0x10, 255),
    });
    read("one record a window", &records);
    assert_eq!(read("a sound file", &sound()), (1, Vec::new()));
}
