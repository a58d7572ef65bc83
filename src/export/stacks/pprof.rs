//! The format of pprof: samples with allocations and bytes in use, gzipped.

use std::hash::Hash;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use indexmap::IndexSet;
use prost::Message;
use rustc_hash::FxBuildHasher;

use super::super::sink::device_name;
use super::ProcessStacks;
use crate::pprof::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};
use crate::symbols::Frame;

pub fn write(processes: &[ProcessStacks], out: &mut dyn Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(&mut *out, Compression::default());
    gzip.write_all(&profile(processes).encode_to_vec())?;
    gzip.finish()?;
    out.flush()
}

pub fn profile(processes: &[ProcessStacks]) -> Profile {
    let mut book = Book::default();
    book.string("");
    let objects = ValueType { r#type: book.string("inuse_objects"), unit: book.string("count") };
    let space = ValueType { r#type: book.string("inuse_space"), unit: book.string("bytes") };
    // Only where something was unmapped and may come back.
    let sleeps = processes.iter().flat_map(|process| &process.samples);
    let sleeps = sleeps.into_iter().any(|(_, held)| held.paused > 0);
    let paused = || ValueType { r#type: book.string("paused_space"), unit: space.unit };
    let paused: Option<ValueType> = sleeps.then(paused);
    let (device_key, process_key) = (book.string("device"), book.string("process"));
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let mut samples = Vec::new();
    for process in processes {
        let name = book.string(&process.label);
        for (owner, held) in &process.samples {
            let stack = process.symbols.stack(owner.stack);
            let mut location_id: Vec<u64> = stack.map(|frame| book.location(frame)).collect();
            if location_id.is_empty() {
                location_id.push(book.place(process.symbols.why_empty(owner.stack), "", None, 0));
            }
            let device = book.string(&device_name(Some(owner.device)));
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
    let starts = processes.iter().map(|process| process.header.start_unix_ns);
    let mapping = |(filename, id)| Mapping {
        id,
        filename,
        // All names that can be known are here: pprof need not look for more.
        has_functions: true,
        has_filenames: true,
        has_line_numbers: true,
    };
    let function = |((name, filename), id)| Function { id, name, filename };
    let location = |((function_id, line, mapping_id), id)| Location {
        id,
        mapping_id,
        line: vec![Line { function_id, line }],
    };
    Profile {
        sample_type: [objects, space].into_iter().chain(paused).collect(),
        sample: samples,
        mapping: book.mappings.into_iter().zip(1..).map(mapping).collect(),
        location: book.locations.into_iter().zip(1..).map(location).collect(),
        function: book.functions.into_iter().zip(1..).map(function).collect(),
        string_table: book.strings.into_iter().collect(),
        time_nanos: number(starts.min().unwrap_or(0)),
        period_type: Some(space),
        period: 1,
        default_sample_type: space.r#type,
    }
}

/// Each string, library, function and place once. Ids of the others than strings count from 1.
#[derive(Default)]
struct Book {
    strings: IndexSet<String, FxBuildHasher>,
    /// File names.
    mappings: IndexSet<i64, FxBuildHasher>,
    /// Names and file names.
    functions: IndexSet<(i64, i64), FxBuildHasher>,
    /// Functions, lines and mappings.
    locations: IndexSet<(u64, i64, u64), FxBuildHasher>,
}

fn id_of<T: Hash + Eq>(all: &mut IndexSet<T, FxBuildHasher>, value: T) -> u64 {
    all.insert_full(value).0 as u64 + 1
}

impl Book {
    fn string(&mut self, text: &str) -> i64 {
        let known = self.strings.get_index_of(text);
        known.unwrap_or_else(|| self.strings.insert_full(text.to_string()).0) as i64
    }

    fn location(&mut self, frame: &Frame) -> u64 {
        let mapping = frame.library.as_deref().map_or(0, |library| {
            let filename = self.string(library);
            id_of(&mut self.mappings, filename)
        });
        self.place(&frame.function, &frame.file, frame.line, mapping)
    }

    fn place(&mut self, function: &str, file: &str, line: Option<u32>, mapping: u64) -> u64 {
        let function = (self.string(function), self.string(file));
        let function = id_of(&mut self.functions, function);
        id_of(&mut self.locations, (function, line.unwrap_or(0).into(), mapping))
    }
}
