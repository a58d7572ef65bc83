//! Profiles of pprof with bytes in use: what JAX's `save_device_memory_profile` writes, and `vramtrace export --format pprof`.
//! A profile is one moment: who holds how many bytes in how many allocations, without addresses and times.

use std::collections::HashMap;

use prost::Message;
use vramtrace_format::StackId;

use super::error::ImportProblem;
use super::history::{Form, History, HistoryBlock, HistoryFrame, HistorySegment, is_place};
use crate::pprof::{Function, Location, Profile, Sample};

/// The profile, if the bytes are one: nothing at the beginning of a file says so.
pub(super) fn profile(bytes: &[u8]) -> Option<Profile> {
    let profile = Profile::decode(bytes).ok()?;
    let is_one = !profile.sample_type.is_empty() && profile.string_table.first()?.is_empty();
    is_one.then_some(profile)
}

pub(super) fn read(profile: &Profile) -> Result<History, ImportProblem> {
    let mut reader = Reader {
        profile,
        locations: profile.location.iter().map(|place| (place.id, place)).collect(),
        functions: profile.function.iter().map(|function| (function.id, function)).collect(),
        history: History::new(Form::Pprof),
        at: 0,
        most: SOME + profile.sample.len() as u64,
    };
    reader.history.has_times = false;
    reader.history.caveats.push("a pprof profile is one moment: what was live then".into());
    let is_space = |name: &str| name == "space" || name == "inuse_space";
    let bytes = reader.value(is_space).ok_or(ImportProblem::Unknown { looks: WITHOUT })?;
    let count = reader.value(|name| name == "allocations" || name == "inuse_objects");
    for sample in &profile.sample {
        let number = |at: usize| sample.value.get(at).and_then(|value| u64::try_from(*value).ok());
        let Some(bytes) = number(bytes).filter(|bytes| *bytes > 0) else { continue };
        reader.sample(sample, bytes, count.and_then(number).unwrap_or(1));
    }
    if reader.history.devices.is_empty() { Err(ImportProblem::Empty) } else { Ok(reader.history) }
}

const WITHOUT: &str = "a pprof profile without bytes in use";

/// Allocations that a profile may have beside one for each sample: a count may be any number.
const SOME: u64 = 1 << 16;

struct Reader<'p> {
    profile: &'p Profile,
    locations: HashMap<u64, &'p Location>,
    functions: HashMap<u64, &'p Function>,
    history: History,
    /// The next made-up address.
    at: u64,
    /// How many more allocations are made.
    most: u64,
}

impl<'p> Reader<'p> {
    fn text(&self, index: i64) -> &'p str {
        let index = usize::try_from(index).ok();
        index.and_then(|index| self.profile.string_table.get(index)).map_or("", String::as_str)
    }

    /// The place of a value in each sample.
    fn value(&self, is_it: impl Fn(&str) -> bool) -> Option<usize> {
        self.profile.sample_type.iter().position(|of| is_it(self.text(of.r#type)))
    }

    fn label(&self, sample: &Sample, key: &str) -> Option<&'p str> {
        let label = sample.label.iter().find(|label| self.text(label.key) == key)?;
        Some(self.text(label.str))
    }

    /// Adds `count` allocations of `bytes` in all.
    fn sample(&mut self, sample: &Sample, bytes: u64, count: u64) {
        let device = self.label(sample, "device").unwrap_or("");
        // JAX lists the buffers of the host too.
        if device.to_ascii_lowercase().contains("cpu") || !is_place(self.at, bytes) {
            return;
        }
        // `TPU_3(process=0,(1,1,0,0))`
        let device = device.split("(process").next().unwrap_or_default();
        let digits = device.trim_end_matches(|c: char| !c.is_ascii_digit());
        let digits = &digits[digits.trim_end_matches(|c: char| c.is_ascii_digit()).len()..];
        let ordinal = digits.parse().ok().filter(|ordinal| *ordinal < u8::MAX).unwrap_or(0);
        let stack = self.stack(sample);
        let count = count.clamp(1, bytes.min(self.most.max(1)));
        self.most = self.most.saturating_sub(count);
        let mut blocks = Vec::new();
        for n in 0..count {
            let size = bytes / count + u64::from(n < bytes % count);
            let (address, requested) = (self.at, size);
            blocks.push(HistoryBlock { address, size, requested, pending: false, stack });
            self.at += size;
        }
        let segment = HistorySegment { blocks, ..HistorySegment::default() };
        self.history.device(ordinal).segments.push(segment);
    }

    fn stack(&mut self, sample: &Sample) -> StackId {
        let frame = |function: &str, file: &str, line: i64| HistoryFrame {
            function: function.into(),
            file: file.into(),
            line: u32::try_from(line).unwrap_or(0),
        };
        let kind = self.label(sample, "kind").filter(|kind| *kind != "buffer");
        let mut frames: Vec<HistoryFrame> =
            kind.map(|kind| frame(kind, "", 0)).into_iter().collect();
        let places = sample.location_id.iter().filter_map(|id| self.locations.get(id));
        for line in places.flat_map(|place| &place.line) {
            let Some(function) = self.functions.get(&line.function_id) else { continue };
            let (name, file) = (self.text(function.name), self.text(function.filename));
            frames.push(frame(name, file, line.line));
        }
        if frames.is_empty() {
            return StackId(0);
        }
        let stacks = &mut self.history.stacks;
        let indexes = frames.into_iter().map(|frame| stacks.frame(frame)).collect();
        stacks.stack(indexes)
    }
}
