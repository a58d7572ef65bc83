//! What people already have: PyTorch's memory snapshot (a pickle, plain or gzip), the CSV form
//! `action,addr,size,stream`, and RMM's log. Read as a [`History`], which becomes an ordinary trace
//! ([`convert`]). Nothing in a file is trusted.

mod before;
mod blocks;
mod convert;
mod csv;
pub mod history;
mod pickle;
mod rmm;
mod snapshot;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use history::History;
use vramtrace_format::Header;

pub use convert::Converted;
pub use pickle::{PickleError, Value, parse as parse_pickle};

/// Names the file, what is wrong and what would be right.
#[derive(Debug)]
pub struct ImportError {
    path: String,
    what: String,
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.what)
    }
}

impl std::error::Error for ImportError {}

const UNKNOWN: &str = "neither a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot), nor a \
    CSV that begins with action,addr,size,stream, nor an RMM log that begins with \
    Thread,Time,Action,Pointer,Size,Stream";

/// Reads a file of any of the known forms, told apart by its first bytes.
pub fn read(path: &Path) -> Result<History, ImportError> {
    let error = |what: String| ImportError { path: path.display().to_string(), what };
    let bytes = std::fs::read(path).map_err(|e| error(e.to_string()))?;
    let bytes = match bytes.starts_with(&[0x1f, 0x8b]) {
        true => unpack(&bytes).map_err(error)?,
        false => bytes,
    };
    parse(&bytes, path).map_err(error)
}

/// The same of bytes that are there. `path` may name a device.
pub fn parse(bytes: &[u8], path: &Path) -> Result<History, String> {
    if bytes.first() == Some(&0x80) {
        return snapshot::read(bytes);
    }
    let begins = |header: &str| bytes.starts_with(header.as_bytes());
    if !begins(csv::HEADER) && !begins(rmm::HEADER) {
        return Err(UNKNOWN.into());
    }
    let text = std::str::from_utf8(bytes).map_err(|e| format!("not text: {e}"))?;
    match begins(csv::HEADER) {
        true => csv::read(text),
        false => rmm::read(text, path),
    }
}

/// A few KiB of gzip can hold terabytes of zeros. What is wanted packs 10 to 50 times.
const MOST_RATIO: u64 = 200;
/// So much is granted to the shortest file.
const SOME_BYTES: u64 = 1 << 20;

fn unpack(packed: &[u8]) -> Result<Vec<u8>, String> {
    let most = (packed.len() as u64).saturating_mul(MOST_RATIO).max(SOME_BYTES);
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(packed)
        .take(most + 1)
        .read_to_end(&mut plain)
        .map_err(|e| format!("not whole gzip: {e}"))?;
    if plain.len() as u64 > most {
        return Err(format!("unpacks to more than {MOST_RATIO} times its size"));
    }
    Ok(plain)
}

/// Writes what a history tells as a trace, into an empty file. `path`: where the history is from.
pub fn convert(history: &History, path: &Path, file: File) -> io::Result<Converted> {
    let mut uuid = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut uuid)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let command = match script(history) {
        Some(script) => vec!["python".into(), script],
        None => vec![name],
    };
    let writer = concat!("import ", env!("CARGO_PKG_VERSION")).into();
    convert::convert(history, Header { uuid, command, writer, ..Header::default() }, file)
}

/// The program, as the outermost frames of most stacks tell it.
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
