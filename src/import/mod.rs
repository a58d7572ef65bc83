//! Reads recordings of other tools: PyTorch memory snapshots (pickle), the CSV `action,addr,size,stream` and RMM's logs, plain
//! or gzip. Each becomes a [`History`], which [`convert`] writes as a trace. The files are untrusted input.

mod before;
mod blocks;
mod convert;
mod csv;
mod error;
pub mod history;
mod pickle;
mod rmm;
mod snapshot;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use crate::files::{self, GZIP};
use crate::trace::is_compressed_trace;
use history::{Form, History};
use vramtrace_format::Header;
use vramtrace_format::header::MAGIC;

pub use convert::Converted;
pub use error::{ImportError, ImportProblem};
pub use pickle::{PickleError, Value, parse as parse_pickle};

/// Reads a file of any of the known forms, recognised by its first bytes.
pub fn read(path: &Path) -> Result<History, ImportError> {
    let history =
        files::read_given(path, MAX_FILE_BYTES).map_err(ImportProblem::from).and_then(|bytes| {
            match bytes.starts_with(&GZIP) {
                true if is_compressed_trace(path) => Err(ImportProblem::Trace),
                true => parse(&unpack(&bytes)?),
                false => parse(&bytes),
            }
        });
    let of_file = |mut history: History| {
        if history.form == Form::Rmm {
            history.devices.iter_mut().for_each(|device| device.ordinal = rmm::ordinal(path));
        }
        history
    };
    history
        .map(of_file)
        .map_err(|problem| ImportError { path: path.display().to_string(), problem })
}

/// Parses an unpacked file.
pub fn parse(bytes: &[u8]) -> Result<History, ImportProblem> {
    if bytes.first() == Some(&0x80) {
        return snapshot::read(bytes);
    }
    if bytes.starts_with(&MAGIC) {
        return Err(ImportProblem::Trace);
    }
    let header = |header: &str| {
        bytes
            .split(|byte| *byte == b'\n')
            .next()
            .is_some_and(|first| first.trim_ascii() == header.as_bytes())
    };
    let read = match () {
        () if header(csv::HEADER) => csv::read,
        () if header(rmm::HEADER) => rmm::read,
        () => return Err(ImportProblem::Unknown { looks: looks_like(bytes) }),
    };
    read(std::str::from_utf8(bytes)?)
}

/// What a file that is not read looks like.
fn looks_like(bytes: &[u8]) -> &'static str {
    let start = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    match start {
        None => "an empty file",
        Some(b'{' | b'[') => "JSON",
        _ if bytes.starts_with(b"PK\x03\x04") => "a zip archive, as torch.save writes it",
        _ if std::str::from_utf8(bytes).is_ok() => "text of no known form",
        _ => "a file of no known form",
    }
}

/// Maximum size of a file in bytes: no more of a device or of a sparse file are read.
const MAX_FILE_BYTES: u64 = 8 << 30;

fn unpack(packed: &[u8]) -> Result<Vec<u8>, ImportProblem> {
    let mut plain = Vec::new();
    let put = |_, block: &[u8]| {
        plain.extend_from_slice(block);
        Ok(true)
    };
    files::unpack(packed, packed.len() as u64, put)?;
    Ok(plain)
}

/// Writes a history as a trace into an empty file. `path`: the file that the history was read from.
pub fn convert(history: &History, path: &Path, file: File) -> io::Result<Converted> {
    let uuid = files::random()?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let command = match script(history) {
        Some(script) => vec!["python".into(), script],
        None => vec![name],
    };
    let writer = concat!("import ", env!("CARGO_PKG_VERSION")).into();
    convert::convert(history, Header { uuid, command, writer, ..Header::default() }, file)
}

/// The script that ran: the most frequent outermost frame that is a module of a `.py` file.
fn script(history: &History) -> Option<String> {
    let frames = history.stacks.frames();
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, stack) in history.stacks.all() {
        let Some(outermost) = stack.last().map(|index| &frames[*index as usize]) else { continue };
        let is_script = &*outermost.function == "<module>"
            && outermost.file.ends_with(".py")
            && !outermost.file.contains("/lib/python");
        if is_script {
            *count.entry(&outermost.file).or_default() += 1;
        }
    }
    count.into_iter().max_by_key(|(_, count)| *count).map(|(file, _)| file.to_string())
}

#[cfg(test)]
mod tests;
