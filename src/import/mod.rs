//! Reads recordings of other tools: PyTorch memory snapshots (pickle, torch.save, JSON), timelines of torch.profiler, the CSV
//! `action,addr,size,stream`, RMM's logs and pprof profiles, plain or gzip, and a table of Nsight Systems. Each becomes a
//! [`History`], which [`convert`] writes as a trace. The files are untrusted input.

mod before;
mod blocks;
mod convert;
mod csv;
mod error;
pub mod history;
mod json;
#[cfg(feature = "parquet")]
mod nsys;
mod pickle;
mod pprof;
mod rmm;
mod snapshot;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::files::{self, GZIP};
use crate::trace::is_compressed_trace;
use history::{Form, History};
use vramtrace_format::Header;
use vramtrace_format::header::MAGIC;

pub use convert::Converted;
pub use error::{ImportError, ImportProblem};
pub use pickle::{PickleError, Value, parse as parse_pickle};

/// The table of Nsight Systems with allocations and frees.
pub const NSYS_TABLE: &str = "CUDA_GPU_MEMORY_USAGE_EVENTS.parquet";

/// Reads a file of any of the known forms, recognised by its first bytes; a history for each process.
pub fn read(path: &Path) -> Result<Vec<History>, ImportError> {
    let error = |problem| ImportError { path: path.display().to_string(), problem };
    let mut first = [0; 4];
    if let Ok(mut file) = files::open(path)
        && file.read_exact(&mut first).is_ok()
        && first == *PARQUET
    {
        #[cfg(feature = "parquet")]
        return nsys::read(file).map_err(error);
        #[cfg(not(feature = "parquet"))]
        return Err(error(ImportProblem::Unknown {
            looks: "a Parquet table, for which this command was not built",
        }));
    }
    let of_file = || match files::read_given(path, MAX_FILE_BYTES)? {
        packed if !packed.starts_with(&GZIP) => parse(&packed),
        _ if is_compressed_trace(path) => Err(ImportProblem::Trace),
        packed => match unpack(&packed)? {
            (plain, false) => parse(&plain),
            (plain, true) => Ok(parse(&plain)?.cut()),
        },
    };
    let mut history = of_file().map_err(|problem| match problem {
        ImportProblem::Unknown { .. } if path.extension().is_some_and(|it| it == "nsys-rep") => {
            error(ImportProblem::Unknown { looks: "a report of Nsight Systems" })
        }
        problem => error(problem),
    })?;
    if history.form == Form::Rmm {
        history.devices.iter_mut().for_each(|device| device.ordinal = rmm::ordinal(path));
    }
    Ok(vec![history])
}

/// Parses an unpacked file.
pub fn parse(bytes: &[u8]) -> Result<History, ImportProblem> {
    // What an editor may write first.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if bytes.first() == Some(&0x80) {
        return snapshot::read(bytes);
    }
    if let Some(pickle) = saved(bytes) {
        return snapshot::read(pickle);
    }
    if matches!(first_of_text(bytes), Some(b'{' | b'[')) {
        return json::read(bytes);
    }
    if bytes.starts_with(&MAGIC) {
        return Err(ImportProblem::Trace);
    }
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    let read = match std::str::from_utf8(first).unwrap_or_default() {
        csv::HEADER => csv::read,
        rmm::HEADER => rmm::read,
        _ => match pprof::profile(bytes) {
            Some(profile) => return pprof::read(&profile),
            None => return Err(ImportProblem::Unknown { looks: looks_like(bytes) }),
        },
    };
    let text = std::str::from_utf8(bytes)?;
    match read(text) {
        // The last line was cut off.
        Err(ImportProblem::Row { line, .. })
            if !text.ends_with('\n') && line == text.lines().count() =>
        {
            Ok(read(&text[..text.rfind('\n').unwrap_or(0)])?.cut())
        }
        result => result,
    }
}

fn first_of_text(bytes: &[u8]) -> Option<&u8> {
    bytes.iter().find(|byte| !byte.is_ascii_whitespace())
}

/// The pickle in an archive of torch.save, from its first byte: the first file of the archive, not compressed.
fn saved(bytes: &[u8]) -> Option<&[u8]> {
    let number =
        |at: usize| Some(usize::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)));
    let (method, name, extra) = (number(8)?, number(26)?, number(28)?);
    let is_pickle = bytes.starts_with(ZIP) && bytes.get(30..30 + name)?.ends_with(b"data.pkl");
    (is_pickle && method == 0).then(|| bytes.get(30 + name + extra..))?
}

const ZIP: &[u8] = b"PK\x03\x04";
const PARQUET: &[u8; 4] = b"PAR1";

/// What a file that is not read looks like.
fn looks_like(bytes: &[u8]) -> &'static str {
    match () {
        () if first_of_text(bytes).is_none() => "an empty file",
        () if bytes.starts_with(ZIP) => "a zip archive without a pickle of torch.save",
        () if bytes.starts_with(b"SQLite format 3") => "a SQLite database",
        () if bytes.starts_with(b"<") => "a page of HTML",
        () if std::str::from_utf8(bytes).is_ok() && !bytes.contains(&0) => {
            let head = String::from_utf8_lossy(&bytes[..bytes.len().min(4096)]);
            let known = OF_TEXT.iter().find(|(words, _)| head.contains(words));
            known.map_or("text of no known form", |(_, looks)| looks)
        }
        () => "a file of no known form",
    }
}

/// Words in the first lines of text that has no allocations, and what it is.
const OF_TEXT: [(&str, &str); 6] = [
    ("memory.used", "a table of nvidia-smi, with sums"),
    ("used_gpu_memory", "a table of nvidia-smi, with sums"),
    ("# gpu ", "a table of nvidia-smi, with sums"),
    ("PyTorch CUDA memory summary", "a summary of torch.cuda.memory_summary"),
    ("out of memory", "the messages of a program"),
    (",allocate,", "a log of RMM without its first line"),
];

/// Maximum size of a file in bytes: no more of a device or of a sparse file are read.
const MAX_FILE_BYTES: u64 = 8 << 30;

/// Unpacks gzip; of a file that ends in the middle what there is, and true.
fn unpack(packed: &[u8]) -> Result<(Vec<u8>, bool), ImportProblem> {
    let mut plain = Vec::new();
    let put = |_, block: &[u8]| {
        plain.extend_from_slice(block);
        Ok(true)
    };
    match files::unpack(packed, packed.len() as u64, put) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !plain.is_empty() => {
            Ok((plain, true))
        }
        result => result.map(|_| (plain, false)).map_err(ImportProblem::from),
    }
}

/// Writes a history as a trace into an empty file. `path`: the file that the history was read from.
pub fn convert(history: &History, path: &Path, file: File) -> io::Result<Converted> {
    let uuid = files::random()?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let command = script(history).map_or(vec![name], |script| vec!["python".into(), script]);
    let writer = concat!("import ", env!("CARGO_PKG_VERSION")).into();
    convert::convert(
        history,
        Header { pid: history.pid, uuid, command, writer, ..Header::default() },
        file,
    )
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
