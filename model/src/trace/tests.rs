//! Opens traces and files for the tests of this crate.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vramtrace_format::{Error, TraceReader};

use super::{Bytes, Definitions, HostFiles, Opened, Trace};
use crate::testing::TraceBuilder;

/// The files of this machine.
#[derive(Debug)]
pub(crate) struct TestFiles;

impl HostFiles for TestFiles {
    fn map(&self, path: &Path) -> io::Result<Box<dyn Bytes>> {
        Ok(Box::new(std::fs::read(path)?))
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        std::fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn processor_ns(&self) -> u64 {
        0
    }
}

impl Trace {
    /// A whole trace of a process that has ended.
    pub(crate) fn of(builder: &TraceBuilder) -> Trace {
        Trace::of_bytes(builder.bytes()).unwrap()
    }

    pub(crate) fn of_bytes(bytes: Vec<u8>) -> Result<Trace, Error> {
        let header = TraceReader::new(&bytes)?.header().clone();
        Ok(Trace::new(Opened {
            path: "a.vtrace".into(),
            data: Vec::from([std::ops::Range { start: 0, end: bytes.len() as u64 }]),
            bytes: Box::new(bytes),
            header,
            running: false,
            tail_in_memory: false,
            files: Some(Arc::new(TestFiles)),
            damage: Vec::new(),
        }))
    }

    /// A packed trace of this repository.
    pub(crate) fn recorded(path: &str) -> Trace {
        Trace::of_bytes(unpacked(path)).unwrap()
    }
}

impl Definitions {
    pub(crate) fn of_builder(builder: &TraceBuilder) -> Definitions {
        let mut all = Definitions::default();
        builder.definitions().iter().for_each(|definition| all.add(definition.clone()));
        all
    }
}

/// A file of this repository.
pub(crate) fn in_repository(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)
}

/// The bytes of a packed trace of this repository.
pub(crate) fn unpacked(path: &str) -> Vec<u8> {
    let packed = std::fs::File::open(in_repository(path)).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    bytes
}
