//! The definitions of a trace. Long ones are put together from their parts.

use std::collections::HashMap;

use crate::Definition;
use crate::code;
use crate::damage::{Damage, DamageKind};
use crate::decode;
use crate::reader::{Window, published, window_bytes};
use crate::scan::{Findings, Raw, Scan};
use crate::word::SMALL_MASK;

/// A place between two definitions of a file, with the long ones that are under way there. The
/// default is the start.
#[derive(Clone, Debug, Default)]
pub struct DefinitionCursor {
    sequence: u64,
    at: u64,
    /// By the file offset of the first part.
    pending: HashMap<u64, Pending>,
}

#[derive(Clone, Debug, Default)]
struct Pending {
    parts: u32,
    payload: Vec<u64>,
}

/// Gives every whole definition once.
#[derive(Clone, Debug)]
pub struct Definitions<'a> {
    bytes: &'a [u8],
    windows: &'a [Window],
    next_window: usize,
    scan: Scan<'a>,
    living: bool,
    cursor: DefinitionCursor,
    findings: Findings,
}

impl<'a> Definitions<'a> {
    pub(crate) fn new(
        bytes: &'a [u8],
        windows: &'a [Window],
        cursor: DefinitionCursor,
        living: bool,
    ) -> Definitions<'a> {
        let first = windows.partition_point(|window| window.header.sequence < cursor.sequence);
        let mut definitions = Definitions {
            bytes,
            windows,
            next_window: first,
            scan: Scan::empty(),
            living,
            cursor,
            findings: Findings::default(),
        };
        if let Some(window) = windows.get(first) {
            let resumed = window.header.sequence == definitions.cursor.sequence;
            definitions.open(if resumed { definitions.cursor.at as usize } else { 0 });
        }
        definitions
    }

    /// Broken ranges passed over so far.
    pub fn damage(&self) -> &[Damage] {
        &self.findings.damage
    }

    /// Whole definitions met so far that this version does not understand.
    pub fn unknown(&self) -> u64 {
        self.findings.unknown
    }

    /// Where a later reader of the same file goes on.
    pub fn cursor(&self) -> DefinitionCursor {
        let at = self.scan.position() as u64;
        DefinitionCursor { at, ..self.cursor.clone() }
    }

    fn open(&mut self, at: usize) {
        let window = &self.windows[self.next_window];
        let bytes = window_bytes(self.bytes, window);
        let complete = published(bytes) >= window.header.bytes() as u64;
        self.scan = Scan::new(bytes, window, at, self.living && !complete);
        self.cursor.sequence = window.header.sequence;
        self.next_window += 1;
    }

    /// Takes one part; the whole when it was the last.
    fn part(&mut self, raw: &Raw) -> Option<Definition> {
        let offset = self.scan.offset() + raw.at as u64;
        let (kind, last, index) =
            (raw.small as u8, raw.small >> 8 & 1 != 0, (raw.small >> 16) as u32);
        let mut words =
            raw.body.chunks_exact(8).map(|b| b.try_into().map_or(0, u64::from_le_bytes));
        let first = words.next().filter(|_| index > 0).unwrap_or(offset);
        let pending = if index == 0 {
            self.cursor.pending.entry(first).insert_entry(Pending::default()).into_mut()
        } else {
            match self.cursor.pending.get_mut(&first) {
                Some(pending) if pending.parts == index => pending,
                _ => {
                    self.cursor.pending.remove(&first);
                    self.findings.damage.push(Damage {
                        offset,
                        bytes: 16 + raw.body.len() as u64,
                        kind: DamageKind::Part,
                    });
                    return None;
                }
            }
        };
        pending.parts += 1;
        pending.payload.extend(words);
        if !last {
            return None;
        }
        let payload = self.cursor.pending.remove(&first)?.payload;
        let definition = match payload.split_first() {
            Some((small, body)) => decode::definition(kind, small & SMALL_MASK, body),
            None => None,
        };
        self.findings.unknown += u64::from(definition.is_none());
        definition
    }
}

impl Iterator for Definitions<'_> {
    type Item = Definition;

    fn next(&mut self) -> Option<Definition> {
        loop {
            let Some(raw) = self.scan.next(&mut self.findings) else {
                if self.scan.is_at_end() && self.next_window < self.windows.len() {
                    self.open(0);
                    continue;
                }
                return None;
            };
            if raw.kind == code::PART {
                match self.part(&raw) {
                    Some(definition) => return Some(definition),
                    None => continue,
                }
            }
            let mut words = [0; 255];
            let mut len = 0;
            for (word, bytes) in words.iter_mut().zip(raw.body.chunks_exact(8)) {
                *word = bytes.try_into().map_or(0, u64::from_le_bytes);
                len += 1;
            }
            match decode::definition(raw.kind, raw.small, &words[..len]) {
                Some(definition) => return Some(definition),
                None => self.findings.unknown += 1,
            }
        }
    }
}
