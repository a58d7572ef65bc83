//! Opens traces and files for the tests of this crate.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;

use vramtrace_format::{Error, TraceReader};

use super::{Bytes, HostFiles, Opened, Trace};

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
    pub(crate) fn open(path: &Path) -> Result<Trace, Error> {
        let bytes = std::fs::read(path).unwrap();
        let header = TraceReader::new(&bytes)?.header().clone();
        Ok(Trace::new(Opened {
            path: path.to_path_buf(),
            data: vec![0..bytes.len() as u64],
            bytes: Box::new(bytes),
            header,
            running: false,
            tail_in_memory: false,
            files: Some(Arc::new(TestFiles)),
            damage: Vec::new(),
        }))
    }
}
