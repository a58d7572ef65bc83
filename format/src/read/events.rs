//! The events of a trace, in file order.

use super::damage::Damage;
use super::found::Window;
use super::scan::{Findings, Scan};
use crate::ids::ThreadId;
use crate::record::EVENT_WORDS;
use crate::record::code;
use crate::record::event::{Event, Stamped};
use crate::record::event_codec::decode;
use crate::record::word::{unwrap_ticks, whole_ticks};

/// A place between two events of a file. The default is the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Of the event window.
    sequence: u64,
    /// Bytes from the window's start.
    at: u64,
    /// The last stamp given, from which the next ones unwrap.
    last_ns: u64,
}

/// Gives every whole event once; allocates only to note damage.
#[derive(Clone, Debug)]
pub struct Events<'a> {
    bytes: &'a [u8],
    windows: &'a [Window],
    /// Index of the window after the one being read.
    next_window: usize,
    scan: Scan<'a>,
    sequence: u64,
    /// Of the window being read, in the order of the file.
    position: u64,
    last_ns: u64,
    living: bool,
    findings: Findings,
}

impl<'a> Events<'a> {
    pub(crate) fn new(
        bytes: &'a [u8],
        windows: &'a [Window],
        cursor: Cursor,
        living: bool,
    ) -> Events<'a> {
        let first = windows.partition_point(|window| window.header.sequence < cursor.sequence);
        let mut events = Events {
            bytes,
            windows,
            next_window: first,
            scan: Scan::empty(),
            sequence: cursor.sequence,
            position: 0,
            last_ns: cursor.last_ns,
            living,
            findings: Findings::default(),
        };
        if let Some(window) = windows.get(first) {
            let resumed = window.header.sequence == cursor.sequence && cursor.at > 0;
            events.open(if resumed { cursor.at as usize } else { 0 });
            if resumed {
                events.last_ns = cursor.last_ns;
            }
        }
        events
    }

    /// Broken ranges passed over so far.
    pub fn damage(&self) -> &[Damage] {
        &self.findings.damage
    }

    /// Whole records met so far that this version does not understand.
    pub fn unknown(&self) -> u64 {
        self.findings.unknown
    }

    /// Records met so far that the writer had begun and never finished: it was killed.
    pub fn unfinished(&self) -> u64 {
        self.findings.unfinished
    }

    /// Where a later reader of the same file goes on.
    pub fn cursor(&self) -> Cursor {
        Cursor { sequence: self.sequence, at: self.scan.position() as u64, last_ns: self.last_ns }
    }

    /// Begins to read the next window from this byte on.
    fn open(&mut self, at: usize) {
        let window = &self.windows[self.next_window];
        let bytes = window.bytes(self.bytes);
        let is_complete = window.is_complete(bytes);
        self.scan = Scan::new(bytes, window, at, self.living && !is_complete);
        self.sequence = window.header.sequence;
        self.position = window.position;
        if !window.guessed {
            self.last_ns = window.header.base_time_ns;
        }
        self.next_window += 1;
    }

    /// The next window; false when there is none, or when this one will still get records.
    fn next_window(&mut self) -> bool {
        if !self.scan.is_at_end() || self.next_window >= self.windows.len() {
            return false;
        }
        self.open(0);
        true
    }
}

impl Iterator for Events<'_> {
    type Item = Stamped;

    #[inline]
    fn next(&mut self) -> Option<Stamped> {
        loop {
            let Some(raw) = self.scan.next(&mut self.findings) else {
                if self.next_window() {
                    continue;
                }
                return None;
            };
            let mut words = [0; EVENT_WORDS];
            let mut len = 0;
            for (word, bytes) in words.iter_mut().zip(raw.body.chunks_exact(8)) {
                *word = bytes.try_into().map_or(0, u64::from_le_bytes);
                len += 1;
            }
            let Some(event) = decode(raw.kind, raw.small, &words[..len]) else {
                self.findings.unknown += 1;
                continue;
            };
            self.last_ns = match raw.kind {
                code::ANCHOR => whole_ticks(words[0]),
                _ => unwrap_ticks(raw.ticks, self.last_ns),
            };
            debug_assert!(raw.kind != code::ANCHOR || event == Event::Anchor);
            return Some(Stamped {
                offset: self.position + raw.at as u64,
                time_ns: self.last_ns,
                thread: ThreadId(raw.thread),
                event,
            });
        }
    }
}
