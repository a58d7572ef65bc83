//! Exports traces to the formats of other tools. [`export`] writes timelines: `timeline.rs` replays the
//! traces and calls a [`Sink`], which each format implements in one file.
//!
//! Several traces become one file on one clock: 0 is the start of the earliest. Each trace is read several
//! times, and written as it is read. Memory is bounded by the live set, plus nine bytes (offset and role)
//! for each allocation of a trace with blocks.
//!
//! [`stacks`] writes the memory that stacks held at one moment; [`snapshot`] writes a memory snapshot of
//! PyTorch; `parquet` writes tables, a directory of files.

mod counter;
mod csv;
pub mod formats;
mod lanes;
mod owners;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod perfetto;
mod phases;
mod processes;
mod requester;
mod roles;
mod sampled;
mod sink;
pub mod snapshot;
pub mod stacks;
mod timeline;

use std::io::{self, Write};

use crate::replay::Progress;
use crate::trace::Trace;
use processes::processes;
use sink::Sink;
pub use sink::{Exported, Window};
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
    window: &Window,
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
    window: &Window,
    progress: Progress,
) -> io::Result<Exported> {
    let all_bytes: u64 = traces.iter().map(Trace::len).sum();
    let mut before = 0;
    let mut exported = Exported::default();
    for process in processes(traces) {
        let bytes = process.trace.len();
        let mut of_trace = |at: u64, _: u64| progress(before + at, all_bytes);
        let (definitions, _) = process.trace.definitions();
        let timeline = Timeline::new(process, &definitions, window, &mut sink, &mut exported);
        timeline.write(&mut of_trace)?;
        before += bytes;
    }
    sink.finish()?;
    Ok(exported)
}
