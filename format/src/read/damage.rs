//! What a reader found broken, and where. Everything else in the file is still read.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DamageKind {
    /// The header page's check is wrong: its fields may be.
    Header,
    /// A window whose header is broken. Its records are still read where they can be.
    WindowHeader,
    /// A window that belongs to another place or another file: not read.
    StrayWindow,
    /// The file ends inside a window.
    Cut,
    /// A record whose check is wrong.
    Record,
    /// A record whose length is 0, or crosses the line.
    RecordLength,
    /// Zeros in place of records: the file was truncated while it was written, and grew again.
    Zeros,
    /// A piece of a long definition whose other pieces are missing.
    Part,
    /// Definition windows before this place are missing: the file was truncated while it was written.
    DefinitionsMissing,
    /// Event windows before this place are missing, and the file had not reached its limit: it was
    /// truncated while it was written.
    EventsMissing,
    /// The process was killed, and the tail file is not beside the trace: what was recorded in the
    /// last second may be missing.
    TailMissing,
}

/// One broken range of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where it begins, in bytes from the start of the file.
    pub offset: u64,
    /// How many bytes were skipped.
    pub bytes: u64,
    pub kind: DamageKind,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let what = match self.kind {
            DamageKind::Header => "header page damaged",
            DamageKind::WindowHeader => "window header damaged",
            DamageKind::StrayWindow => "window of another file or place",
            DamageKind::Cut => "file cut off inside a window",
            DamageKind::Record => "record damaged",
            DamageKind::RecordLength => "record with an impossible length",
            DamageKind::Zeros => "records overwritten with zeros",
            DamageKind::Part => "long record incomplete",
            DamageKind::DefinitionsMissing => {
                "the file was cut while it was written: definitions are missing"
            }
            DamageKind::EventsMissing => {
                "the file was cut while it was written: events are missing"
            }
            DamageKind::TailMissing => {
                "killed, and copied or moved without its tail file (.NAME.*.tail beside it): up to \
                 a second of events may be missing at the end"
            }
        };
        match self.kind {
            DamageKind::TailMissing => f.write_str(what),
            DamageKind::DefinitionsMissing | DamageKind::EventsMissing => {
                write!(f, "{what} before byte {}", self.offset)
            }
            _ => write!(f, "{what} at byte {} ({} bytes)", self.offset, self.bytes),
        }
    }
}
