//! How the processes of a run ended, and which of them failed first: the others often fail after it.

use super::ProcessFigures;

/// How a process ended. A worse end is smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessEnd {
    OutOfMemory,
    /// Killed, crashed or left by _exit.
    CutOff,
    Running,
    InOrder,
    /// An imported trace does not say it.
    Unknown,
}

impl ProcessEnd {
    /// The name in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            ProcessEnd::OutOfMemory => "out_of_memory",
            ProcessEnd::CutOff => "cut_off",
            ProcessEnd::Running => "running",
            ProcessEnd::InOrder => "in_order",
            ProcessEnd::Unknown => "unknown",
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            ProcessEnd::OutOfMemory => "out of memory",
            ProcessEnd::CutOff => "cut off",
            ProcessEnd::Running => "running",
            ProcessEnd::InOrder => "in order",
            ProcessEnd::Unknown => "",
        }
    }
}

/// A process that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failed {
    pub end: ProcessEnd,
    /// The failed request; of a process that was cut off, its last event. ns since 1970.
    pub unix_ns: u64,
    /// Its index.
    pub index: usize,
}

impl ProcessFigures {
    pub fn end(&self) -> ProcessEnd {
        match (self.failed_ns, self.ended_in_order, self.running) {
            (Some(_), _, _) => ProcessEnd::OutOfMemory,
            (None, true, _) => ProcessEnd::InOrder,
            (None, false, true) => ProcessEnd::Running,
            (None, false, false) if self.header.pid == 0 => ProcessEnd::Unknown,
            (None, false, false) => ProcessEnd::CutOff,
        }
    }
}

/// The processes that failed. The first is the cause: the first that was out of memory, or else the
/// first that was cut off. The others are in order of time. A process without GPU memory is no
/// failure of memory.
pub fn failed(ranks: &[ProcessFigures]) -> Vec<Failed> {
    let of = |(index, process): (usize, &ProcessFigures)| {
        let end = process.end();
        let at_ns = process.failed_ns.unwrap_or(process.last_ns);
        let unix_ns = process.header.start_unix_ns.saturating_add(at_ns);
        let has_failed = end <= ProcessEnd::CutOff && !process.devices.is_empty();
        has_failed.then_some(Failed { end, unix_ns, index })
    };
    let mut all: Vec<Failed> = ranks.iter().enumerate().filter_map(of).collect();
    all.sort_unstable();
    if let [_, others @ ..] = &mut all[..] {
        others.sort_unstable_by_key(|one| (one.unix_ns, one.index));
    }
    all
}
