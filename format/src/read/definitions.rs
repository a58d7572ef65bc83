//! Reads the definitions of a trace. A long definition is assembled from its parts.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use super::damage::{Damage, DamageKind};
use super::found::Window;
use super::scan::{Findings, Raw, Scan};
use crate::record::code;
use crate::record::definition::Definition;
use crate::record::word::SMALL_MASK;

/// A long definition of which not all parts were read yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    pub(super) parts: u32,
    payload: Vec<u64>,
}

/// File offset of the first part of a definition. `offset`: of this part.
pub(super) fn first_part(part: &Raw, offset: u64) -> u64 {
    let named = part.words().next().unwrap_or(offset);
    if part.small >> 16 == 0 { offset } else { named }
}

impl Pending {
    /// Adds the next part. True: it is the last one. `None`: one before it is missing.
    pub(super) fn add(&mut self, part: &Raw) -> Option<bool> {
        if part.small >> 16 != u64::from(self.parts) {
            return None;
        }
        self.parts += 1;
        self.payload.extend(part.words().skip(1));
        Some(part.small >> 8 & 1 != 0)
    }

    /// The whole definition. `part`: any of its parts.
    pub(super) fn definition(&self, part: &Raw) -> Option<Definition> {
        let (small, body) = self.payload.split_first()?;
        Definition::decode(part.small as u8, small & SMALL_MASK, body)
    }
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
            scan: Scan::default(),
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

    /// Adds a part. Returns the definition if the part was its last one.
    fn part(&mut self, raw: &Raw) -> Option<Definition> {
        let offset = self.scan.offset + raw.at as u64;
        let first = first_part(raw, offset);
        if first == offset {
            self.pending.insert(first, Pending::default());
        }
        let Some(is_last) = self.pending.get_mut(&first).and_then(|pending| pending.add(raw))
        else {
            self.pending.remove(&first);
            let bytes = 16 + raw.body.len() as u64;
            self.findings.damage.push(Damage { offset, bytes, kind: DamageKind::Part });
            return None;
        };
        let whole = if is_last { self.pending.remove(&first) } else { None };
        let definition = whole?.definition(raw);
        self.findings.unknown += u64::from(definition.is_none());
        definition
    }
}

impl Iterator for Definitions<'_> {
    type Item = Definition;

    fn next(&mut self) -> Option<Definition> {
        loop {
            let Some(raw) = self.scan.next(&mut self.findings) else {
                let window = self.windows.get(self.next_window)?;
                self.scan = Scan::new(window.bytes(self.bytes), window, 0, false);
                self.next_window += 1;
                continue;
            };
            if raw.kind == code::PART {
                match self.part(&raw) {
                    Some(definition) => return Some(definition),
                    None => continue,
                }
            }
            match raw.definition() {
                Some(definition) => return Some(definition),
                None => self.findings.unknown += 1,
            }
        }
    }
}
