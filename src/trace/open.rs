//! Opens trace files: maps a file with its tail, and checks what others may have put there.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use vramtrace_format::{
    Damage, DamageKind, Error, HEADER_BYTES, Header, TailPlace, TraceReader, secrets,
};

use super::holes::data_ranges;
use super::process::{is_running, is_this_host};
use super::tail::Tail;
use super::tail_place::Beside;
use super::{Bytes, HostFiles, Opened, Trace, compressed};
use crate::files::{self, Directory, Map};
use crate::units::size;

/// Maximum size in bytes of the data of a trace that [`open_of`] opens. A recorder writes 2 GiB by default.
const MAX_BYTES_OF_USER: u64 = 64 << 30;
/// Of these, maximum size in bytes of the definitions, which are held in memory. Trainings have 1 to 5 MiB.
const MAX_DEFINITION_BYTES: u64 = 64 << 20;

/// The files of this machine, as [`files`] opens them.
#[derive(Debug)]
struct ThisMachine;

impl HostFiles for ThisMachine {
    fn map(&self, path: &Path) -> io::Result<Box<dyn Bytes>> {
        let file = files::open(path)?;
        match file.metadata()?.len() {
            0 => Err(io::Error::other("is empty")),
            _ => Ok(Box::new(Map::of(&file)?)),
        }
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        Ok(Directory::at(directory)?.names()?.collect())
    }

    fn processor_ns(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// Maps the file and reads its header page.
pub fn open(path: &Path) -> Result<Trace, OpenError> {
    open_beside(path, &Beside::of(path))
}

/// As [`open`]; `beside`: the directory of the file.
pub(super) fn open_beside(path: &Path, beside: &Beside) -> Result<Trace, OpenError> {
    let file = files::open(path)?;
    let file = compressed::unpacked(&file)?.unwrap_or(file);
    of_file(path, file, beside)
}

/// The trace of a running process of this user, who may have put anything there: a regular file of that user that is
/// not compressed, nor reached through a link. Nothing is written for it, and no file that it names is opened for
/// another user.
pub fn open_of(owner: u32, path: &Path) -> Result<Trace, OpenError> {
    let file = files::open_of(owner, path)?;
    of_file(path, file, &Beside::of_user(owner, path))
}

fn of_file(path: &Path, file: File, beside: &Beside) -> Result<Trace, OpenError> {
    let length = file.metadata()?.len();
    // An empty mapping is another error: the reader's message is better.
    let map = (length > 0).then(|| Map::of(&file)).transpose()?;
    if let Some(map) = &map {
        map.read_in_order();
    }
    let mut data = data_ranges(&file)?;
    let owner = beside.owner;
    let bytes: u64 = data.iter().map(|range| range.end - range.start).sum();
    if owner.is_some() && bytes > MAX_BYTES_OF_USER {
        return Err(io::Error::other(format!("has more than {}", size(MAX_BYTES_OF_USER))).into());
    }
    let mut header = match TraceReader::sparse(map.as_deref().unwrap_or_default(), &data) {
        Ok(reader) if owner.is_some() && reader.definition_bytes() > MAX_DEFINITION_BYTES => {
            let most = format!("has more than {} of definitions", size(MAX_DEFINITION_BYTES));
            return Err(io::Error::other(most).into());
        }
        Ok(reader) => reader.header().clone(),
        Err(error) => Tail::header_beside(path, beside).ok_or(error)?,
    };
    // Older recorders wrote the command with its secrets.
    header.command = secrets::mask(header.command);
    let running = is_running(&header);
    // The tail is read before the trace's ranges: a window that leaves the tail is in the trace.
    let tail = Tail::of(path, &file, beside, &header);
    let mut damage = Vec::new();
    if tail.is_none()
        && let Some(kind) = missing(&header, running)
    {
        let offset = file.metadata()?.len();
        damage.push(Damage { offset, bytes: 0, kind });
    }
    let tail_in_memory = !running && tail.as_ref().is_some_and(|tail| tail.in_memory);
    let map = match tail {
        Some(tail) => {
            let stray =
                |offset: &u64| Damage { offset: *offset, bytes: 0, kind: DamageKind::StrayWindow };
            damage.extend(tail.impossible.iter().map(stray));
            data = data_ranges(&file)?;
            Some(tail.over(&file, &mut data)?)
        }
        None => map,
    };
    let trace = Trace::new(Opened {
        path: path.to_path_buf(),
        bytes: map.map_or_else(|| Box::new(Vec::new()) as Box<dyn Bytes>, |map| Box::new(map)),
        data,
        header,
        running,
        tail_in_memory,
        files: files_for(owner),
        damage,
    });
    trace.release();
    Ok(trace)
}

/// The files that a trace may name: none for that of another user. `None`: a trace that the command line names.
fn files_for(owner: Option<u32>) -> Option<Arc<dyn HostFiles>> {
    // SAFETY: has no arguments and always succeeds.
    let is_own = owner.is_none_or(|owner| owner == unsafe { libc::geteuid() });
    is_own.then(|| Arc::new(ThisMachine) as Arc<dyn HostFiles>)
}

/// When the process of a trace started, by the header page alone.
pub(super) fn started_unix_ns(path: &Path) -> Option<u64> {
    let mut page = [0; HEADER_BYTES];
    let read = compressed::begin(path, &mut page)
        .or_else(|_| files::open(path)?.read_exact_at(&mut page, 0));
    match read.map(|()| TraceReader::new(&page)) {
        Ok(Ok(reader)) if reader.damage().is_empty() => Some(reader.header().start_unix_ns),
        // Its header page may be in its tail.
        _ => Some(open(path).ok()?.header().start_unix_ns),
    }
}

/// Why a file could not be opened as a trace.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Format(#[from] Error),
}

/// What is missing without a tail. `None`: nothing, or nothing yet.
fn missing(header: &Header, running: bool) -> Option<DamageKind> {
    match header.tail? {
        _ if running => None,
        TailPlace::Beside => Some(DamageKind::TailMissing),
        TailPlace::Memory if is_this_host(header) => Some(DamageKind::TailLost),
        TailPlace::Memory => Some(DamageKind::TailElsewhere),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_of_another_user_has_no_files() {
        // SAFETY: has no arguments and always succeeds.
        let me = unsafe { libc::geteuid() };
        let has_files = [None, Some(me), Some(me + 1)].map(|owner| files_for(owner).is_some());
        assert_eq!(has_files, [true, true, false]);
    }
}
