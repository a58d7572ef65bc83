//! How much of the files that a trace names is read: the trace, and so the files, may be made to fill the memory or to
//! take forever. Each limit is far above what compilers write.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::trace::HostFiles;

/// Length of a file. Files of 2 GiB exist: libtorch_cuda.so.
pub(super) const FILE_BYTES: u64 = 16 << 30;
/// Symbols of a file. A browser with all of its symbols has 2 million.
pub(super) const SYMBOLS: usize = 32 << 20;
/// Unpacked debug information of a file.
pub(super) const DEBUG_BYTES: u64 = 2 << 30;
/// Compilation units of a file.
pub(super) const UNITS: usize = 1 << 20;
/// Unpacked bytes for each packed byte. Debug information has 2 to 20.
pub(super) const RATIO: u64 = 100;
/// Unpacked bytes that a section of any size may have.
pub(super) const SOME_BYTES: u64 = 1 << 20;
/// Bytes that one command unpacks, and the processor time that it spends on names, ns.
const ALL_BYTES: u64 = 16 << 30;
const ALL_NS: u64 = 60_000_000_000;

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Limit {
    #[error("has more than 16 GiB")]
    File,
    #[error("has more than 33,554,432 symbols")]
    Symbols,
    #[error("has more than 2 GiB")]
    Debug,
    #[error("has more than 1,048,576 units")]
    Units,
    #[error("unpacks to more than 100 times its size")]
    Ratio,
    #[error("is left out after 16 GiB of unpacked debug information")]
    AllBytes,
    #[error("is left out after 60 s of processor time")]
    Time,
}

static UNPACKED: AtomicU64 = AtomicU64::new(0);
static NS: AtomicU64 = AtomicU64::new(0);

/// What the reading of one file adds to the sums of the command.
pub(super) struct Spent<'f> {
    files: &'f dyn HostFiles,
    began_ns: u64,
}

impl Spent<'_> {
    pub(super) fn begin(files: &dyn HostFiles) -> Spent<'_> {
        Spent { files, began_ns: files.processor_ns() }
    }

    fn ns(&self) -> u64 {
        self.files.processor_ns().saturating_sub(self.began_ns)
    }

    /// An error if the command has spent its time.
    pub(super) fn check(&self) -> Result<(), Limit> {
        if NS.load(Relaxed).saturating_add(self.ns()) > ALL_NS { Err(Limit::Time) } else { Ok(()) }
    }

    /// Counts bytes that will be unpacked. An error if they are too many.
    pub(super) fn unpack(&self, bytes: u64) -> Result<(), Limit> {
        self.check()?;
        match UNPACKED.fetch_add(bytes, Relaxed).saturating_add(bytes) > ALL_BYTES {
            true => Err(Limit::AllBytes),
            false => Ok(()),
        }
    }
}

impl Drop for Spent<'_> {
    fn drop(&mut self) {
        NS.fetch_add(self.ns(), Relaxed);
    }
}
