//! The format of pprof: samples with allocations and bytes in use, gzipped.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use rustc_hash::FxHashMap;

use super::samples::ProcessStacks;
use crate::symbols::Frame;

/// `perftools.profiles.Profile`, as far as it is written. Numbers of strings are indexes into the
/// string table, of which the first is empty.
#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub period: i64,
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct ValueType {
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    /// Innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Label {
    #[prost(int64, tag = "1")]
    pub key: i64,
    #[prost(int64, tag = "2")]
    pub str: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Mapping {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(int64, tag = "5")]
    pub filename: i64,
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Location {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Line {
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    #[prost(int64, tag = "2")]
    pub line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Function {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(int64, tag = "2")]
    pub name: i64,
    #[prost(int64, tag = "4")]
    pub filename: i64,
}

pub fn write(processes: &[ProcessStacks], out: &mut dyn Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(&mut *out, Compression::default());
    gzip.write_all(&profile(processes).encode_to_vec())?;
    gzip.finish()?;
    out.flush()
}

pub fn profile(processes: &[ProcessStacks]) -> Profile {
    let mut book = Interner::default();
    book.string("");
    let objects = ValueType { r#type: book.string("inuse_objects"), unit: book.string("count") };
    let space = ValueType { r#type: book.string("inuse_space"), unit: book.string("bytes") };
    // Only where something was unmapped and may come back.
    let sleeps = processes.iter().flat_map(|process| &process.samples);
    let sleeps = sleeps.into_iter().any(|sample| sample.held.paused > 0);
    let paused = || ValueType { r#type: book.string("paused_space"), unit: space.unit };
    let paused: Option<ValueType> = sleeps.then(paused);
    let (device_key, process_key) = (book.string("device"), book.string("process"));
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let mut samples = Vec::new();
    for process in processes {
        let name = book.string(&process.label);
        for sample in &process.samples {
            let stack = process.symbols.stack(sample.stack);
            let mut location_id: Vec<u64> = stack.map(|frame| book.location(frame)).collect();
            if location_id.is_empty() {
                location_id.push(book.place(process.symbols.why_empty(sample.stack), "", None, 0));
            }
            let device = book.string(&sample.device_name());
            let held = sample.held;
            let values = [held.count, held.bytes].into_iter().chain(paused.map(|_| held.paused));
            samples.push(Sample {
                location_id,
                value: values.map(number).collect(),
                label: vec![
                    Label { key: device_key, str: device },
                    Label { key: process_key, str: name },
                ],
            });
        }
    }
    let starts = processes.iter().map(|process| process.start_unix_ns);
    Profile {
        sample_type: [objects, space].into_iter().chain(paused).collect(),
        sample: samples,
        mapping: book.mappings,
        location: book.locations,
        function: book.functions,
        string_table: book.strings,
        time_nanos: number(starts.min().unwrap_or(0)),
        period_type: Some(space),
        period: 1,
        default_sample_type: space.r#type,
    }
}

/// Each string, library, function and place once. Ids count from 1.
#[derive(Default)]
struct Interner {
    strings: Vec<String>,
    known_strings: FxHashMap<String, i64>,
    mappings: Vec<Mapping>,
    known_mappings: FxHashMap<i64, u64>,
    functions: Vec<Function>,
    known_functions: FxHashMap<(i64, i64), u64>,
    locations: Vec<Location>,
    known_locations: FxHashMap<(u64, i64, u64), u64>,
}

impl Interner {
    fn string(&mut self, text: &str) -> i64 {
        if let Some(known) = self.known_strings.get(text) {
            return *known;
        }
        let index = self.strings.len() as i64;
        self.strings.push(text.to_string());
        self.known_strings.insert(text.to_string(), index);
        index
    }

    fn location(&mut self, frame: &Frame) -> u64 {
        let mapping = frame.library.as_deref().map_or(0, |library| self.mapping(library));
        self.place(&frame.function, &frame.file, frame.line, mapping)
    }

    fn mapping(&mut self, library: &str) -> u64 {
        let filename = self.string(library);
        let id = self.mappings.len() as u64 + 1;
        let known = *self.known_mappings.entry(filename).or_insert(id);
        if known == id {
            self.mappings.push(Mapping {
                id,
                filename,
                // All names that can be known are here: pprof need not look for more.
                has_functions: true,
                has_filenames: true,
                has_line_numbers: true,
            });
        }
        known
    }

    fn place(&mut self, function: &str, file: &str, line: Option<u32>, mapping_id: u64) -> u64 {
        let (name, filename) = (self.string(function), self.string(file));
        let next = self.functions.len() as u64 + 1;
        let function_id = *self.known_functions.entry((name, filename)).or_insert(next);
        if function_id == next {
            self.functions.push(Function { id: next, name, filename });
        }
        let line = i64::from(line.unwrap_or(0));
        let next = self.locations.len() as u64 + 1;
        let id = *self.known_locations.entry((function_id, line, mapping_id)).or_insert(next);
        if id == next {
            let line = vec![Line { function_id, line }];
            self.locations.push(Location { id, mapping_id, line });
        }
        id
    }
}
