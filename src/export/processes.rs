//! The processes of an export, on one clock.

use std::collections::HashSet;

use crate::trace::Trace;

/// A process of the export.
#[derive(Clone)]
pub(super) struct TracedProcess<'t> {
    pub trace: &'t Trace,
    /// From 1, in the order of the traces.
    pub number: u32,
    /// Its pid, or another number where two hosts used the same.
    pub pid: u32,
    /// `rank 3: python train.py (host, pid 4711)`.
    pub label: String,
    /// ns of the common clock at which its trace starts.
    pub start_ns: u64,
}

/// The processes of an export, on one clock: 0 is the start of the earliest.
pub(super) fn processes(traces: &[Trace]) -> Vec<TracedProcess<'_>> {
    // A damaged header has no start time: such a trace begins at 0.
    let starts = traces.iter().map(|trace| trace.header().start_unix_ns).filter(|start| *start > 0);
    let base = starts.min().unwrap_or(0);
    let mut taken = HashSet::new();
    let mut processes = Vec::new();
    for (trace, number) in traces.iter().zip(1..) {
        let header = trace.header();
        let mut pid = header.pid.max(1);
        while !taken.insert(pid) {
            pid = pid.wrapping_add(MOST_PIDS).max(1);
        }
        let start_ns = header.start_unix_ns.saturating_sub(base);
        processes.push(TracedProcess { trace, number, pid, label: label(trace), start_ns });
    }
    processes
}

/// The limit of pids on Linux.
const MOST_PIDS: u32 = 1 << 22;

fn label(trace: &Trace) -> String {
    let header = trace.header();
    let rank = header.rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default();
    let mut command = header.command.join(" ");
    if command.is_empty() {
        command = header.executable.clone();
    }
    format!("{rank}{command} ({}, pid {})", header.host, header.pid)
}
