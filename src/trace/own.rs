//! What is checked of a file before the command writes into it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use vramtrace_format::{HEADER_BYTES, Header, TraceReader};

/// An error for a file that somebody else may have written, or that has another name.
pub(super) fn check_own(file: &File) -> io::Result<()> {
    let about = file.metadata()?;
    // SAFETY: has no arguments and always succeeds.
    let user = unsafe { libc::geteuid() };
    match about.uid() == user && about.nlink() == 1 && about.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(io::Error::other("may have been written by others, or has another name")),
    }
}

/// The header page of an open trace or tail.
pub fn header_of(file: &File) -> io::Result<Header> {
    let mut page = [0; HEADER_BYTES];
    file.read_exact_at(&mut page, 0)?;
    Ok(TraceReader::new(&page).map_err(io::Error::other)?.header().clone())
}
