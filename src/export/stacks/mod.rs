//! Stacks with their bytes at one moment, in the formats of profilers. A file a format.

mod flame;
mod folded;
pub mod pprof;

use std::io::{self, Write};

use vramtrace_format::Header;

use super::{TracedProcess, processes};
use crate::analysis::{Holding, Holdings, Level, Moment, Owner, Process};
use crate::symbols::{Frame, Symbols};
use crate::trace::Trace;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackFormat {
    /// A line a stack, frames from the outermost on, and its bytes: what flame graphs are made of.
    Folded,
    /// `go tool pprof`, gzipped.
    Pprof,
    /// A flame graph to open in a browser.
    Flame,
}

/// The stacks of one process that held memory.
#[derive(Debug)]
pub struct ProcessStacks {
    /// `rank 3: python train.py (host, pid 4711)`.
    pub label: String,
    pub header: Header,
    pub symbols: Symbols,
    /// In order of device and stack, also those that hold nothing but what is paused.
    pub samples: Vec<(Owner, Holding)>,
    /// Bytes of peaks of which the trace has the height alone.
    pub not_known: u64,
}

impl ProcessStacks {
    /// Those with memory.
    pub fn resident(&self) -> impl Iterator<Item = &(Owner, Holding)> {
        self.samples.iter().filter(|(_, held)| held.bytes > 0)
    }
}

/// `train (train.py:41)`, `cudaMalloc [libcudart.so.12]`.
pub(super) fn frame_name(frame: &Frame) -> String {
    match (frame.place(), frame.library_name()) {
        (Some(place), _) => format!("{} ({place})", frame.function),
        (None, Some(library)) if !frame.function.starts_with(library) => {
            format!("{} [{library}]", frame.function)
        }
        (None, _) => frame.function.to_string(),
    }
}

/// Of each trace what its stacks held at a moment; `Peak`: each device at its own. `read`: the
/// same traces, read to the moment, for peaks to the end.
/// `level` `None`: blocks where they were recorded.
pub fn gather(
    traces: &[Trace],
    read: Vec<Process>,
    moment: Moment,
    level: Option<Level>,
) -> Vec<ProcessStacks> {
    let one = |(process, read): (TracedProcess, Process)| {
        let trace = process.trace;
        let Process { definitions, header, state, .. } = read;
        let level = level.unwrap_or(Level::of(&state));
        let holdings = Holdings::at(trace, &definitions, &state, moment, level);
        let symbols = Symbols::of(&definitions, &header, holdings.stacks());
        let held = holdings.held.iter().filter(|(_, held)| held.bytes > 0 || held.paused > 0);
        let mut samples: Vec<(Owner, Holding)> =
            held.map(|(owner, held)| (*owner, *held)).collect();
        samples.sort_unstable_by_key(|(owner, _)| (owner.device, owner.stack, owner.cause));
        ProcessStacks {
            label: process.label,
            header,
            symbols,
            samples,
            not_known: holdings.not_known.values().map(|peak| peak.bytes).sum(),
        }
    };
    processes(traces).into_iter().zip(read).map(one).collect()
}

/// Writes them. `title` is what a picture is headed with.
pub fn write(
    processes: &[ProcessStacks],
    format: StackFormat,
    title: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    match format {
        StackFormat::Folded => folded::write(processes, out),
        StackFormat::Pprof => pprof::write(processes, out),
        StackFormat::Flame => flame::write(processes, title, out),
    }
}
