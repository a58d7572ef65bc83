//! Room in a window.

use loom::thread;

use super::few_switches;
use crate::room::{RecordPlace, Room, Seal};
use crate::runtime::atomics::{AtomicU64, Ordering};

/// A record whose words all carry its number.
pub struct Numbered(u64, Vec<u64>);

impl Numbered {
    pub fn new(number: u64, len: usize) -> Numbered {
        Numbered(number, vec![number; len - 1])
    }
}

impl Seal for Numbered {
    fn head(&self, _: usize) -> u64 {
        DONE | (1 + self.1.len() as u64) << 8 | self.0
    }

    fn unfinished(len: usize) -> u64 {
        (len as u64) << 8
    }

    fn rest(&self) -> &[u64] {
        &self.1
    }
}

/// An append as [`crate::room`]'s callers make it.
pub fn put(room: &Room, number: u64, len: usize) -> Option<RecordPlace> {
    let record = || Numbered::new(number, len);
    match room.put(len, record) {
        Ok(at) => Some(RecordPlace { at, middle: false }),
        Err(at) => room.put_at_line_end(at, &record(), padding),
    }
}

const LINE_WORDS: usize = crate::window::LINE / 8;
const DONE: u64 = 1 << 32;
const PADDING: u64 = 0xff;

pub fn padding(_: usize, len: usize) -> u64 {
    DONE | (len as u64) << 8 | PADDING
}

/// The words of an empty window, its header of 8 words included.
pub fn window(words: usize) -> (&'static [AtomicU64], &'static Room<'static>) {
    let words: &[AtomicU64] = Box::leak((0..words).map(|_| AtomicU64::new(0)).collect());
    (words, Box::leak(Box::new(Room::behind_header(words))))
}

/// The numbers of the records in a window; each record must be whole. If `complete`, records and padding
/// must cover its words without a gap.
pub fn read(words: &[AtomicU64], complete: bool) -> Vec<u64> {
    let word = |at: usize| u64::from_le(words[at].load(Ordering::Acquire));
    let (mut at, mut numbers) = (8, Vec::new());
    while at < words.len() {
        let head = word(at);
        let len = (head >> 8 & 0xff) as usize;
        if head & DONE == 0 {
            assert!(!complete, "a complete window has no gap at {at}");
            break;
        }
        assert_eq!(at / LINE_WORDS, (at + len - 1) / LINE_WORDS, "a record across lines");
        if head & 0xff != PADDING {
            (1..len).for_each(|next| assert_eq!(word(at + next), head & 0xff, "torn record"));
            numbers.push(head & 0xff);
        }
        at += len;
    }
    numbers
}

/// Two threads append, one of them across the line. The window is read meanwhile, and after it is closed.
#[test]
fn records_are_whole_and_a_complete_window_has_no_gap() {
    few_switches(3, || {
        // A header of 8 words, and 16 more: two lines of 12 words.
        let (words, room) = window(24);
        let append = |number: u64, len: usize| {
            thread::spawn(move || put(room, number, len))
        };
        let (first, second) = (append(1, 3), append(2, 3));
        // A record that is read meanwhile is whole.
        read(words, false);
        if room.is_complete() {
            read(words, true);
        }
        let places: Vec<Option<RecordPlace>> = [first, second].map(|t| t.join().unwrap()).to_vec();
        assert!(places.iter().all(Option::is_some));
        room.close(padding);
        assert!(room.is_complete() && room.published() == 8 * words.len());
        let mut numbers = read(words, true);
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2]);
        assert_eq!(put(room, 3, 2), None);
    });
}

/// One thread closes the window while another appends: the record is in the window, or its append reports
/// that it is full. At most one record passes the middle.
#[test]
fn closing_while_appending() {
    loom::model(|| {
        let (words, room) = window(12);
        let appender = thread::spawn(move || put(room, 1, 2));
        let closer = thread::spawn(move || room.close(padding));
        if room.is_complete() {
            read(words, true);
        }
        let place = appender.join().unwrap();
        closer.join().unwrap();
        assert!(room.is_complete());
        let expected: &[u64] = if place.is_some() { &[1] } else { &[] };
        assert_eq!(read(words, true), expected);
    });
}
