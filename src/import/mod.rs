//! What people already have, as a [`Log`] of requests: PyTorch's memory snapshot (a pickle, plain or
//! gzip) and the CSV form `action,addr,size,stream`. Nothing in a file is trusted.

mod csv;
mod pickle;
mod snapshot;

use std::fmt;
use std::io::Read;
use std::path::Path;

use crate::allocator::Log;

pub use pickle::{PickleError, Value, parse as parse_pickle};

/// A file that holds one or more devices' requests.
#[derive(Debug, Default)]
pub struct Imported {
    /// By device ordinal; devices without requests are left out.
    pub devices: Vec<(u32, Log)>,
    /// The setting that was in force, where the file tells.
    pub conf: Option<String>,
    /// What the file cannot tell, in words for the person who reads the result.
    pub caveats: Vec<String>,
}

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

/// More than this, unpacked, is refused: a few KiB of gzip can hold terabytes of zeros.
const MOST_BYTES: u64 = 8 << 30;

/// Reads a file of any of the known forms, told apart by its first bytes.
pub fn open(path: &Path) -> Result<Imported, ImportError> {
    let error = |what: String| ImportError { path: path.display().to_string(), what };
    let bytes = std::fs::read(path).map_err(|e| error(e.to_string()))?;
    let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&bytes[..])
            .take(MOST_BYTES + 1)
            .read_to_end(&mut plain)
            .map_err(|e| error(format!("not whole gzip: {e}")))?;
        if plain.len() as u64 > MOST_BYTES {
            return Err(error("unpacks to more than 8 GiB".into()));
        }
        plain
    } else {
        bytes
    };
    if bytes.first() == Some(&0x80) {
        return snapshot::read(&bytes).map_err(error);
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) if text.starts_with("action,") => csv::read(text).map_err(error),
        _ => Err(error(
            "neither a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot) nor a CSV that begins with action,addr,size,stream".into(),
        )),
    }
}
