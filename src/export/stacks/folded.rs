//! `outermost;..;innermost bytes`, a line a stack.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::super::sink::device_name;
use super::{ProcessStacks, frame_name};
use crate::analysis::Owner;
use crate::symbols::Frame;

pub(super) fn write(processes: &[ProcessStacks], out: &mut dyn Write) -> io::Result<()> {
    let mut lines = Lines::new();
    for process in processes {
        add(&mut lines, process, processes.len() > 1, |_, _| {});
    }
    for (line, bytes) in lines {
        writeln!(out, "{line} {bytes}")?;
    }
    out.flush()
}

/// Each different stack once with its bytes, in order of its text.
pub(super) type Lines = BTreeMap<String, u64>;

/// Adds the stacks of a process. Several processes have a frame each, and so have devices. `named` gets each name, without a
/// frame that of what is none.
pub(super) fn add(
    lines: &mut Lines,
    process: &ProcessStacks,
    several: bool,
    mut named: impl FnMut(&str, Option<&Frame>),
) {
    for (owner, held) in process.resident() {
        let mut line = root(process, owner, several);
        line.split(';').for_each(|part| named(part, None));
        let mut push = |name: &str, frame: Option<&Frame>| {
            named(name, frame);
            line.push(';');
            line.push_str(name);
        };
        for index in process.symbols.indexes(owner.stack).iter().rev() {
            let frame = &process.symbols.frames()[*index as usize];
            push(&plain(&frame_name(frame)), Some(frame));
        }
        if let Some(cause) = owner.cause {
            push(&format!("{}, taken by the driver", cause.words()), None);
        }
        let sum = lines.entry(line).or_default();
        *sum = sum.saturating_add(held.bytes);
    }
}

/// What stands outside of the frames: process, device, and why there are no frames.
fn root(process: &ProcessStacks, owner: &Owner, several: bool) -> String {
    let mut line = String::new();
    if several {
        line.push_str(&plain(&process.label));
        line.push(';');
    }
    line.push_str(&device_name(Some(owner.device)));
    if process.symbols.indexes(owner.stack).is_empty() {
        line.push_str(&format!(";({})", process.symbols.why_empty(owner.stack)));
    }
    line
}

/// A name that cannot be taken for two frames or two lines.
fn plain(name: &str) -> String {
    name.chars()
        .map(|c| match c {
            ';' => ':',
            c if c.is_control() => ' ',
            c => c,
        })
        .collect()
}
