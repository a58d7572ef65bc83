//! How the processes of a run ended, and which of them failed first: the others often fail after it.

use super::Rank;

/// How a process ended. A worse end is smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RankEnd {
    OutOfMemory,
    /// Killed, crashed or left by _exit.
    CutOff,
    Running,
    InOrder,
    /// An imported trace does not say it.
    Unknown,
}

impl RankEnd {
    /// The name in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            RankEnd::OutOfMemory => "out_of_memory",
            RankEnd::CutOff => "cut_off",
            RankEnd::Running => "running",
            RankEnd::InOrder => "in_order",
            RankEnd::Unknown => "unknown",
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            RankEnd::OutOfMemory => "out of memory",
            RankEnd::CutOff => "cut off",
            RankEnd::Running => "running",
            RankEnd::InOrder => "in order",
            RankEnd::Unknown => "",
        }
    }
}

/// A process that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FailedRank {
    pub end: RankEnd,
    /// The failed request; of a process that was cut off, its last event. ns since 1970.
    pub unix_ns: u64,
    /// Its index.
    pub rank: usize,
}

impl Rank {
    pub fn end(&self) -> RankEnd {
        match (self.failed_ns, self.ended_in_order, self.running) {
            (Some(_), _, _) => RankEnd::OutOfMemory,
            (None, true, _) => RankEnd::InOrder,
            (None, false, true) => RankEnd::Running,
            (None, false, false) if self.header.pid == 0 => RankEnd::Unknown,
            (None, false, false) => RankEnd::CutOff,
        }
    }
}

/// The processes that failed. The first is the cause: the first that was out of memory, or else the
/// first that was cut off. The others are in order of time. A process without GPU memory is no
/// failure of memory.
pub fn failed(ranks: &[Rank]) -> Vec<FailedRank> {
    let of = |(rank, process): (usize, &Rank)| {
        let end = process.end();
        let at_ns = process.failed_ns.unwrap_or(process.last_ns);
        let unix_ns = process.header.start_unix_ns.saturating_add(at_ns);
        let has_failed = end <= RankEnd::CutOff && !process.devices.is_empty();
        has_failed.then_some(FailedRank { end, unix_ns, rank })
    };
    let mut all: Vec<FailedRank> = ranks.iter().enumerate().filter_map(of).collect();
    all.sort_unstable();
    if let [_, others @ ..] = &mut all[..] {
        others.sort_unstable_by_key(|one| (one.unix_ns, one.rank));
    }
    all
}
