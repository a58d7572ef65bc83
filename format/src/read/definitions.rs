//! Reads the definitions of a trace. A long definition is assembled from its parts.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use super::damage::{Damage, DamageKind};
use super::found::Window;
use super::scan::{Findings, Raw, Scan};
use crate::record::code;
use crate::record::definition::Definition;
use crate::record::definition_decode::decode;
use crate::record::word::SMALL_MASK;

/// A long definition of which not all parts were read yet.
#[derive(Clone, Debug, Default)]
struct Pending {
    parts: u32,
    payload: Vec<u64>,
}

/// Iterator over the intact definitions, in file order.
#[derive(Clone, Debug)]
pub struct Definitions<'a> {
    bytes: &'a [u8],
    windows: &'a [Window],
    next_window: usize,
    scan: Scan<'a>,
    /// Incomplete long definitions, by the file offset of the first part.
    pending: HashMap<u64, Pending, BuildHasherDefault<DefaultHasher>>,
    findings: Findings,
}

impl<'a> Definitions<'a> {
    pub(super) fn new(bytes: &'a [u8], windows: &'a [Window]) -> Definitions<'a> {
        Definitions {
            bytes,
            windows,
            next_window: 0,
            scan: Scan::empty(),
            pending: HashMap::default(),
            findings: Findings::default(),
        }
    }

    /// Damaged ranges skipped so far.
    pub fn damage(&self) -> &[Damage] {
        &self.findings.damage
    }

    /// Number of intact definitions so far that this version cannot decode.
    pub fn unknown(&self) -> u64 {
        self.findings.unknown
    }

    fn open_next(&mut self) {
        let window = &self.windows[self.next_window];
        self.scan = Scan::new(window.bytes(self.bytes), window, 0, false);
        self.next_window += 1;
    }

    /// Adds a part. Returns the definition if the part was its last one.
    fn part(&mut self, raw: &Raw) -> Option<Definition> {
        let offset = self.scan.offset() + raw.at as u64;
        let (kind, last, index) =
            (raw.small as u8, raw.small >> 8 & 1 != 0, (raw.small >> 16) as u32);
        let mut words =
            raw.body.chunks_exact(8).map(|b| b.try_into().map_or(0, u64::from_le_bytes));
        let first = words.next().filter(|_| index > 0).unwrap_or(offset);
        let pending = if index == 0 {
            self.pending.entry(first).insert_entry(Pending::default()).into_mut()
        } else {
            match self.pending.get_mut(&first) {
                Some(pending) if pending.parts == index => pending,
                _ => {
                    self.pending.remove(&first);
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
        let payload = self.pending.remove(&first)?.payload;
        let definition = match payload.split_first() {
            Some((small, body)) => decode(kind, small & SMALL_MASK, body),
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
                    self.open_next();
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
            match decode(raw.kind, raw.small, &words[..len]) {
                Some(definition) => return Some(definition),
                None => self.findings.unknown += 1,
            }
        }
    }
}
