//! The tail file beside a trace: the windows that a process was filling. It exists while the process runs,
//! and after it was killed. A reader copies the windows to their places in the mapped trace; `vramtrace
//! run` writes them into the file.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, MmapMut, MmapOptions};
use vramtrace_format::tail::{self, TailWindow};
use vramtrace_format::window::WINDOW_HEADER;
use vramtrace_format::{
    HEADER_BYTES, Header, SLOT, TraceReader, WindowHeader, WindowKind, slot_offset,
};

use super::file::is_running;

/// Copies of the windows of a tail.
pub struct Tail {
    header: Header,
    windows: Vec<(WindowHeader, Vec<u8>)>,
}

impl Tail {
    /// The tail of the trace with this header. `None`: it has none, or its file is missing.
    pub fn of(trace: &Path, header: &Header) -> Option<Tail> {
        let path = header.has_tail.then(|| find(trace, header.file_tag())).flatten()?;
        Tail::read(&File::open(path).ok()?, header.file_tag()).ok()
    }

    /// The header page of the tail with the trace's name, for a trace whose own header was cut off.
    pub fn header_beside(trace: &Path) -> Option<Header> {
        let begin = [b".", trace.file_name()?.as_bytes(), b"."].concat();
        let file = File::open(find_in(directory_of(trace), |name| {
            name.starts_with(&begin) && name.ends_with(b".tail")
        })?);
        header_of(&file.ok()?).ok()
    }

    fn read(file: &File, tag: u64) -> io::Result<Tail> {
        let header = header_of(file)?;
        let mut windows = copies(file, tag, WindowKind::Events)?;
        // Definitions are copied after events, so that the definitions of all copied events are there.
        windows.extend(copies(file, tag, WindowKind::Definitions)?);
        Ok(Tail { header, windows })
    }

    /// A private map of the trace with these windows at their places. Adds their ranges to `data`.
    pub fn over(&self, trace: &File, data: &mut Vec<Range<u64>>) -> io::Result<Mmap> {
        let length = trace.metadata()?.len();
        let ends = self.ranges().map(|range| range.end);
        let end = ends.max().unwrap_or(0).max(length).max(HEADER_BYTES as u64);
        let mut map = private(trace, length, end)?;
        map[..HEADER_BYTES].copy_from_slice(&self.page());
        for (header, bytes) in &self.windows {
            let at = slot_offset(header.slot.into()) as usize;
            map[at..at + bytes.len()].copy_from_slice(bytes);
        }
        data.extend(self.ranges());
        data.push(0..HEADER_BYTES as u64);
        join(data);
        map.make_read_only()
    }

    /// The header page of the whole trace.
    fn page(&self) -> [u8; HEADER_BYTES] {
        Header { has_tail: false, ..self.header.clone() }.to_page()
    }

    fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.windows.iter().map(|(header, bytes)| {
            let at = slot_offset(header.slot.into());
            at..at + bytes.len() as u64
        })
    }
}

/// Writes the tail of a killed process into its trace, and removes the tail. Does nothing where there is no
/// tail, or where the process may still write.
pub fn merge(trace: &Path) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(trace)?;
    let header = header_of(&file).or_else(|error| Tail::header_beside(trace).ok_or(error))?;
    let tag = header.file_tag();
    let Some(path) = header.has_tail.then(|| find(trace, tag)).flatten() else { return Ok(()) };
    let opened = File::open(&path)?;
    if is_running(&header) || !is_unlocked(&opened) {
        return Ok(());
    }
    let tail = Tail::read(&opened, tag)?;
    for ((_, bytes), range) in tail.windows.iter().zip(tail.ranges()) {
        file.write_all_at(bytes, range.start)?;
    }
    file.write_all_at(&tail.page(), 0)?;
    fs::remove_file(path)
}

/// Whether no recorder has the file open: a recorder holds a lock on its tail.
fn is_unlocked(tail: &File) -> bool {
    // SAFETY: an open file; the lock goes when it is closed.
    unsafe { libc::flock(tail.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// Finds the tail by its whole name, else by the end of its name: the trace may have been renamed.
fn find(trace: &Path, tag: u64) -> Option<PathBuf> {
    let name = trace.file_name()?.as_bytes();
    let directory = directory_of(trace);
    let named = directory.join(std::ffi::OsStr::from_bytes(&tail::name(name, tag)));
    if named.is_file() {
        return Some(named);
    }
    let end = tail::name_end(tag);
    find_in(directory, |name| name.ends_with(end.as_bytes()))
}

fn find_in(directory: &Path, wanted: impl Fn(&[u8]) -> bool) -> Option<PathBuf> {
    let mut entries = fs::read_dir(directory).ok()?.flatten();
    entries.find(|entry| wanted(entry.file_name().as_bytes())).map(|entry| entry.path())
}

fn directory_of(trace: &Path) -> &Path {
    let directory = trace.parent().filter(|parent| !parent.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

fn header_of(file: &File) -> io::Result<Header> {
    let mut page = [0; HEADER_BYTES];
    file.read_exact_at(&mut page, 0)?;
    Ok(TraceReader::new(&page).map_err(io::Error::other)?.header().clone())
}

/// Copies of the windows of a kind. A window that the process replaced during the copy is left out: it is
/// in the trace.
fn copies(file: &File, tag: u64, kind: WindowKind) -> io::Result<Vec<(WindowHeader, Vec<u8>)>> {
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    bytes.truncate(read);
    let still_there = |window: &TailWindow| {
        let mut now = [0; WINDOW_HEADER];
        let same = file.read_exact_at(&mut now, window.at as u64).is_ok();
        same && tail::header_at(&now) == Some(window.header)
    };
    Ok(tail::windows(&bytes, tag)
        .filter(|window| window.header.kind == kind && still_there(window))
        .map(|window| (window.header, window.bytes.to_vec()))
        .collect())
}

/// A writable copy of the file's first `bytes` bytes, padded with zeros. Writes do not change the file.
fn private(file: &File, length: u64, bytes: u64) -> io::Result<MmapMut> {
    if bytes <= length {
        // SAFETY: as of a trace that is only read, see `Trace::open`.
        return unsafe { MmapOptions::new().len(bytes as usize).map_copy(file) };
    }
    // The file was truncated: access beyond its end of a mapping would raise SIGBUS.
    let mut map = MmapMut::map_anon(bytes as usize)?;
    let mut at = 0;
    while at < length as usize {
        let until = (at + SLOT).min(length as usize);
        match file.read_at(&mut map[at..until], at as u64)? {
            0 => break,
            more => at += more,
        }
    }
    Ok(map)
}

/// Sorts the ranges and joins those that touch or overlap.
fn join(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges.drain(..) {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    *ranges = joined;
}
