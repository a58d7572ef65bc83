//! Stacks with their bytes at one moment, in the formats of profilers. A file a format.

mod flame;
mod folded;
pub mod pprof;
mod speedscope;

use std::io::{self, Write};

use vramtrace_format::{DeviceId, StackId};

use super::timeline;
use crate::analysis::{Held, Holdings, Level, Moment, Process};
use crate::symbols::{Frame, Symbols};
use crate::trace::Trace;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A line a stack, frames from the outermost on, and its bytes: what flame graphs are made of.
    Folded,
    /// https://www.speedscope.app
    Speedscope,
    /// `go tool pprof`, gzipped.
    Pprof,
    /// A flame graph to open in a browser.
    Flame,
}

/// The stacks of one process that held memory.
#[derive(Debug)]
pub struct Stacks {
    /// `rank 3: python train.py (host, pid 4711)`.
    pub label: String,
    pub start_unix_ns: u64,
    pub symbols: Symbols,
    /// In order of device and stack.
    pub samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub device: DeviceId,
    pub stack: StackId,
    pub held: Held,
}

impl Sample {
    /// `GPU 0`.
    pub fn device_name(&self) -> String {
        timeline::device_name(Some(self.device))
    }
}

/// Of each trace what its stacks held at a moment; `Peak`: each device at its own.
/// `level` `None`: blocks where they were recorded.
pub fn gather(traces: &[Trace], moment: Moment, level: Option<Level>) -> Vec<Stacks> {
    let one = |process: timeline::Process| {
        let read = if moment.is_peak() { Moment::End } else { moment };
        let trace = process.trace;
        let Process { definitions, header, state, .. } = Process::read(trace, read);
        let level = level.unwrap_or(Level::of(&state));
        let holdings = Holdings::at(trace, &definitions, &state, moment, level);
        let symbols = Symbols::of(&definitions, &header, holdings.stacks());
        let mut samples: Vec<Sample> = holdings
            .all()
            .filter(|(_, _, held)| held.bytes > 0)
            .map(|(device, stack, held)| Sample { device, stack, held })
            .collect();
        samples.sort_unstable_by_key(|sample| (sample.device, sample.stack));
        Stacks { label: process.label, start_unix_ns: header.start_unix_ns, symbols, samples }
    };
    timeline::processes(traces).into_iter().map(one).collect()
}

/// Writes them. `title` is what a picture is headed with.
pub fn write(
    processes: &[Stacks],
    format: Format,
    title: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    match format {
        Format::Folded => folded::write(processes, out),
        Format::Speedscope => speedscope::write(processes, title, out),
        Format::Pprof => pprof::write(processes, out),
        Format::Flame => flame::write(processes, title, out),
    }
}

/// `train (train.py:41)`, `cudaMalloc [libcudart.so.12]`.
fn name(frame: &Frame) -> String {
    match (frame.place(), frame.library_name()) {
        (Some(place), _) => format!("{} ({place})", frame.function),
        (None, Some(library)) if !frame.function.starts_with(library) => {
            format!("{} [{library}]", frame.function)
        }
        (None, _) => frame.function.to_string(),
    }
}
