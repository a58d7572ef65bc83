//! `outermost;..;innermost bytes`, a line a stack.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::samples::{ProcessStacks, StackSample, frame_name};

pub(super) fn write(processes: &[ProcessStacks], out: &mut dyn Write) -> io::Result<()> {
    for line in lines(processes) {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

/// Each different stack once, in order of its text. Several processes have a frame each, and so
/// have devices.
pub(super) fn lines(processes: &[ProcessStacks]) -> Vec<String> {
    let mut bytes: BTreeMap<String, u64> = BTreeMap::new();
    for process in processes {
        for sample in process.resident() {
            let mut line = root(process, sample, processes.len() > 1);
            for frame in process.symbols.stack(sample.stack).rev() {
                line.push(';');
                line.push_str(&plain(&frame_name(frame)));
            }
            if let Some(leaf) = sample.leaf() {
                line.push(';');
                line.push_str(&leaf);
            }
            let sum = bytes.entry(line).or_default();
            *sum = sum.saturating_add(sample.held.bytes);
        }
    }
    bytes.into_iter().map(|(line, bytes)| format!("{line} {bytes}")).collect()
}

/// What stands outside of the frames: process, device, and why there are no frames.
pub(super) fn root(process: &ProcessStacks, sample: &StackSample, several: bool) -> String {
    let mut line = String::new();
    if several {
        line.push_str(&plain(&process.label));
        line.push(';');
    }
    line.push_str(&sample.device_name());
    if process.symbols.indexes(sample.stack).is_empty() {
        line.push_str(&format!(";({})", process.symbols.why_empty(sample.stack)));
    }
    line
}

/// A name that cannot be taken for two frames or two lines.
pub(super) fn plain(name: &str) -> String {
    name.chars()
        .map(|c| match c {
            ';' => ':',
            c if c.is_control() => ' ',
            c => c,
        })
        .collect()
}
