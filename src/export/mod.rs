//! Exports traces to the formats of other tools. [`export`] writes timelines: `timeline.rs` replays the
//! traces and calls a [`Sink`], which each format implements in one file.
//!
//! Several traces become one file on one clock: 0 is the start of the earliest. Each trace is read several
//! times, and written as it is read. Memory is bounded by the live set, plus nine bytes (offset and role)
//! for each allocation of a trace with blocks.
//!
//! [`stacks`] writes the memory that stacks held at one moment; [`snapshot`] writes a memory snapshot of
//! PyTorch; `parquet` writes tables, a directory of files.

mod csv;
mod lanes;
mod owners;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod perfetto;
mod requester;
mod roles;
mod sampled;
mod sink;
pub mod snapshot;
pub mod stacks;
mod timeline;

use std::collections::HashSet;
use std::io::{self, Write};

use crate::replay::Progress;
use crate::trace::Trace;
use sink::Sink;
pub use sink::{Exported, TimeWindow};
use timeline::Timeline;

/// The formats of timelines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimelineFormat {
    /// Rows of allocations, counters and refusals.
    Csv,
    /// Perfetto's protobuf: <https://ui.perfetto.dev>.
    Perfetto,
}

/// Writes the traces' timeline. `progress` is called with bytes read and bytes in all.
pub fn export(
    traces: &[Trace],
    format: TimelineFormat,
    window: &TimeWindow,
    out: &mut dyn Write,
    progress: Progress,
) -> io::Result<Exported> {
    match format {
        TimelineFormat::Csv => write(traces, csv::Csv::new(out)?, window, progress),
        TimelineFormat::Perfetto => write(traces, perfetto::Perfetto::new(out), window, progress),
    }
}

fn write(
    traces: &[Trace],
    mut sink: impl Sink,
    window: &TimeWindow,
    progress: Progress,
) -> io::Result<Exported> {
    let all_bytes: u64 = traces.iter().map(Trace::len).sum();
    let mut before = 0;
    let mut all = Exported::default();
    for process in processes(traces) {
        let bytes = process.trace.len();
        let mut of_trace = |at: u64, _: u64| progress(before + at, all_bytes);
        let (definitions, _) = process.trace.definitions();
        let timeline = Timeline::new(process, &definitions, window, &mut sink);
        let of_process = timeline.write(&mut of_trace)?;
        all.allocations += of_process.allocations;
        all.counters += of_process.counters;
        all.refusals += of_process.refusals;
        before += bytes;
    }
    sink.finish()?;
    Ok(all)
}

/// A process of the export.
#[derive(Clone)]
struct TracedProcess<'t> {
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
fn processes(traces: &[Trace]) -> Vec<TracedProcess<'_>> {
    // A damaged header has no start time: such a trace begins at 0.
    let starts = traces.iter().map(|trace| trace.header().start_unix_ns).filter(|start| *start > 0);
    let base = starts.min().unwrap_or(0);
    let mut taken = HashSet::new();
    let mut processes = Vec::new();
    for (trace, number) in traces.iter().zip(1..) {
        let header = trace.header();
        let mut pid = header.pid.max(1);
        while !taken.insert(pid) {
            pid = pid.wrapping_add(MAX_PIDS).max(1);
        }
        let start_ns = header.start_unix_ns.saturating_sub(base);
        processes.push(TracedProcess { trace, number, pid, label: label(trace), start_ns });
    }
    processes
}

/// The limit of pids on Linux.
const MAX_PIDS: u32 = 1 << 22;

fn label(trace: &Trace) -> String {
    let header = trace.header();
    let rank = header.rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default();
    let mut command = header.command.join(" ");
    if command.is_empty() {
        command = header.executable.clone();
    }
    format!("{rank}{command} ({}, pid {})", header.host, header.pid)
}
