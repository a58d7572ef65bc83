//! Files of this machine that a trace names: libraries and notebooks. Who opens the trace opens them, too.

use std::ffi::OsString;
use std::fmt::Debug;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// Bytes of a file, which others may change or cut while they are read.
pub trait Bytes: Deref<Target = [u8]> + Debug + Send + Sync {
    /// The offset from which on zeros were read because the file became shorter.
    fn cut_at(&self) -> Option<u64> {
        None
    }

    /// Releases the memory that they take in this process, until they are read again.
    fn release(&self) {}
}

impl Bytes for Vec<u8> {}

/// Opens what a trace names. Its paths may lead anywhere: who wrote it may be somebody else.
pub trait HostFiles: Debug + Send + Sync {
    /// The bytes of a regular file; links are followed. An error if it is empty.
    fn map(&self, path: &Path) -> io::Result<Box<dyn Bytes>>;

    /// The names in a directory.
    fn names(&self, directory: &Path) -> io::Result<Vec<OsString>>;

    /// Processor time of this thread, ns: reading names has a limit of it.
    fn processor_ns(&self) -> u64;
}
