//! Damage that a reader found. The rest of the file is still read.

use std::fmt;

/// The kind of a damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DamageKind {
    /// The check of the header page is wrong: its fields may be wrong too.
    #[error("header page damaged")]
    Header,
    /// A damaged window header. Records of the window are read where possible.
    #[error("window header damaged")]
    WindowHeader,
    /// A window of another offset or another file. It is not read.
    #[error("window of another file or place")]
    StrayWindow,
    /// The file ends inside a window.
    #[error("file cut off inside a window")]
    Cut,
    /// A record whose check is wrong.
    #[error("record damaged")]
    Record,
    /// A record whose length is 0, or which crosses a line boundary.
    #[error("record with an impossible length")]
    RecordLength,
    /// Zeros in place of records: the file was truncated during the run, and grew again.
    #[error("records overwritten with zeros")]
    Zeros,
    /// A part of a long definition whose earlier parts are missing.
    #[error("long record incomplete")]
    Part,
    /// Definition windows before this offset are missing: the file was truncated during the run.
    #[error("the file was cut while it was written: definitions are missing")]
    DefinitionsMissing,
    /// Event windows before this offset are missing although the file had not reached its limit: it was truncated
    /// during the run.
    #[error("the file was cut while it was written: events are missing")]
    EventsMissing,
    /// The process was killed, and the tail file is not next to the trace: the events of the last second may be
    /// missing.
    #[error(
        "killed, and copied or moved without its tail file (.NAME.*.tail beside it): up to a second of events may be \
         missing at the end"
    )]
    TailMissing,
    /// The process was killed, and its tail was in memory of this host, where it is no more.
    #[error(
        "killed, and its tail file was in memory of this host, where it is no more (a reboot, or the end of its \
         container): up to a second of events is missing at the end"
    )]
    TailLost,
    /// The tail is in memory of another host.
    #[error(
        "the last events are in memory of the host that recorded them: up to a second of events may be missing at the \
         end. Read the trace on that host before it reboots, or copy it with `vramtrace pack` there"
    )]
    TailElsewhere,
}

impl DamageKind {
    /// Whether the tail is missing, so that up to a second of events may be.
    pub fn is_of_tail(self) -> bool {
        matches!(self, DamageKind::TailMissing | DamageKind::TailLost | DamageKind::TailElsewhere)
    }
}

/// A damaged range of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Damage {
    /// Start of the range, in bytes from the start of the file.
    pub offset: u64,
    /// Length of the range, in bytes. 0 where windows are missing.
    pub bytes: u64,
    pub kind: DamageKind,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.kind {
            kind if kind.is_of_tail() => write!(f, "{kind}"),
            DamageKind::DefinitionsMissing | DamageKind::EventsMissing => {
                write!(f, "{} before byte {}", self.kind, self.offset)
            }
            _ => write!(f, "{} at byte {} ({} bytes)", self.kind, self.offset, self.bytes),
        }
    }
}
