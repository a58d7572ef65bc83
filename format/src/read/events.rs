//! Reads the events of a trace, in file order.

use super::damage::Damage;
use super::found::Window;
use super::scan::{Findings, Scan};
use crate::ids::ThreadId;
use crate::record::code;
use crate::record::event::Stamped;
use crate::record::event_codec::decode;
use crate::record::word::{unwrap_ticks, whole_ticks};

/// A position between two events of a file. The default is the start of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Sequence number of the event window.
    pub(crate) sequence: u64,
    /// Bytes from the window's start.
    pub(crate) at: u64,
    /// Time of the last event, from which the next 40-bit timestamp is extended.
    last_ns: u64,
}

/// Iterator over the intact events. Allocates only to report damage.
#[derive(Clone, Debug)]
pub struct Events<'a> {
    bytes: &'a [u8],
    windows: &'a [Window],
    /// Index of the window after the one being read.
    next_window: usize,
    scan: Scan<'a>,
    sequence: u64,
    /// [`Window::position`] of the window being read.
    position: u64,
    last_ns: u64,
    /// The process still writes the file: stop at the first record that is not published.
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
            scan: Scan::default(),
            sequence: cursor.sequence,
            position: 0,
            last_ns: cursor.last_ns,
            living,
            findings: Findings::default(),
        };
        if let Some(window) = windows.get(first) {
            let resumed = window.header.sequence == cursor.sequence && cursor.at > 0;
            events.open(if resumed { cursor.at as usize } else { 0 });
            events.last_ns = if resumed { cursor.last_ns } else { events.last_ns };
        }
        events
    }

    /// Damaged ranges skipped so far.
    pub fn damage(&self) -> &[Damage] {
        &self.findings.damage
    }

    /// Number of intact records so far that this version cannot decode.
    pub fn unknown(&self) -> u64 {
        self.findings.unknown
    }

    /// Number of records so far that the writer reserved but did not finish: it was killed.
    pub fn unfinished(&self) -> u64 {
        self.findings.unfinished
    }

    /// The position from which a later reader of the same file continues.
    pub fn cursor(&self) -> Cursor {
        Cursor { sequence: self.sequence, at: self.scan.at as u64, last_ns: self.last_ns }
    }

    /// Opens the next window, at byte `at` of it.
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
}

impl Events<'_> {
    /// Reads the next event into `at`: as [`Events::next`], without the copies of an event that is returned. False: there
    /// is none.
    #[inline]
    pub fn read(&mut self, at: &mut Stamped) -> bool {
        loop {
            let Some(raw) = self.scan.next(&mut self.findings) else {
                // There is none, or the current one may still get records: it stopped at one that is not published.
                if self.scan.at < self.scan.bytes.len() || self.next_window >= self.windows.len() {
                    return false;
                }
                self.open(0);
                continue;
            };
            let time_ns = match raw.kind {
                code::ANCHOR => {
                    whole_ticks(raw.body.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)))
                }
                _ => unwrap_ticks(raw.ticks, self.last_ns),
            };
            let thread = ThreadId(raw.thread);
            let offset = self.position + raw.at as u64;
            let found = |event| *at = Stamped { offset, time_ns, thread, event };
            if decode(raw.kind, raw.small, raw.body, found).is_some() {
                self.last_ns = time_ns;
                return true;
            }
            self.findings.unknown += 1;
        }
    }
}

impl Iterator for Events<'_> {
    type Item = Stamped;

    #[inline]
    fn next(&mut self) -> Option<Stamped> {
        let mut at = Stamped::default();
        self.read(&mut at).then_some(at)
    }
}
