//! Timelines: what happened, in the formats of others. A file a format; `timeline.rs` feeds them.
//!
//! Several traces become one file on one clock: 0 is the start of the earliest. Each trace is
//! read several times, and written as it is read; memory is bounded by what is live at a time, and
//! nine bytes for each allocation of a trace with blocks: its role.
//!
//! [`stacks`] writes what the stacks held at one moment instead, [`snapshot`] what PyTorch itself
//! would have recorded.

mod chrome;
mod counter;
mod csv;
pub mod formats;
mod lanes;
pub mod map;
mod owners;
pub mod perfetto;
mod phases;
mod processes;
mod requester;
mod roles;
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimelineFormat {
    /// Rows of allocations, counters and refusals.
    Csv,
    /// The Trace Event format: chrome://tracing and others.
    Chrome,
    /// Perfetto's protobuf: <https://ui.perfetto.dev>.
    Perfetto,
}

/// Writes the traces' timeline. `progress` gets bytes read, of how many.
pub fn export(
    traces: &[Trace],
    format: TimelineFormat,
    window: &Window,
    out: &mut dyn Write,
    progress: Progress,
) -> io::Result<Exported> {
    match format {
        TimelineFormat::Csv => write(traces, csv::Csv::new(out)?, window, progress),
        TimelineFormat::Chrome => write(traces, chrome::Chrome::new(out)?, window, progress),
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
        Timeline::new(process, window, &mut sink, &mut exported).write(&mut of_trace)?;
        before += bytes;
    }
    sink.finish()?;
    Ok(exported)
}
