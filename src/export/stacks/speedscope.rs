//! Speedscope's own format: a profile for each process and device, weights in bytes.

use std::collections::BTreeMap;
use std::io::{self, Write};

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::samples::{ProcessStacks, StackSample};
use crate::symbols::Frame as NamedFrame;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'f> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    name: &'f str,
    exporter: String,
    active_profile_index: usize,
    shared: Shared,
    profiles: Vec<Profile>,
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<Frame>,
}

#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
struct Frame {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    /// Indexes of frames, outermost first.
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

pub(super) fn write(
    processes: &[ProcessStacks],
    title: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut frames = Frames::default();
    let mut profiles = Vec::new();
    for process in processes {
        let mut devices: BTreeMap<_, Vec<&StackSample>> = BTreeMap::new();
        for sample in process.resident() {
            devices.entry(sample.device).or_default().push(sample);
        }
        for samples in devices.values() {
            let stacks = samples.iter().map(|sample| {
                let stack = process.symbols.stack(sample.stack).rev();
                let mut stack: Vec<usize> = stack.map(|frame| frames.of(frame)).collect();
                if stack.is_empty() {
                    stack.push(frames.plain(process.symbols.why_empty(sample.stack)));
                }
                stack
            });
            profiles.push(Profile {
                kind: "sampled",
                name: format!("{}, {}", process.label, samples[0].device_name()),
                unit: "bytes",
                start_value: 0,
                samples: stacks.collect(),
                weights: samples.iter().map(|sample| sample.held.bytes).collect(),
                end_value: samples
                    .iter()
                    .fold(0, |sum, sample| sum.saturating_add(sample.held.bytes)),
            });
        }
    }
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        name: title,
        exporter: concat!("vramtrace ", env!("CARGO_PKG_VERSION")).to_string(),
        active_profile_index: 0,
        shared: Shared { frames: frames.all },
        profiles,
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Each frame once.
#[derive(Default)]
struct Frames {
    all: Vec<Frame>,
    known: FxHashMap<Frame, usize>,
}

impl Frames {
    fn of(&mut self, frame: &NamedFrame) -> usize {
        let library = frame.library.as_deref();
        let file = Some(&*frame.file).filter(|file| !file.is_empty()).or(library);
        self.add(Frame {
            name: frame.function.to_string(),
            file: file.map(str::to_string),
            line: frame.line,
        })
    }

    fn plain(&mut self, name: &str) -> usize {
        self.add(Frame { name: format!("({name})"), file: None, line: None })
    }

    fn add(&mut self, frame: Frame) -> usize {
        let next = self.all.len();
        let index = *self.known.entry(frame.clone()).or_insert(next);
        if index == next {
            self.all.push(frame);
        }
        index
    }
}
